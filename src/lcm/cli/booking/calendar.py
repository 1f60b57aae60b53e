"""`lcm get calendar`: planned workers against time, one line each, one cell per span of time. Called by `get`.

A cell is shown free only if all of its time is free; one that any booking touches is shown taken.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli.output import connection, render
from lcm.cli.output.options import Output
from lcm.cli.output.printer import print_value
from lcm.cli.output.times import format_minutes, parse_moment
from lcm.cli.output.zone import Zone, current_zone
from lcm.control.plane.protocol import Plane
from lcm.model.kinds.placement import Booked, CalendarRow, CalendarView
from lcm.model.kinds.pool import describe_packing
from lcm.system.clock import SystemClock

_CELLS: Final = tuple(timedelta(minutes=minutes) for minutes in (5, 10, 15, 20, 30, 60, 120, 180, 240, 360, 720, 1440))
_DAY: Final = timedelta(days=1)
_HALF_DAY: Final = timedelta(hours=12)
_ONE_HOUR: Final = timedelta(hours=1)
_STEPS: Final = (1, 2, 3, 4, 6, 12, 24)
_HOUR_WIDTH: Final = 3
_MIN_CELLS: Final = 8
_GAP: Final = 2
_WIDEST_NAME: Final = 16
_WIDEST_PHASE: Final = 9


@dataclass(frozen=True, slots=True)
class CellSigns:
    """The characters that cells are drawn with."""

    own: str
    other: str
    free: str
    now: str
    cut: str


BLOCKS: Final = CellSigns(own="█", other="▒", free="·", now="▼", cut="…")
ASCII: Final = CellSigns(own="#", other="+", free=".", now="v", cut="~")
_COLOURS: Final = {BLOCKS.own: "green", ASCII.own: "green", BLOCKS.other: "yellow", ASCII.other: "yellow"}


@dataclass(frozen=True, slots=True)
class CalendarGrid:
    """Cells of equal length from a moment on."""

    since: datetime
    cell: timedelta
    count: int

    def start_of_cell(self, number: int) -> datetime:
        """Return when a cell begins; the cell after the last begins when the grid ends."""
        return self.since + self.cell * number

    def covered_cells(self, start: datetime, end: datetime) -> range:
        """Return the numbers of the cells that a span touches."""
        first = (max(start, self.since) - self.since) // self.cell
        last = -((self.since - min(end, self.start_of_cell(self.count))) // self.cell)
        return range(first, last) if start < end else range(0)


def choose_grid(since: datetime, until: datetime, room: int) -> CalendarGrid:
    """Choose cells of a round length that fit the width."""
    days = -((since - until) // _DAY)
    longer = (_DAY * number for number in range(2, days + 1))
    for cell in (*_CELLS, *longer):
        count = -((since - until) // cell)
        if count <= max(room, _MIN_CELLS):
            return CalendarGrid(since, cell, count)
    raise AssertionError("one cell fits everywhere")


def draw_row(row: CalendarRow, span: CalendarGrid, caller: str, signs: CellSigns) -> str:
    """Draw one planned worker's time; the caller's own bookings are drawn over those of others."""
    drawn = [signs.free] * span.count
    for booked in sorted(row.booked, key=lambda one: _is_own(one, caller)):
        for number in span.covered_cells(booked.start, booked.end):
            drawn[number] = signs.own if _is_own(booked, caller) else signs.other
    return "".join(drawn)


def draw_headings(span: CalendarGrid, zone: Zone) -> Iterator[str]:
    """Yield the days, then the hours where cells are shorter than half a day."""
    starts = [zone.local(span.start_of_cell(number)) for number in range(span.count)]
    days = [number for number, one in enumerate(starts) if not number or one.date() != starts[number - 1].date()]
    yield _place_texts(
        [(number, _day_text(starts[number], room)) for number, room in _mark_widths(days, span.count)], span.count
    )
    if span.cell < _HALF_DAY:
        step = next(step for step in _STEPS if _ONE_HOUR * step >= span.cell * _HOUR_WIDTH)
        blocks = [(one.date(), one.hour // step) for one in starts]
        marks = [n for n, one in enumerate(starts) if one.minute == 0 and (not n or blocks[n] != blocks[n - 1])]
        yield _place_texts([(number, f"{starts[number]:%H}") for number in marks], span.count)


@dataclass(frozen=True, slots=True)
class DrawingContext:
    """Who looks at a calendar and when, how wide the output is, and which characters it can show."""

    caller: str
    now: datetime
    zone: Zone
    room: int
    signs: CellSigns


def draw_calendar(view: CalendarView, sight: DrawingContext, *, with_namespace: bool = False) -> Iterator[str]:
    """Draw the whole calendar in lines that fit the width."""
    now, zone, signs = sight.now, sight.zone, sight.signs
    labels = _labels(view.rows, with_namespace=with_namespace, signs=signs)
    indent = max(len(label) for label in labels) + _GAP
    span = choose_grid(view.since, view.until, sight.room - indent)
    for heading in draw_headings(span, zone):
        yield f"{'':{indent}}{heading}".rstrip()
    if span.since <= now < span.start_of_cell(span.count):
        yield f"{'':{indent + (now - span.since) // span.cell}}{signs.now}"
    for label, row in zip(labels, view.rows, strict=True):
        yield f"{label:<{indent}}{_colour_cells(draw_row(row, span, sight.caller, signs))}"
    if view.rows_left_off:
        yield f"and {view.rows_left_off} more planned workers; `-n NS` or `--pool NAME` shows fewer"
    for pool, packing in sorted(view.packing.items()):
        if packing.machine_hours:
            name = pool if with_namespace else pool.partition("/")[2]
            yield from render.wrap_text(f"{name}: {describe_packing(packing)}", sight.room)
    yield ""
    long = format_minutes(span.cell // timedelta(minutes=1))
    zone_name = zone.name or f"{zone.local(now):%Z}"
    yield f"{signs.own} yours  {signs.other} others'  {signs.free} free  {signs.now} now"
    yield f"one column is {long}; times are in {zone_name}"


def _is_own(booked: Booked, caller: str) -> bool:
    return bool(booked.owner) and booked.owner == caller


def _labels(rows: Sequence[CalendarRow], *, with_namespace: bool, signs: CellSigns) -> Sequence[str]:
    """Return the name of each planned worker, the worker that fills it and its phase, in columns."""
    table = [
        (
            (f"{row.namespace}/" if with_namespace else "") + (f"{row.pool}/{row.seat}" if row.pool else "no pool"),
            row.worker or "-",
            row.phase,
        )
        for row in rows
    ]
    limits = (_WIDEST_NAME + (_WIDEST_NAME if with_namespace else 0), _WIDEST_NAME, _WIDEST_PHASE)
    columns = [
        [render.truncate(cell, most, signs.cut) for cell in column]
        for column, most in zip(zip(*table, strict=True), limits, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def _colour_cells(line: str) -> str:
    runs = ((sign, "".join(run)) for sign, run in groupby(line))
    return "".join(render.paint(run, _COLOURS.get(sign)) for sign, run in runs)


def _mark_widths(marks: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield each mark with the number of cells until the next."""
    return ((mark, following - mark) for mark, following in zip(marks, [*marks[1:], count], strict=True))


