"""`lcm apply`: create or change objects from files, all of them or none; also make a definition of a lab file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from lcm.cli.documents import lab_files
from lcm.cli.documents.lab_files import PreparedDocuments, prepare_documents
from lcm.cli.documents.sources import (
    DocumentSource,
    GatheredDocuments,
    check_locally,
    gather,
    key_of,
    message_at_line,
    trace_faults,
)
from lcm.cli.output import connection, render
from lcm.cli.output.nouns import noun_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Files, Namespace, Recursive
from lcm.control.plane.protocol import LONGEST_APPLY, Applied, Plane
from lcm.model.base.errors import Conflict, Fault, Invalid, Later, LcmError, NoRoom, TooLarge
from lcm.system.clock import SystemClock

_SUMMARY_ABOVE: Final = 20
_COLOURS: Final = {"created": "green", "configured": "yellow"}
_CHECKED_LOCALLY: Final = "the API could not be asked, so this was checked here only"


def apply(
    files: Files = None,
    *,
    recursive: Recursive = False,
    as_definition: Annotated[
        str,
        typer.Option(
            "--as-definition", metavar="NAME[:VERSION]", help="Make a definition of a lab file; else version 1.0.0."
        ),
    ] = "",
    track: Annotated[
        str, typer.Option("--track", metavar="TRACK", help="With --as-definition: whose workers it runs on.")
    ] = "",
    activate: Annotated[
        bool, typer.Option("--activate", help="With --as-definition: let it be booked; else it is a draft.")
    ] = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Create or change objects from files.

    All documents are checked before any is written; each fault is shown with its file and line. A definition may name
    its lab by a path relative to its own file, such as labs/basics.yaml: that file is uploaded. Without such a
    document, `lcm apply -f basics.yaml --as-definition basics` makes a definition of the lab itself. A booking's slot
    may be relative to now, such as `timeslot_start: +10m`; once the booking exists, it keeps the times it got.
    """
    if not files:
        raise typer.BadParameter("name a file, a folder, or - for standard input", param_hint="-f")
    if as_definition:
        from lcm.cli.documents.publish import DefinitionRequest, publish  # noqa: PLC0415 - rarely needed

        publish(files, DefinitionRequest(as_definition, namespace, track, activate=activate), context, dry_run=dry_run)
        return
    if track or activate or namespace != DEFAULT_NAMESPACE:
        raise typer.BadParameter("--track, --activate and --namespace go with it", param_hint="--as-definition")
    found = gather(files, recursive=recursive)
    if not found.sources and not found.faults:
        raise typer.BadParameter(_no_documents_message(found), param_hint="-f")
    what = prepare_documents(found.sources, now=SystemClock().now())
    _report_unused_labs(found, what)
    if found.faults or what.faults:
        raise Invalid(*_collect_faults(found, what, context))
    if len(what.sources) > LONGEST_APPLY:
        raise TooLarge(f"{len(what.sources)} documents; apply at most {LONGEST_APPLY} at once")
    print_results(apply_documents(what, context, dry_run=dry_run), dry_run=dry_run)


def apply_documents(what: PreparedDocuments, context: str | None, *, dry_run: bool) -> Sequence[Applied]:
    """Apply documents; faults are reported at the lines of their files."""

    async def work(plane: Plane) -> Sequence[Applied]:
        return await lab_files.apply_prepared(plane, what, dry_run=dry_run)

    try:
        return connection.with_plane(work, context)
    except Invalid as error:
        raise Invalid(*trace_faults(error.faults, what.sources)) from error
    except NoRoom as error:
        raise NoRoom(message_at_line(str(error), what.sources), why=error.why, nearest=error.nearest) from error
    except (connection.NoContext, Later) as error:
        if faults := list(check_locally(what.sources)):
            render.print_message(_CHECKED_LOCALLY)
            raise Invalid(*faults) from error
        raise
    except Conflict as error:
        if source := next((one for one in what.sources if key_of(one.value) == error.key), None):
            render.print_message(
                f"{source.file}:{source.written.line_of('metadata')}: {source.value['kind']}: not written"
            )
        raise


def print_results(results: Sequence[Applied], *, dry_run: bool) -> None:
    """Print the outcome of each document."""
    note = " (dry run)" if dry_run else ""
    for one in results:
        outcome = render.paint(one.outcome, _COLOURS.get(one.outcome))
        render.print_line(f"{noun_of(one.kind).singular}/{one.name} {outcome}{note}")
    if len(results) > _SUMMARY_ABOVE:
        counts = Counter(one.outcome for one in results)
        parts = (
            f"{counts[outcome]} {outcome}" for outcome in ("created", "configured", "unchanged") if counts[outcome]
        )
        render.print_message(f"{len(results)} objects: {', '.join(parts)}{note}")


def _no_documents_message(found: GatheredDocuments) -> str:
    message = "there is no document in what was given"
    if not found.labs:
        return message
    return f"{message}, but a lab: `lcm apply -f {found.labs[0]} --as-definition NAME` makes a definition of it"


def _report_unused_labs(found: GatheredDocuments, what: PreparedDocuments) -> None:
    """Report lab files that no definition names: they were left out."""
    used = what.files()
    for file in found.labs:
        if Path(file).resolve() not in used:
            render.print_message(f"{file} is a lab and no document: left out, for no definition given here names it")


def _collect_faults(found: GatheredDocuments, what: PreparedDocuments, context: str | None) -> Sequence[Fault]:
    """Return the files' faults and those of the documents themselves; nothing is written."""
    first = [*found.faults, *what.faults]
    if not what.sources:
        return first
    # The content of a file that could not be read to its end is unknown, so the API might miss it in the other files.
    more = _server_faults(what, context) if found.whole else list(check_locally(what.sources))
    known = {fault.path for fault in first}
    return [*first, *(fault for fault in more if fault.path not in known)]


def _server_faults(what: PreparedDocuments, context: str | None) -> list[Fault]:
    few: list[DocumentSource] = what.sources[:LONGEST_APPLY]
    try:
        apply_documents(PreparedDocuments(few, what.labs, what.wrong, moving=what.moving), context, dry_run=True)
    except Invalid as error:
        return list(error.faults)
    except LcmError:
        pass  # the faults found so far are reason enough to stop
    return []
