"""What became of a booking, in words, and how it goes on while somebody watches. Called by book, explain and extend."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final

from lcm.cli.output import exit_codes, render
from lcm.cli.output.columns import ports_label, seat_label
from lcm.cli.output.follow import watch_session
from lcm.cli.output.nouns import title
from lcm.cli.output.times import format_distance, format_for_paste, format_local, format_minutes, format_slot
from lcm.cli.output.zone import Zone
from lcm.control.plane.protocol import Plane
from lcm.model.base.clock import Clock
from lcm.model.kinds.placement import Explanation
from lcm.model.kinds.reservation import Reservation, occurrences
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionPhase, Waiting
from lcm.model.money.quotas import QuotaPage

_CENT: Final = Decimal("0.01")
_NEARLY: Final = 0.8
"""The share of a month's dollars at which their owner is warned."""


def describe_session(
    session: LabletSession, answer: Explanation | None, now: datetime, zone: Zone, *, dry_run: bool
) -> str:
    """Return what a session that was just booked was promised, in words."""
    spec, status, name = session.spec, session.status, session.metadata.name
    follow_it = "" if dry_run else f"; `lcm explain session {name}` shows more"
    if spec.timeslot_start and spec.timeslot_end:
        slot = format_slot(spec.timeslot_start, spec.timeslot_end, zone)
        promised = f"promised, planned worker {seat_label(status.seat)}" if status.seat else "booked"
        verb = "would be" if dry_run else "is"
        return f"{title(session)} {verb} {promised}: {slot} ({format_distance(spec.timeslot_start, now)}){follow_it}"
    long = format_minutes(spec.duration_minutes or 0)
    return f"{title(session)}, for {long}, {describe_start(answer, now, zone, dry_run=dry_run)}{follow_it}"


def describe_start(answer: Explanation | None, now: datetime, zone: Zone, *, dry_run: bool = False) -> str:
    """Return in words when a session that is wanted as soon as possible starts."""
    if answer is None:
        return "starts as soon as there is room"
    why = answer.decision.reason if answer.decision else answer.reason
    estimate = f": {describe_waiting(answer.waiting, now, zone) if answer.waiting else why}"
    where = answer.worker or (f"planned worker {seat_label(answer.seat)}" if answer.seat else "a worker")
    match answer.outcome:
        case "assign" | "placed":
            return f"{'would start' if dry_run else 'starts'} now on {where}"
        case "scale_up":
            return f"{'would wait' if dry_run else 'waits'} for a machine that is being started ({where}){estimate}"
        case "refuse":
            remedy = f"; {answer.remedy}" if answer.remedy else ""
            return (
                f"{'would wait' if dry_run else 'waits'}, because it cannot start at present: {answer.reason}{remedy}"
            )
    return f"{'would wait' if dry_run else 'waits'}{estimate}"


def describe_reservation(reservation: Reservation, now: datetime, zone: Zone, *, dry_run: bool) -> str:
    """Return what a reservation that was just booked holds, in words."""
    spec, name = reservation.spec, reservation.metadata.name
    slots = occurrences(spec)
    start, end = slots[0] if slots else (spec.timeslot_start, spec.timeslot_end)
    total = len(reservation.status.held) or len(slots) * spec.count
    promised = "promised" if reservation.status.held else "booked"
    again = ""
    if spec.recurrence:
        each = f"{spec.count} at a time, " if spec.count > 1 else ""
        again = f"; {each}{len(slots)} times until {spec.recurrence.until} in {spec.recurrence.time_zone} time"
    verb = "would be" if dry_run else "is"
    follow_it = "" if dry_run else f"; `lcm describe reservation {name}` shows more"
    return (
        f"{title(reservation)} {verb} {promised}, {total} sessions of {spec.definition}:"
        f" {format_slot(start, end, zone)} ({format_distance(start, now)}){again}{follow_it}"
    )


def describe_waiting(waiting: Waiting, now: datetime, zone: Zone) -> str:
    """Return the queue position, the estimated start and its basis, in words."""
    start = waiting.estimated_start
    about = (
        f", starts about {format_local(start, zone)} ({format_distance(start, now)})" if start else ", start not known"
    )
    return f"number {waiting.queue_position} in the queue{about}: {waiting.basis}"


