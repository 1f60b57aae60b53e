"""`lcm label`: set labels of many objects; `lcm batch`: do what a file says in one call."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from lcm.cli.documents.sources import fault_at_line, read_files
from lcm.cli.documents.texts import read_documents
from lcm.cli.output import options
from lcm.cli.output.batches import Together, act_in_batch, keep_error, select_objects
from lcm.cli.output.nouns import parse_targets, title
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Selector
from lcm.control.plane.batch import BatchItem, BatchRequest, LabelItem
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Fault, Invalid, to_fault
from lcm.model.kinds.registry import Resource


def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="KIND [NAME…] KEY=VALUE…",
            help="Objects, then labels; KEY- removes one.",
            autocompletion=options.complete_targets,
        ),
    ],
    *,
    selector: Selector = "",
    together: Together = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Set or remove labels of objects, named or selected with -l. All other labels stay."""
    targets = [word for word in words if not _is_label(word)]
    labels = dict(_parse_label(word) for word in words if _is_label(word))
    if not labels:
        raise typer.BadParameter("which label? write KEY=VALUE, or KEY- to remove it", param_hint="KEY=VALUE")
    parts = parse_targets(targets)
    if not (selector or all(part.names for part in parts)):
        raise typer.BadParameter("name objects, or select them with -l", param_hint="NAME")

    async def find(plane: Plane) -> Sequence[BatchItem]:
        refs: list[Ref[Any]] = [Ref(part.noun.struct, name, namespace) for part in parts for name in part.names]
        for part in parts if selector else ():
            refs += await select_objects(plane, part.noun, selector, namespace)
        return [
            LabelItem(kind=ref.kind.__name__, name=ref.name, namespace=ref.namespace, labels=labels)
            for ref in dict.fromkeys(refs)
        ]

    act_in_batch(find, _describe_labels, keep_error, context, together=together, dry_run=dry_run)


def batch(
    file: Annotated[str, typer.Option("-f", "--filename", metavar="FILE", help="A YAML or JSON file, or -.")],
    *,
    together: Together = False,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Create, delete, act on and label objects as a file says: its `items`, and its `mode` (each or all).

    An item has an `op`: create with a document; delete, action or label with kind, name and what to do.
    """
    asked = _read_request(file)

    async def find(_: Plane) -> Sequence[BatchItem]:
        return asked.items

    together = together or asked.mode == "all"
    act_in_batch(find, _describe_object, keep_error, context, together=together, dry_run=dry_run)


def _read_request(file: str) -> BatchRequest:
    """Read a file; raise Invalid if it is no batch."""
    ((name, data),) = read_files([file], recursive=False)
    written, flaws = read_documents(data)
    if flaws:
        raise Invalid(*(fault_at_line(name, flaw.line, flaw.fault) for flaw in flaws))
    if len(written) != 1:
        raise Invalid(Fault(name, f"{len(written)} documents", "write one, with `mode` and `items`"))
    try:
        return msgspec.convert(written[0].value, BatchRequest)
    except msgspec.ValidationError as error:
        raise Invalid(to_fault(error, name)) from error


def _is_label(word: str) -> bool:
    return "=" in word or word.endswith("-")


def _parse_label(word: str) -> tuple[str, str | None]:
    name, equals, value = word.partition("=")
    return (name, value) if equals else (word.removesuffix("-"), None)


async def _describe_labels(_: Plane, made: Resource) -> str:
    shown = ", ".join(f"{name}={value}" for name, value in sorted(made.metadata.labels.items()))
    return f"{title(made)}: {shown or 'no labels'}"


async def _describe_object(_: Plane, made: Resource) -> str:
    phase = getattr(made.status, "phase", "")
    gone = ", being deleted" if made.metadata.deletion_timestamp else ""
    return f"{title(made)}{f' is {phase}' if phase else ' is done'}{gone}"
