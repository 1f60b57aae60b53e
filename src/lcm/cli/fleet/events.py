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
from lcm.cli.output.table import Column, Table
from lcm.system.clock import SystemClock, chance

if TYPE_CHECKING:
    from lcm.control.plane.client_streams import Heard, Told
    from lcm.control.plane.transport import Line
    from lcm.control.plane.wire import ToldEvent


_RESET: Final = (
    "some events may be missing: history was lost, because of a restore or because we were away for too long"
)
_NOTHING: Final = "nothing happened lately that you may see; --follow waits for it"
_LONGEST: Final = 1000


class Form(StrEnum):
    """How events are written."""

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
    limit: Annotated[int, typer.Option("--limit", min=1, max=_LONGEST, help="So many at most, without --follow.")] = 50,
    output: Annotated[Form, typer.Option("-o", "--output", help="How to write them.")] = Form.TABLE,
    context: ContextName = None,
) -> None:
    """Tell what happened lately, or what happens from now on with --follow."""
    from lcm.control.plane.client_streams import Wish  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then

    wish = Wish(session_id=session, worker_id=worker, definition_id=definition, owner_id=owner, event_types=types)
    printer = _Printer(output)

    async def work(line: "Line") -> None:
        from lcm.control.plane import client_streams  # noqa: PLC0415 - likewise

        if not follow:
            page = await client_streams.recent(line, wish, after=after, limit=limit)
            printer.listed(page.items)
            return
        async with aclosing(client_streams.follow(line, wish, chance=chance, after=after)) as stream:
            async for told in stream:
                printer.told(told)

    connection.with_line(work, context)


class _Row(NamedTuple):
    moment: str
    type: str
    about: str
    what: str


class _Known(msgspec.Struct, frozen=True):
    """What is worth a word in the data of any event."""

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


class _Printer:
    """Writes events as they come."""

    def __init__(self, form: Form) -> None:
        self._form = form
        columns: list[Column[_Row]] = [
            Column("TIME", lambda row, _: row.moment),
            Column("TYPE", lambda row, _: row.type),
            Column("ABOUT", lambda row, _: row.about),
            Column("WHAT", lambda row, _: row.what),
        ]
        self._table = Table(columns, render.room())

    def listed(self, page: "Sequence[ToldEvent]") -> None:
        if self._form is Form.JSON:
            for one in page:
                _json(one)
            return
        self._rows([_row(one.type, one.data, one.time, one.name) for one in page])
        if not page:
            render.say(_NOTHING)

    def told(self, told: "Told") -> None:
        from lcm.control.plane.client_streams import Begun, Heard  # noqa: PLC0415 - loaded by now

        if isinstance(told, Heard):
            self._heard(told)
        elif isinstance(told, Begun) and told.reset:
            render.say(_RESET, colour="yellow")

    def _heard(self, told: "Heard") -> None:
        if self._form is Form.JSON:
            _json(told)
        else:
            self._rows([_row(told.type, told.data, SystemClock().now(), "")])

    def _rows(self, rows: Sequence[_Row]) -> None:
        if rows:
            for line in self._table.lines(rows, SystemClock().now()):
                render.out(line)


def _row(kind: str, data: msgspec.Raw, moment: datetime, name: str) -> _Row:
    known = _known(data)
    when = known.timestamp or known.collected_at or moment
    about = name or known.session_name or known.worker_name or known.name or known.sink
    before, after = known.old_phase or known.previous_state, known.new_phase or known.new_state or known.phase or ""
    moved = f"{before} → {after}" if before and after else after
    what = " · ".join(part for part in (moved, known.reason, known.message) if part)
    return _Row(f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}", kind, about, what)


def _known(data: msgspec.Raw) -> _Known:
    try:
        return msgspec.json.decode(data, type=_Known)
    except msgspec.DecodeError:
        return _Known()  # some other version's: its type and time are told all the same


def _json(value: msgspec.Struct) -> None:
    render.out(render.escaped(msgspec.json.encode(value).decode()))
