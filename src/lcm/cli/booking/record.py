"""`lcm record`: a day of a live system's history as a timetable, which `lcm plan` plays again under other settings."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.documents.texts import write
from lcm.cli.output import connection, render
from lcm.cli.output.follow import everything
from lcm.cli.output.options import ContextName
from lcm.cli.output.times import Zone, day_of, terminal_zone
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Fault, Forbidden, Invalid, Refused, Stuck
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.rules import YEARS
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.plan.recording import Failure, History, Recording, failed, recorded
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.plane.transport import Line


File = Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it, as YAML; - prints it.")]
Day = Annotated[str | None, typer.Option("--day", metavar="DATE", help="Which day, such as 2026-11-15; else today.")]
Days = Annotated[int, typer.Option("--days", metavar="N", help="So many days from it on.", min=1, max=60)]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is there.")]
_EVENTS: Final = 1_000
_SHOWN: Final = 20


class _Aside(msgspec.Struct, frozen=True):
    """What is not in the objects themselves."""

    extensions: Mapping[str, Sequence[datetime]] = {}
    failures: Sequence[Failure] = ()
    audited: bool = True


class _Step(msgspec.Struct, frozen=True):
    """What is told of a worker's step."""

    worker_name: str = ""
    old_phase: str = ""
    new_phase: str = ""
    reason: str = ""


def record(file: File, *, day: Day = None, days: Days = 1, force: Force = False, context: ContextName = None) -> None:
    """Write a day of the live system down as a timetable: `lcm plan FILE` plays it again, under other settings.

    Sessions keep their slots and the moments at which they were booked, extended and cancelled, those in the archive
    too; labs, pools and prices are as they are now. What was deleted is not in it. For those who run the system.
    """
    if not force and str(file) != "-" and file.exists():
        raise Invalid(Fault(str(file), "is there already", "name another file, or say --force"))
    since, until = _span(day, days, SystemClock().now(), terminal_zone())
    connection.with_plane(_check_role, context, who=True)
    aside = connection.with_line(lambda line: _aside(line, since, until), context)
    made = recorded(connection.with_plane(lambda plane: _history(plane, since, until, aside), context))
    if not made.sessions:
        raise Refused(f"no session was wanted between {_text(since)} and {_text(until)}; choose another with --day")
    text = "".join(f"# {line}\n" for line in _remarks(made, since, until, aside)) + write(made.timetable)
    if str(file) == "-":
        render.out(text.rstrip("\n"))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Stuck("NotRecorded", f"{file} cannot be written: {error.strerror}") from error
    render.out(f"{file}: {made.sessions} sessions; `lcm plan {file}` plays them again")
    for track in made.without_pool:
        render.say(f"no pool serves track {track}: add one to `fleet` in {file} before you plan", colour="yellow")


def _span(day: str | None, days: int, now: datetime, zone: Zone) -> tuple[datetime, datetime]:
    first = day_of(day, "--day") if day else zone.local(now).date()
    if not YEARS[0] <= first.year <= YEARS[1]:
        raise Invalid(
            Fault("--day", f"{first} is too far away", f"use a day between the years {YEARS[0]} and {YEARS[1]}")
        )
    return zone.midnight(first), zone.midnight(first + timedelta(days=days))


async def _check_role(plane: Plane) -> None:
    if plane.caller.role not in SEES_ALL:
        raise Forbidden("only those who run the system see what everybody wanted")


async def _history(plane: Plane, since: datetime, until: datetime, aside: _Aside) -> History:
    return History(
        since=since,
        until=until,
        definitions=(await everything(plane, LabletDefinition)).items,
        templates=(await everything(plane, WorkerTemplate)).items,
        pools=(await everything(plane, LabWorkerPool)).items,
        sessions=(
            *(await everything(plane, LabletSession, archived=True)).items,
            *(await everything(plane, LabletSession)).items,
        ),
        reservations=(await everything(plane, Reservation)).items,
        workers=(await everything(plane, LabWorker)).items,
        extensions=aside.extensions,
        failures=aside.failures,
    )


async def _aside(line: "Line", since: datetime, until: datetime) -> _Aside:
    failures = await _failures(line)
    try:
        return _Aside(await _extensions(line, since, until), failures)
    except Forbidden:
        return _Aside({}, failures, audited=False)


async def _extensions(line: "Line", since: datetime, until: datetime) -> Mapping[str, Sequence[datetime]]:
    """Read when sessions were extended, from the audit; of one that began earlier, or ended later, too."""
    from lcm.control.plane.transport import read  # noqa: PLC0415 - httpx is loaded by commands that talk, and only then
    from lcm.control.plane.wire import AuditList  # noqa: PLC0415 - likewise

    query = {"since": _text(since - timedelta(days=1)), "until": _text(until + timedelta(days=1))}
    query |= {"kind": LabletSession.__name__, "limit": "500"}
    found: dict[str, list[datetime]] = {}
    cursor: str | None = ""
    while cursor is not None:
        asked = query | ({"cursor": cursor} if cursor else {})
        page = read(await line.ask("GET", "/api/audit", query=asked), AuditList)
        for one in page.items:
            for deed in one.deeds:
                if deed.verb == "extend":
                    found.setdefault(deed.name, []).append(one.at)
        cursor = page.next
    return found


async def _failures(line: "Line") -> Sequence[Failure]:
    """Read which machines failed lately, from events; workers that are still there tell their own."""
    from lcm.control.plane.client_streams import Wish, recent  # noqa: PLC0415 - likewise

    page = await recent(line, Wish(event_types="worker.status.updated"), limit=_EVENTS)
    steps = [(one.time, msgspec.json.decode(one.data, type=_Step)) for one in page.items]
    return [
        Failure(at, step.worker_name, f"{step.new_phase}: {step.reason}")
        for at, step in steps
        if failed(step.old_phase, step.new_phase)
    ]


def _remarks(made: Recording, since: datetime, until: datetime, aside: _Aside) -> Iterator[str]:
    yield f"What was wanted from {_text(since)} to {_text(until)}, written by `lcm record`."
    if not aside.audited:
        yield "When sessions were extended is a guess: only administrators may read the audit."
    if made.failures:
        rate = len(made.failures) / ((until - since) / timedelta(hours=1))
        yield f"Machines failed {len(made.failures)} times; `--faults {rate:.2g}` plays about as many mishaps an hour:"
        for one in made.failures[:_SHOWN]:
            yield render.escaped(" ".join(f"  {_text(one.at)} {one.worker} {one.why}".split()))


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
