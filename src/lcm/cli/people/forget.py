"""`lcm forget PERSON`: replaces a person by a pseudonym in all that is over, and removes what is theirs."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, render
from lcm.cli.output.options import ContextName, DryRun
from lcm.model.base.errors import Refused
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lcm.control.plane.transport import ApiConnection
    from lcm.control.upkeep.forgetting import Forgotten

_PAUSE_SECONDS: Final = 2.0
_SCAN_SECONDS: Final = 600.0
"""How long to wait for an answer: the whole store is read."""
People = Annotated[
    list[str], typer.Argument(metavar="PERSON…", help="All names of one person: of tokens, addresses, of the provider.")
]
Cancel = Annotated[bool, typer.Option("--cancel", help="End first what runs or is booked.")]
Patience = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for the end of that.")]


def forget(
    names: People,
    *,
    cancel: Cancel = False,
    timeout: Patience = "30m",
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Forget a person: a pseudonym stands for all their names, their tokens and files are removed.

    What runs or is booked is listed and refused, unless --cancel ends it first. May be repeated, also after a failure.
    """
    patience = parse_duration(timeout, "--timeout")

    async def work(line: "ApiConnection") -> "Forgotten":
        found, end = await _ask(line, names, cancel=cancel, dry_run=dry_run), SystemClock().now() + patience
        while not (found.done or dry_run):
            if SystemClock().now() >= end:
                raise Refused(f"not over yet: {', '.join(found.live)}; repeat the command later")
            render.print_message(f"waiting for the end of {', '.join(found.live)}")
            await asyncio.sleep(_PAUSE_SECONDS)
            found = await _ask(line, names, cancel=cancel, dry_run=dry_run)
        return found

    _print_outcome(connection.with_connection(work, context), dry_run=dry_run)


async def _ask(line: "ApiConnection", names: "Sequence[str]", *, cancel: bool, dry_run: bool) -> "Forgotten":
    import msgspec  # noqa: PLC0415 - loaded by commands that talk

    from lcm.control.plane.transport import read_answer  # noqa: PLC0415 - likewise
    from lcm.control.upkeep.forgetting import ForgetRequest, Forgotten  # noqa: PLC0415 - likewise

    wish = ForgetRequest(names=tuple(names), cancel=cancel, dry_run=dry_run)
    body = msgspec.json.encode(wish)
    return read_answer(await line.request("POST", "/api/forget", body=body, seconds=_SCAN_SECONDS), Forgotten)


def _print_outcome(found: "Forgotten", *, dry_run: bool) -> None:
    for one in found.live:
        render.print_line(f"not over: {render.sanitize(one)}")
    known = render.sanitize(", ".join(found.names))
    counted = f"{found.documents} documents, {found.files} files, {found.tokens} tokens"
    render.print_line(f"{known} {'would be' if dry_run else 'is'} forgotten: {counted}")
    render.print_line(found.pseudonym)
