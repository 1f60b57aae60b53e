"""What became of a booking, in words, and what comes of it while somebody looks on. Called by book, explain, extend."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from lcm.cli.output import connection, render
from lcm.cli.output.columns import ports_of, seat_of
from lcm.cli.output.follow import Wheres, follow, named
from lcm.cli.output.nouns import title
from lcm.cli.output.times import Zone, length, near, pasted, shown, slot_shown
from lcm.control.plane.protocol import Plane, ref_of
from lcm.model.base.clock import Clock
from lcm.model.kinds.placement import Explanation
from lcm.model.kinds.reservation import Reservation, occurrences
from lcm.model.kinds.session import SESSION, LabletSession, SessionPhase, Waiting

_GOAL = SessionPhase.RUNNING


def session_said(
    session: LabletSession, answer: Explanation | None, now: datetime, zone: Zone, *, dry_run: bool
) -> str:
    """Say what a session that was just booked can count on."""
    spec, status, name = session.spec, session.status, session.metadata.name
    follow_it = "" if dry_run else f"; `lcm explain session {name}` tells more"
    if spec.timeslot_start and spec.timeslot_end:
        slot = slot_shown(spec.timeslot_start, spec.timeslot_end, zone)
        promised = f"promised, seat {seat_of(status.seat)}" if status.seat else "booked"
        verb = "would be" if dry_run else "is"
        return f"{title(session)} {verb} {promised}: {slot} ({near(spec.timeslot_start, now)}){follow_it}"
    long = length(spec.duration_minutes or 0)
    return f"{title(session)}, for {long}, {soon_said(answer, now, zone, dry_run=dry_run)}{follow_it}"


def soon_said(answer: Explanation | None, now: datetime, zone: Zone, *, dry_run: bool = False) -> str:
    """Say when a session starts that is wanted as soon as possible."""
    if answer is None:
        return "starts as soon as there is room"
    why = answer.decision.reason if answer.decision else answer.reason
    estimate = f": {waiting_said(answer.waiting, now, zone) if answer.waiting else why}"
    where = answer.worker or (f"seat {seat_of(answer.seat)}" if answer.seat else "a worker")
    match answer.outcome:
        case "assign" | "placed":
            return f"{'would start' if dry_run else 'starts'} now on {where}"
        case "scale_up":
            return f"{'would wait' if dry_run else 'waits'} for a machine that is started for it ({where}){estimate}"
        case "refuse":
            remedy = f"; {answer.remedy}" if answer.remedy else ""
            return f"{'would wait' if dry_run else 'waits'}, and could not start as things are: {answer.reason}{remedy}"
    return f"{'would wait' if dry_run else 'waits'}{estimate}"


def reservation_said(reservation: Reservation, now: datetime, zone: Zone, *, dry_run: bool) -> str:
    """Say what a reservation that was just booked holds."""
    spec, name = reservation.spec, reservation.metadata.name
    slots = occurrences(spec)
    start, end = slots[0] if slots else (spec.timeslot_start, spec.timeslot_end)
    total = len(reservation.status.held) or len(slots) * spec.count
    promised = "promised" if reservation.status.held else "booked"
    again = ""
    if spec.recurrence:
        each = f"{spec.count} at a time, " if spec.count > 1 else ""
        again = f"; {each}{len(slots)} times until {spec.recurrence.until} by the clocks of {spec.recurrence.time_zone}"
    verb = "would be" if dry_run else "is"
    follow_it = "" if dry_run else f"; `lcm describe reservation {name}` tells more"
    return (
        f"{title(reservation)} {verb} {promised}, {total} sessions of {spec.definition}:"
        f" {slot_shown(start, end, zone)} ({near(start, now)}){again}{follow_it}"
    )


def waiting_said(waiting: Waiting, now: datetime, zone: Zone) -> str:
    """Say what somebody who waits wants to know."""
    start = waiting.estimated_start
    about = f", starts about {shown(start, zone)} ({near(start, now)})" if start else ", start not known"
    return f"number {waiting.queue_position} in line{about}: {waiting.basis}"


def free_slots(slots: Sequence[tuple[datetime, datetime]], now: datetime, zone: Zone) -> Iterator[str]:
    """Write slots so that they can be pasted behind a command."""
    for start, end in slots:
        minutes = round((end - start).total_seconds() / 60)
        local = f"{zone.local(start):%a %H:%M %Z}"
        yield f"--at {pasted(start, zone)} --for {length(minutes)}  # {local}, {near(start, now)}"


async def watch(plane: Plane, session: LabletSession, clock: Clock, zone: Zone) -> None:
    """Print each change of phase, progress and place in line once, until it runs; Impossible when it ends before."""
    told: object = None
    wheres: Wheres = {LabletSession: named(session.metadata.name)}
    async for changes in follow(plane, wheres, namespace=ref_of(session).namespace):
        for change in changes:
            if not isinstance(change.resource, LabletSession):
                raise connection.Impossible(f"{title(session)} is gone")
            now = change.resource
            if (key := _key(now)) != told:
                told = key
                render.tell(f"{zone.local(clock.now()):%H:%M:%S} {state_said(now, clock.now(), zone)}")
            if now.status.phase is _GOAL:
                _tell_addresses(now)
                return
            if now.status.phase in SESSION.final:
                raise connection.Impossible(f"{title(session)} has ended before it ran: it is {now.status.phase}")


def state_said(session: LabletSession, now: datetime, zone: Zone) -> str:
    """Say in a line where a session is on its way."""
    status = session.status
    match status.phase:
        case SessionPhase.PENDING if status.waiting:
            more = waiting_said(status.waiting, now, zone)
        case SessionPhase.INSTANTIATING if status.progress:
            more = f"{status.progress.percent}% {status.progress.step}: {status.progress.message}"
        case SessionPhase.RUNNING:
            ends = f"until {shown(status.ends_at, zone)}" if status.ends_at else ""
            ports = "" if status.access_urls else ports_of(session)
            more = ", ".join(filter(None, [status.access_url or "", ends, ports]))
        case SessionPhase.SCHEDULED:
            more = _placed(session)
        case _:
            more = status.outcome_reason or (status.history[-1].reason if status.history else "")
    return f"{status.phase}: {render.clean(more)}" if more else str(status.phase)


def _tell_addresses(session: LabletSession) -> None:
    """Print where each port of a session that runs is reached, so that it can be pasted."""
    addresses = session.status.access_urls
    widest = max(map(render.width, addresses), default=0)
    for name, address in sorted(addresses.items()):
        render.out(f"  {render.padded(render.clean(name), widest)}  {render.clean(address)}")


def _placed(session: LabletSession) -> str:
    status = session.status
    worker = f"on worker {status.worker_name}" if status.worker_name else ""
    seat = f"seat {seat_of(status.seat)}" if status.seat else ""
    return ", ".join(filter(None, [worker, seat]))


def _key(session: LabletSession) -> object:
    """Give what a person who looks on is told about; an estimate that moves a little is no news."""
    status = session.status
    progress = status.progress and (status.progress.step, status.progress.percent, status.progress.message)
    waiting = status.waiting and status.waiting.queue_position
    return status.phase, progress, waiting, status.worker_name, status.access_url
