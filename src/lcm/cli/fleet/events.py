"""`lcm events`: what happened lately, or what happens from now on."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.options import ContextName, ListFormat, ListOutput
from lcm.cli.output.printer import print_json
from lcm.cli.output.table import TextTable, table_of_texts
from lcm.system.clock import SystemClock, random_fraction

if TYPE_CHECKING:
    from lcm.control.plane.client_streams import StreamEvent
    from lcm.control.plane.transport import ApiConnection
    from lcm.control.plane.wire import ListedEvent


_RESET: Final = "some events may be missing: the history was lost by a restore, or the connection was lost for too long"
_NO_EVENTS: Final = "no recent events that you may see; --follow waits for new ones"
_MOST_EVENTS: Final = 1000


def events(
    *,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Print new events until Ctrl-C.")] = False,
    types: Annotated[
        str,
        typer.Option("--types", metavar="TYPES", help="Only these types, separated by commas, such as worker.*."),
    ] = "",
    session: Annotated[
        str, typer.Option("--session", metavar="ID", help="Only events of the session with this uid.")
    ] = "",
    worker: Annotated[
        str, typer.Option("--worker", metavar="ID", help="Only events of the worker with this uid.")
    ] = "",
    definition: Annotated[
        str, typer.Option("--definition", metavar="NAME", help="Only events of sessions of this definition.")
    ] = "",
    owner: Annotated[str, typer.Option("--owner", metavar="NAME", help="Only events of this person's objects.")] = "",
    after: Annotated[
        str, typer.Option("--after", metavar="EVENT", help="Only events after the one with this id.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_MOST_EVENTS, help="Largest number of events, without --follow.")
    ] = 50,
    output: ListOutput = ListFormat.TABLE,
    context: ContextName = None,
) -> None:
    """Show recent events, or follow new ones with --follow."""
    from lcm.control.plane import client_streams  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    selection = client_streams.EventSelection(
        session_id=session, worker_id=worker, definition_id=definition, owner_id=owner, event_types=types
    )
    table = table_of_texts(("TIME", "TYPE", "ABOUT", "WHAT"), whole=("TIME",), least={"WHAT": 12})

    async def work(line: "ApiConnection") -> None:
        if not follow:
            page = (await client_streams.read_recent(line, selection, after=after, limit=limit)).items
            _print_events(page, [_row(one.type, one.data, one.time, one.name) for one in page], table, output)
            return
        stream = client_streams.follow_events(line, selection, chance=random_fraction, after=after)
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, client_streams.StreamEvent):
                    _print_events([item], [_row(item.type, item.data, SystemClock().now(), "")], table, output)
                elif isinstance(item, client_streams.StreamStart) and item.reset:
                    render.print_message(_RESET, colour="yellow")

    connection.with_connection(work, context)


def _print_events(
    found: "Sequence[ListedEvent | StreamEvent]",
    rows: Sequence[Sequence[str]],
    table: TextTable[Sequence[str]],
    output: ListFormat,
) -> None:
    if output is ListFormat.JSON:
        for one in found:
            print_json(one)
    elif rows:
        for text in table.lines(rows, SystemClock().now()):
            render.print_line(text)
    else:
        render.print_message(_NO_EVENTS)


class _EventData(msgspec.Struct, frozen=True):
    """The fields of any event's data that are worth showing."""

    kind: str = ""
    name: str = ""
    worker_name: str = ""
    session_name: str = ""
    sink: str = ""
    old_phase: str = ""
    new_phase: str = ""
    previous_state: str = ""
    new_state: str = ""
    phase: str | None = None
    reason: str = ""
    message: str = ""
    timestamp: datetime | None = None
    collected_at: datetime | None = None


def _row(kind: str, data: msgspec.Raw, moment: datetime, name: str) -> Sequence[str]:
    try:
        known = msgspec.json.decode(data, type=_EventData)
    except msgspec.DecodeError:
        known = _EventData()  # written by another version: its type and time are shown all the same
    when = known.timestamp or known.collected_at or moment
    about = name or known.session_name or known.worker_name or known.name or known.sink
    before, after = known.old_phase or known.previous_state, known.new_phase or known.new_state or known.phase or ""
    moved = f"{before} → {after}" if before and after else after
    what = " · ".join(part for part in (moved, known.reason, known.message) if part)
    return (render.format_second(when), kind, about, what)
