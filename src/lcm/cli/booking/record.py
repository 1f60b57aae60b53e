"""`lcm record`: a day of a live system's history as a timetable, which `lcm plan` simulates under other settings."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from lcm.cli.documents.texts import write_document
from lcm.cli.fleet.audit import read_audit
from lcm.cli.output import connection, render
from lcm.cli.output.follow import read_all
from lcm.cli.output.options import ContextName
from lcm.cli.output.times import parse_day
from lcm.cli.output.zone import Zone, current_zone
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import SEES_ALL
from lcm.model.base.errors import Fault, Forbidden, Invalid, Refused, Stuck
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.rules import ALLOWED_YEARS
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.plan.recording import History, MachineFailure, Recording, is_failure, record_timetable
from lcm.system.clock import SystemClock

if TYPE_CHECKING:
    from lcm.control.plane.transport import ApiConnection


File = Annotated[Path, typer.Argument(metavar="FILE", help="YAML file to write; - prints to standard output.")]
Day = Annotated[
    str | None, typer.Option("--day", metavar="DATE", help="First day, such as 2026-11-15; default: today.")
]
Days = Annotated[int, typer.Option("--days", metavar="N", help="Number of days.", min=1, max=60)]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
_MOST_EVENTS: Final = 1_000
_SHOWN: Final = 20


class _ExtraHistory(msgspec.Struct, frozen=True):
    """History that the objects themselves do not hold."""

    extensions: Mapping[str, Sequence[datetime]] = {}
    failures: Sequence[MachineFailure] = ()
    audited: bool = True


class _WorkerStep(msgspec.Struct, frozen=True):
    """The fields of a worker's phase change that are read from an event."""

    worker_name: str = ""
    old_phase: str = ""
    new_phase: str = ""
    reason: str = ""


def record(file: File, *, day: Day = None, days: Days = 1, force: Force = False, context: ContextName = None) -> None:
    """Write a day of the live system's history as a timetable: `lcm plan FILE` simulates it under other settings.

    Sessions keep their slots and the moments at which they were booked, extended and cancelled, archived sessions
    included; labs, pools and prices are as they are now. Deleted objects are not included. For operators.
    """
    if not force and str(file) != "-" and file.exists():
        raise Invalid(Fault(str(file), "exists already", "name another file, or add --force"))
    since, until = _span(day, days, SystemClock().now(), current_zone())
    connection.with_plane(_check_role, context, who=True)
    extra = connection.with_connection(lambda line: _read_extra_history(line, since, until), context)
    made = record_timetable(connection.with_plane(lambda plane: _read_history(plane, since, until, extra), context))
    if not made.sessions:
        raise Refused(
            f"no session was booked from {_format_utc(since)} to {_format_utc(until)}; choose another day with --day"
        )
    text = "".join(f"# {line}\n" for line in _header_comments(made, since, until, extra)) + write_document(
        made.timetable
    )
    if str(file) == "-":
        render.print_line(text.rstrip("\n"))
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Stuck("NotRecorded", f"{file} cannot be written: {error.strerror}") from error
    render.print_line(f"{file}: {made.sessions} sessions; `lcm plan {file}` simulates them")
    for track in made.without_pool:
        render.print_message(
            f"no pool serves track {track}: add one to `fleet` in {file} before you plan", colour="yellow"
        )


def _span(day: str | None, days: int, now: datetime, zone: Zone) -> tuple[datetime, datetime]:
    first = parse_day(day, "--day") if day else zone.local(now).date()
    if not ALLOWED_YEARS[0] <= first.year <= ALLOWED_YEARS[1]:
        raise Invalid(
            Fault(
                "--day",
                f"{first} is too far away",
                f"use a day between the years {ALLOWED_YEARS[0]} and {ALLOWED_YEARS[1]}",
            )
        )
    return zone.midnight(first), zone.midnight(first + timedelta(days=days))


async def _check_role(plane: Plane) -> None:
    if plane.caller.role not in SEES_ALL:
        raise Forbidden("only operators and administrators may read everybody's sessions")


async def _read_history(plane: Plane, since: datetime, until: datetime, extra: _ExtraHistory) -> History:
    return History(
        since=since,
        until=until,
        definitions=(await read_all(plane, LabletDefinition)).items,
        templates=(await read_all(plane, WorkerTemplate)).items,
        pools=(await read_all(plane, LabWorkerPool)).items,
        sessions=(
            *(await read_all(plane, LabletSession, archived=True)).items,
            *(await read_all(plane, LabletSession)).items,
        ),
        reservations=(await read_all(plane, Reservation)).items,
        workers=(await read_all(plane, LabWorker)).items,
        extensions=extra.extensions,
        failures=extra.failures,
    )


async def _read_extra_history(line: "ApiConnection", since: datetime, until: datetime) -> _ExtraHistory:
    failures = await _read_failures(line)
    try:
        return _ExtraHistory(await _read_extensions(line, since, until), failures)
    except Forbidden:
        return _ExtraHistory({}, failures, audited=False)


async def _read_extensions(line: "ApiConnection", since: datetime, until: datetime) -> Mapping[str, Sequence[datetime]]:
    """Read from the audit when sessions were extended.

    A day more on each side covers sessions that overlap the span.
    """
    query = {"since": _format_utc(since - timedelta(days=1)), "until": _format_utc(until + timedelta(days=1))}
    found: dict[str, list[datetime]] = {}
    for one in await read_audit(line, query | {"kind": LabletSession.__name__}):
        for deed in one.deeds:
            if deed.verb == "extend":
                found.setdefault(deed.name, []).append(one.at)
    return found


async def _read_failures(line: "ApiConnection") -> Sequence[MachineFailure]:
    """Read from events which machines failed lately; workers that still exist report their own failures."""
    from lcm.control.plane.client_streams import EventSelection, read_recent  # noqa: PLC0415 - likewise

    page = await read_recent(line, EventSelection(event_types="worker.status.updated"), limit=_MOST_EVENTS)
    steps = [(one.time, msgspec.json.decode(one.data, type=_WorkerStep)) for one in page.items]
    return [
        MachineFailure(at, step.worker_name, f"{step.new_phase}: {step.reason}")
        for at, step in steps
        if is_failure(step.old_phase, step.new_phase)
    ]


def _header_comments(made: Recording, since: datetime, until: datetime, extra: _ExtraHistory) -> Iterator[str]:
    yield f"Sessions booked from {_format_utc(since)} to {_format_utc(until)}, written by `lcm record`."
    if not extra.audited:
        yield "The times of extensions are estimates: only administrators may read the audit."
    if made.failures:
        rate = len(made.failures) / ((until - since) / timedelta(hours=1))
        yield f"Machines failed {len(made.failures)} times; `--faults {rate:.2g}` simulates about as many failures:"
        for one in made.failures[:_SHOWN]:
            yield render.escape_json(" ".join(f"  {_format_utc(one.at)} {one.worker} {one.why}".split()))


def _format_utc(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
