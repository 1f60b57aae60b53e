"""`lcm events`: what happened lately, or what happens from now on."""

from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.options import ContextName
from lcm.cli.output.table import Column, TextTable
from lcm.system.clock import SystemClock, random_fraction

if TYPE_CHECKING:
    from lcm.control.plane.client_streams import StreamEvent, StreamItem
    from lcm.control.plane.transport import ApiConnection
    from lcm.control.plane.wire import ListedEvent


_RESET: Final = (
    "some events may be missing: history was lost, because of a restore or because we were away for too long"
)
_NO_EVENTS: Final = "nothing happened lately that you may see; --follow waits for it"
_MOST_EVENTS: Final = 1000


class ListFormat(StrEnum):
    """The format in which a list is printed."""

    TABLE = "table"
    JSON = "json"


def events(
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Tell what happens from now on, until Ctrl-C.")
    ] = False,
    types: Annotated[
        str,
        typer.Option("--types", metavar="TYPES", help="Only these types, with commas between; worker.* is a family."),
    ] = "",
    session: Annotated[str, typer.Option("--session", metavar="ID", help="Only about the session of this uid.")] = "",
    worker: Annotated[str, typer.Option("--worker", metavar="ID", help="Only about the worker of this uid.")] = "",
    definition: Annotated[
        str, typer.Option("--definition", metavar="NAME", help="Only about sessions of this definition.")
    ] = "",
    owner: Annotated[str, typer.Option("--owner", metavar="NAME", help="Only about what belongs to this person.")] = "",
    after: Annotated[
        str, typer.Option("--after", metavar="EVENT", help="Only what came after the event of this id.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_MOST_EVENTS, help="So many at most, without --follow.")
    ] = 50,
    output: Annotated[ListFormat, typer.Option("-o", "--output", help="How to write them.")] = ListFormat.TABLE,
    context: ContextName = None,
) -> None:
    """Show what happened lately, or with --follow what happens from now on."""
    from lcm.control.plane.client_streams import EventSelection  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    selection = EventSelection(
        session_id=session, worker_id=worker, definition_id=definition, owner_id=owner, event_types=types
    )
    printer = _EventPrinter(output)

    async def work(line: "ApiConnection") -> None:
        from lcm.control.plane import client_streams  # noqa: PLC0415 - likewise

        if not follow:
            page = await client_streams.read_recent(line, selection, after=after, limit=limit)
            printer.print_page(page.items)
            return
        async with aclosing(
            client_streams.follow_events(line, selection, chance=random_fraction, after=after)
        ) as stream:
            async for item in stream:
                printer.print_streamed(item)

    connection.with_connection(work, context)


class _EventRow(NamedTuple):
    moment: str
    type: str
    about: str
    what: str


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


class _EventPrinter:
    """Prints events as they arrive."""

    def __init__(self, form: ListFormat) -> None:
        self._form = form
        columns: list[Column[_EventRow]] = [
            Column("TIME", lambda row, _: row.moment),
            Column("TYPE", lambda row, _: row.type),
            Column("ABOUT", lambda row, _: row.about),
            Column("WHAT", lambda row, _: row.what),
        ]
        self._table = TextTable(columns, render.output_width())

    def print_page(self, page: "Sequence[ListedEvent]") -> None:
        if self._form is ListFormat.JSON:
            for one in page:
                _print_json(one)
            return
        self._print_rows([_row(one.type, one.data, one.time, one.name) for one in page])
        if not page:
            render.print_message(_NO_EVENTS)

    def print_streamed(self, item: "StreamItem") -> None:
        from lcm.control.plane.client_streams import StreamEvent, StreamStart  # noqa: PLC0415 - already loaded

        if isinstance(item, StreamEvent):
            self._print_event(item)
        elif isinstance(item, StreamStart) and item.reset:
            render.print_message(_RESET, colour="yellow")

    def _print_event(self, event: "StreamEvent") -> None:
        if self._form is ListFormat.JSON:
            _print_json(event)
        else:
            self._print_rows([_row(event.type, event.data, SystemClock().now(), "")])

    def _print_rows(self, rows: Sequence[_EventRow]) -> None:
        if rows:
            for line in self._table.lines(rows, SystemClock().now()):
                render.print_line(line)


def _row(kind: str, data: msgspec.Raw, moment: datetime, name: str) -> _EventRow:
    known = _decode_data(data)
    when = known.timestamp or known.collected_at or moment
    about = name or known.session_name or known.worker_name or known.name or known.sink
    before, after = known.old_phase or known.previous_state, known.new_phase or known.new_state or known.phase or ""
    moved = f"{before} → {after}" if before and after else after
    what = " · ".join(part for part in (moved, known.reason, known.message) if part)
    return _EventRow(f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}", kind, about, what)


def _decode_data(data: msgspec.Raw) -> _EventData:
    try:
        return msgspec.json.decode(data, type=_EventData)
    except msgspec.DecodeError:
        return _EventData()  # written by another version: its type and time are shown all the same


def _print_json(value: msgspec.Struct) -> None:
    render.print_line(render.escape_json(msgspec.json.encode(value).decode()))
