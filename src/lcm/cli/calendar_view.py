"""`lcm get calendar`: who has which seat when. Called by `get`, which it is a part of."""

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

import msgspec
import typer

from lcm.cli import render, run
from lcm.cli.book_times import Zone, moment_of, terminal_zone
from lcm.cli.calendar_draw import ASCII, BLOCKS, Sight, Signs, drawn
from lcm.cli.options import Output
from lcm.cli.printer import print_value
from lcm.control.plane import Plane
from lcm.model.placing import CalendarView
from lcm.system import SystemClock

From = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="calendar: from when on, 2026-12-01 or 09:00; else now.")
]
Days = Annotated[int | None, typer.Option("--days", metavar="N", help="calendar: so many days.", min=1, max=60)]
Hours = Annotated[
    int | None, typer.Option("--hours", metavar="N", help="calendar: so many hours; else 24.", min=1, max=1440)
]
Pool = Annotated[str, typer.Option("--pool", metavar="NAME", help="calendar: only this pool's seats.")]
_HOUR: Final = timedelta(hours=1)
_USUAL_HOURS: Final = 24
_WIDEST: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """Which part of the calendar somebody wants."""

    begin: str | None = None
    days: int | None = None
    hours: int | None = None
    pool: str = ""

    def span(self, now: datetime, zone: Zone) -> tuple[datetime, datetime]:
        """Say from when until when: whole days begin at midnight, hours at a full one."""
        if self.days and self.hours:
            raise typer.BadParameter("--days and --hours exclude each other", param_hint="--hours")
        begin = moment_of(self.begin, now, zone, "--from", whole_days=True) if self.begin else now
        today = zone.local(begin).date()
        if self.days:
            first = zone.midnight(today) if not self.begin else begin
            return first, _days_on(first, self.days, zone)
        first = begin - (begin - zone.midnight(today)) % _HOUR
        return first, first + _HOUR * (self.hours or _USUAL_HOURS)


def show(asked: Asked, namespace: str | None, output: Output, context: str | None) -> None:
    """Print the calendar."""
    if output is Output.NAME:
        raise typer.BadParameter("a calendar has no names; use json or yaml", param_hint="--output")
    zone, now = terminal_zone(), SystemClock().now()
    since, until = asked.span(now, zone)

    async def work(plane: Plane) -> None:
        view = _of_pool(await plane.calendar(since=since, until=until, namespace=namespace), asked.pool)
        if output in {Output.JSON, Output.YAML}:
            print_value(view, output)
        elif not view.rows:
            render.say(_nothing(asked.pool, namespace))
        else:
            room = render.room() or (_WIDEST if output is Output.WIDE else render.WIDEST)
            sight = Sight(plane.caller.name, now, zone, room, signs_for(sys.stdout.encoding))
            for line in drawn(view, sight, with_namespace=not namespace):
                render.out(line)

    run.with_plane(work, context, who=output not in {Output.JSON, Output.YAML})


def signs_for(encoding: str | None) -> Signs:
    """Choose what the output can show."""
    try:
        "".join(getattr(BLOCKS, name) for name in Signs.__slots__).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def _of_pool(view: CalendarView, pool: str) -> CalendarView:
    rows = tuple(row for row in view.rows if not pool or row.pool == pool)
    return msgspec.structs.replace(view, rows=rows)


def _days_on(first: datetime, days: int, zone: Zone) -> datetime:
    """Go on by days of the clock, one of which may have an hour more or less."""
    local = zone.local(first)
    return first + (zone.midnight(local.date() + timedelta(days=days)) - zone.midnight(local.date()))


def _nothing(pool: str, namespace: str | None) -> str:
    where = f"in namespace {namespace}" if namespace else "in any namespace"
    what = f"pool {pool} has no seats" if pool else "there are no seats"
    return f"{what} {where}; `lcm get pools -A` lists pools"
