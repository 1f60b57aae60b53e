"""Doing something to several objects in one call, and printing what became of each. Used by the commands that do."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.exit_codes import report_error
from lcm.cli.output.follow import read_all
from lcm.cli.output.lookup import suggest
from lcm.cli.output.nouns import MissingObject, Noun
from lcm.control.plane.batch import LONGEST_BATCH, BatchItem, BatchRequest, BatchResult
from lcm.control.plane.problems import error_of
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.control.plane.transport import read_answer
from lcm.model.base.errors import Invalid, LcmError
from lcm.model.base.selector import parse_selector
from lcm.model.kinds.registry import KINDS, Resource

Together = Annotated[bool, typer.Option("--together", help="All or none, in one commit, which is limited in size.")]
Describe = Callable[[Plane, Any], Awaitable[str]]
"""Returns what became of an object, in words."""
Explain = Callable[[Plane, Ref[Any], LcmError], Awaitable[LcmError]]
"""Returns an error in the words of the command."""


def act_in_batch(
    find_items: Callable[[Plane], Awaitable[Sequence[BatchItem]]],
    describe: Describe,
    explain: Explain,
    context: str | None,
    *,
    together: bool,
    dry_run: bool,
) -> None:
    """Do several things, each by itself or all together, and print what became of each.

    The first error's exit code is that of the command.
    """

    async def work(plane: Plane) -> None:
        items, code = await find_items(plane), 0
        size = max(1, len(items)) if together else LONGEST_BATCH
        for first in range(0, len(items), size):
            asked = BatchRequest(items=tuple(items[first : first + size]), mode="all" if together else "each")
            answer = await plane.batch(asked, dry_run=dry_run)
            for result in answer.results:
                failure = await _print_result(plane, result, describe, explain)
                code = code or failure
        if not items:
            render.print_message("nothing is selected")
        if dry_run or (together and code):
            render.print_message(f"nothing was done: {'--dry-run' if dry_run else 'all or none'}")
        if code:
            raise typer.Exit(code)

    connection.with_plane(work, context)


async def _print_result(plane: Plane, result: BatchResult, describe: Describe, explain: Explain) -> int:
    """Print what became of one item; return the exit code of its error, or 0."""
    known = KINDS.get(result.kind)
    if result.problem:
        error = error_of(result.problem)
        if known is not None:
            kind: type[Any] = known.struct
            error = await explain(plane, Ref(kind, result.name, result.namespace), error)
        return report_error(await suggest(plane, error) if isinstance(error, MissingObject) else error)
    if result.outcome != "skipped" and result.object is not None and known is not None:
        made: Resource = read_answer(msgspec.json.encode(result.object), known.struct)
        render.print_text(await describe(plane, made))
    return 0


async def select_objects(plane: Plane, noun: Noun, labels: str, namespace: str) -> Sequence[Ref[Any]]:
    """Return the objects with some labels. Selectors that cannot be read are wrong usage."""
    try:
        where = parse_selector(noun.struct, labels, "")
    except Invalid as error:
        raise typer.BadParameter(f"{error.faults[0].problem}", param_hint="--selector") from error
    found = await read_all(plane, noun.struct, namespace=namespace, where=where)
    return [ref_of(one) for one in found.items]


async def keep_error(_: Plane, __: Ref[Any], error: LcmError) -> LcmError:
    """Return an error as it is."""
    return error