def _day_text(day: datetime, room: int) -> str:
    forms = (f"{day:%a} {day.day} {day:%b}", f"{day:%a} {day.day}", str(day.day))
    return next((form for form in forms if len(form) < room), forms[-1])


def _place_texts(marks: Sequence[tuple[int, str]], count: int) -> str:
    """Write texts at their cells; one that would overlap the text before is left out."""
    line = ""
    for number, text in marks:
        if len(line) < number or not line:
            line = f"{line:<{number}}{text}"
    return line[:count] if count else line


From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="calendar: start, 2026-12-01 or 09:00; default: now.")
]
Days = Annotated[int | None, typer.Option("--days", metavar="N", help="calendar: number of days.", min=1, max=60)]
Hours = Annotated[
    int | None, typer.Option("--hours", metavar="N", help="calendar: number of hours; default: 24.", min=1, max=1440)
]
Pool = Annotated[str, typer.Option("--pool", metavar="NAME", help="calendar: only planned workers of this pool.")]
_DEFAULT_HOURS: Final = 24
_MAX_WIDTH: Final = 200


@dataclass(frozen=True, slots=True)
class CalendarOptions:
    """The part of the calendar that was asked for."""

    begin: str | None = None
    days: int | None = None
    hours: int | None = None
    pool: str = ""

    def span(self, now: datetime, zone: Zone) -> tuple[datetime, datetime]:
        """Return its start and end: whole days begin at midnight, hours at a full hour."""
        if self.days and self.hours:
            raise typer.BadParameter("--days and --hours cannot be used together", param_hint="--hours")
        begin = parse_moment(self.begin, now, zone, "--from", whole_days=True) if self.begin else now
        today = zone.local(begin).date()
        if self.days:
            first = zone.midnight(today) if not self.begin else begin
            return first, _add_days(first, self.days, zone)
        first = begin - (begin - zone.midnight(today)) % _ONE_HOUR
        return first, first + _ONE_HOUR * (self.hours or _DEFAULT_HOURS)


def print_calendar(asked: CalendarOptions, namespace: str | None, output: Output, context: str | None) -> None:
    """Print the calendar."""
    if output is Output.NAME:
        raise typer.BadParameter("a calendar has no names; use json or yaml", param_hint="--output")
    zone, now = current_zone(), SystemClock().now()
    since, until = asked.span(now, zone)

    async def work(plane: Plane) -> None:
        view = _only_pool(await plane.calendar(since=since, until=until, namespace=namespace), asked.pool)
        if output in {Output.JSON, Output.YAML}:
            print_value(view, output)
        elif not view.rows:
            render.print_message(_nothing_message(asked.pool, namespace))
        else:
            room = render.output_width() or (_MAX_WIDTH if output is Output.WIDE else render.MAX_TEXT_WIDTH)
            sight = DrawingContext(plane.caller.name, now, zone, room, choose_signs(sys.stdout.encoding))
            for line in draw_calendar(view, sight, with_namespace=not namespace):
                render.print_line(line)

    connection.with_plane(work, context, who=output not in {Output.JSON, Output.YAML})


def choose_signs(encoding: str | None) -> CellSigns:
    """Choose the characters that the output's encoding can show."""
    try:
        "".join(getattr(BLOCKS, name) for name in CellSigns.__slots__).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def _only_pool(view: CalendarView, pool: str) -> CalendarView:
    rows = tuple(row for row in view.rows if not pool or row.pool == pool)
    packing = {name: one for name, one in view.packing.items() if not pool or name.endswith(f"/{pool}")}
    return msgspec.structs.replace(view, rows=rows, packing=packing)


def _add_days(first: datetime, days: int, zone: Zone) -> datetime:
    """Add calendar days, one of which may have an hour more or less."""
    local = zone.local(first)
    return first + (zone.midnight(local.date() + timedelta(days=days)) - zone.midnight(local.date()))


def _nothing_message(pool: str, namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in any namespace"
    what = f"pool {pool} has no planned workers" if pool else "there are no planned workers"
    return f"{what} {where}; `lcm get pools -A` lists pools"
