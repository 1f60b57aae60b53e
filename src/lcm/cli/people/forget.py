"""`lcm forget PERSON`: replaces a person by a pseudonym in all that is over, and removes what is theirs."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lcm.cli.documents.wait import parse_duration
from lcm.cli.output import connection, render
from lcm.cli.output.options import ContextName, DryRun
from lcm.model.base.errors import Refused

if TYPE_CHECKING:
    from lcm.control.upkeep.forgetting import Forgotten

_PAUSE_SECONDS: Final = 2.0
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
    from lcm.control.upkeep.forgetting import ForgetRequest, Forgotten  # noqa: PLC0415 - loaded by commands that talk

    wish = ForgetRequest(names=tuple(names), cancel=cancel, dry_run=dry_run)
    end = time.monotonic() + parse_duration(timeout, "--timeout").total_seconds()
    while not (found := connection.request("POST", "/api/forget", Forgotten, context, wish)).done and not dry_run:
        if time.monotonic() >= end:
            raise Refused(f"not over yet: {', '.join(found.live)}; repeat the command later")
        render.print_message(f"waiting for the end of {', '.join(found.live)}")
        time.sleep(_PAUSE_SECONDS)
    _print_outcome(found, dry_run=dry_run)


def _print_outcome(found: "Forgotten", *, dry_run: bool) -> None:
    for one in found.live:
        render.print_line(f"not over: {render.sanitize(one)}")
    known = render.sanitize(", ".join(found.names))
    counted = f"{found.documents} documents, {found.files} files, {found.tokens} tokens"
    render.print_line(f"{known} {'would be' if dry_run else 'is'} forgotten: {counted}")
    render.print_line(found.pseudonym)