def describe_price(found: Explanation) -> str:
    """Return what a booking will cost, in words; "" if it is not known."""
    if found.usd is None:
        return ""
    total = f"about {found.usd.quantize(_CENT)} USD"
    if found.sessions == 1:
        return f"{total}: its share of a worker, with start-up and clean-up"
    each = (found.usd / found.sessions).quantize(_CENT)
    return f"{total} for {found.sessions} sessions, {each} USD each: their shares of workers"


def describe_spending(quotas: QuotaPage) -> str:
    """Return how much of a month's dollars an owner has used, in words; "" while that is less than four fifths."""
    lines = [line for view in quotas.items if view.owner is not None for line in view.lines]
    found = next((one for one in lines if one.limit == "usd_per_month" and one.most), None)
    if found is None or not found.most or found.used < _NEARLY * found.most:
        return ""
    return (
        f"{found.used:.2f} of this month's {found.most:.0f} USD are spent or booked: what would cost more is refused; "
        "`lcm quota` shows more"
    )


def format_free_slots(slots: Sequence[tuple[datetime, datetime]], now: datetime, zone: Zone) -> Iterator[str]:
    """Yield slots as options that can be pasted after a command."""
    for start, end in slots:
        minutes = round((end - start).total_seconds() / 60)
        local = f"{zone.local(start):%a %H:%M %Z}"
        options = f"--at {format_for_paste(start, zone)} --for {format_minutes(minutes)}"
        yield f"{options}  # {local}, {format_distance(start, now)}"


async def watch_until_running(plane: Plane, session: LabletSession, clock: Clock, zone: Zone) -> None:
    """Print each change of phase, progress and queue position once until the session runs.

    Raise Impossible when it ends before.
    """
    reported: object = None
    async for now in watch_session(plane, session):
        if (key := _reported_state(now)) != reported:
            reported = key
            render.print_text(f"{zone.local(clock.now()):%H:%M:%S} {describe_state(now, clock.now(), zone)}")
        if now.status.phase is SessionPhase.RUNNING:
            _print_addresses(now)
            return
        if now.status.phase in SESSION_MACHINE.final:
            raise exit_codes.Impossible(
                f"{title(session)} has ended before it ran: it is {now.status.phase}; "
                f"`lcm describe {title(session)}` shows why"
            )
    raise exit_codes.Impossible(f"{title(session)} is gone")


def describe_state(session: LabletSession, now: datetime, zone: Zone) -> str:
    """Return in one line how far a session has got."""
    status = session.status
    match status.phase:
        case SessionPhase.PENDING if status.waiting:
            more = describe_waiting(status.waiting, now, zone)
        case SessionPhase.INSTANTIATING if status.progress:
            more = f"{status.progress.percent}% {status.progress.step}: {status.progress.message}"
        case SessionPhase.RUNNING:
            ends = f"until {format_local(status.ends_at, zone)}" if status.ends_at else ""
            ports = "" if status.access_urls else ports_label(session)
            more = ", ".join(filter(None, [status.access_url or "", ends, ports]))
        case SessionPhase.SCHEDULED:
            worker = f"on worker {status.worker_name}" if status.worker_name else ""
            seat = f"planned worker {seat_label(status.seat)}" if status.seat else ""
            more = ", ".join(filter(None, [worker, seat]))
        case _:
            more = status.outcome_reason or (status.history[-1].reason if status.history else "")
    return f"{status.phase}: {render.sanitize(more)}" if more else str(status.phase)


def _print_addresses(session: LabletSession) -> None:
    """Print the address of each port of a running session, ready to paste."""
    addresses = session.status.access_urls
    widest = max(map(render.text_width, addresses), default=0)
    for name, address in sorted(addresses.items()):
        render.print_line(f"  {render.pad(render.sanitize(name), widest)}  {render.sanitize(address)}")


def _reported_state(session: LabletSession) -> object:
    """Return what a watching person is told about; a small change of the estimate is not reported."""
    status = session.status
    progress = status.progress and (status.progress.step, status.progress.percent, status.progress.message)
    waiting = status.waiting and status.waiting.queue_position
    return status.phase, progress, waiting, status.worker_name, status.access_url
