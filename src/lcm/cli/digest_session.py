"""What matters most about a booking: where to connect, what is promised, what it waits for. Called by `digest`."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from lcm.cli import render
from lcm.cli.columns import at_risk, seat_of
from lcm.cli.digest_worker import Line
from lcm.model.reservation import Held, Reservation
from lcm.model.session import LabletSession, holds

_SHOWN: Final = 12
"""Of more held sessions than this a reservation tells the number only."""


def session_lines(session: LabletSession, now: datetime) -> Iterator[Line]:
    """Say how a session is, in a few lines."""
    spec, status = session.spec, session.status
    if status.outcome:
        yield "Outcome", f"{status.outcome}: {status.outcome_reason}" if status.outcome_reason else status.outcome
    if risk := at_risk(session):
        yield "At risk", risk.message or risk.reason
    yield from _where_to_connect(session)
    if status.progress:
        yield "Progress", f"{status.progress.percent}% {status.progress.step}: {status.progress.message}"
    if waiting := status.waiting:
        start = f", starts {render.relative(waiting.estimated_start, now)}" if waiting.estimated_start else ""
        yield "Waiting", f"number {waiting.queue_position}{start}: {waiting.basis}"
    if decision := status.last_decision:
        yield "Decision", f"{decision.action}: {decision.reason}"
    if spec.timeslot_start and spec.timeslot_end:
        yield "Slot", f"{render.relative(spec.timeslot_start, now)} to {render.when(spec.timeslot_end)}"
    else:
        yield "Slot", f"as soon as possible, for {spec.duration_minutes} minutes"
    if status.ends_at:
        yield "Ends", render.relative(status.ends_at, now)
    if claim := holds(session):
        yield "Claim", f"{render.when(claim.start)} to {render.when(claim.end)}, with start-up and clean-up"
    if status.cost_usd is not None:
        yield "Cost", f"{status.cost_usd} USD: its share of its worker while it was there"
    yield "Definition", spec.definition
    yield "Owner", spec.owner + (f", student {spec.student_email}" if spec.student_email else "")


def reservation_lines(reservation: Reservation, now: datetime) -> Iterator[Line]:
    """Say how a reservation is, in a few lines."""
    spec, status = reservation.spec, reservation.status
    yield "Sessions", f"{spec.count} of {spec.definition}: {status.sessions_made} made, {status.sessions_ended} ended"
    yield "Slot", f"{render.relative(spec.timeslot_start, now)} to {render.when(spec.timeslot_end)}"
    if spec.recurrence:
        yield "Again", f"every {spec.recurrence.every} until {spec.recurrence.until} ({spec.recurrence.time_zone})"
    for number, held in enumerate(status.held[:_SHOWN]):
        yield "" if number else "Held", _held(held)
    if len(status.held) > _SHOWN:
        yield "", f"and {len(status.held) - _SHOWN} more, until {render.when(status.ends_at)}"
    yield "Owner", spec.owner


def _held(held: Held) -> str:
    seat = f", seat {seat_of(held.seat)}" if held.seat else ""
    made = f", session {held.session}" if held.session else ""
    return f"{held.number}: {render.when(held.claim.start)} to {render.when(held.claim.end)}{seat}{made}"


def _where_to_connect(session: LabletSession) -> Iterator[Line]:
    status = session.status
    if status.access_url:
        yield "Connect", status.access_url
    for number, (name, port) in enumerate(sorted((status.allocated_ports or {}).items())):
        address = f", {status.access_urls[name]}" if name in status.access_urls else ""
        yield "" if number else "Ports", f"{port} {name}{address}"
    if status.worker_name:
        yield "Worker", status.worker_ref or status.worker_name
    if status.seat:
        yield "Seat", f"{seat_of(status.seat)}, whichever worker fills it"
