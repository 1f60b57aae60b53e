"""Checks that promises are kept or their breach is reported: timed sessions keep their claims and start in time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.resource import find_condition
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession, SessionCondition, SessionPhase
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.capacity import NO_CAPACITY
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState, is_live

END_GRACE: Final = timedelta(minutes=30)
"""A change of leaders, or a while without any process."""
MAKING_GRACE: Final = timedelta(minutes=30)
_LASTING: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})
_NEVER: Final = frozenset({SessionPhase.EXPIRED, SessionPhase.FAILED})


def booking_is_promised(_seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a timed session is created with a claim on a seat or a worker: else it had to be refused."""
    after = turn.after
    if turn.before is not None or after is None or after.spec.timeslot_start is None or _has_promise(after):
        return ()
    return [violation(NO_CAPACITY, "it was booked, and nothing is promised to it", after)]


def promise_is_not_taken_back(_seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a timed session that has a claim on a seat or a worker keeps one as long as it lives.

    A session whose condition AtRisk was set, in the same commit or before, is excused.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or not is_live(after) or after.spec.timeslot_start is None:
        return ()
    if (
        not _has_promise(before)
        or _has_promise(after)
        or find_condition(after.status.conditions, SessionCondition.AT_RISK)
    ):
        return ()
    return [violation(NO_CAPACITY, "it was promised, and is not any more", after)]


def seat_stays_with_its_worker(_seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a session that has a worker is not moved to another seat: its lab would stay on that worker."""
    before, after = turn.before, turn.after
    if before is None or after is None or before.status.seat is None or before.status.worker_id is None:
        return ()
    if after.status.worker_id != before.status.worker_id or after.status.seat in (None, before.status.seat):
        return ()
    return [violation(NO_CAPACITY, f"it is on a worker, and its seat is {after.status.seat.number} now", after)]


def reservation_keeps_its_claims(_seen: ObservedState, turn: ObservedChange[Reservation]) -> Sequence[Violation]:
    """Check that a reservation keeps each claim at its time, on some seat, until a session takes it over."""
    before, after = turn.before, turn.after
    if before is None or after is None or after.status.phase not in _LASTING:
        return ()
    kept = {one.number: one for one in after.status.held}
    lost = [one.number for one in before.status.held if one.session is None and not _is_kept(one, kept.get(one.number))]
    return [violation(NO_CAPACITY, f"number {number} was promised, and is not any more", after) for number in lost]


def late_start_has_its_reason(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a timed session runs when its slot begins, or says why not; without mishaps all must run in time.

    Its status says why when it was tried more than once, or has an error, or its last step or its condition AtRisk
    says so. A cancelled session is not late, and one that a restore put back may be as late as that.
    """
    before, after = turn.before, turn.after
    if after is None or before is None or before.status.phase is after.status.phase or not _is_late(turn, after):
        return ()
    if seen.was_put_back(after):
        return ()
    why = _late_reason(after)
    if why and not seen.calm:
        return ()
    told = f"because {why}, and nothing has gone wrong in this world" if why else "and its story does not say why"
    return [
        violation(NO_CAPACITY, f"{after.status.phase} at {turn.at:%H:%M:%S}, {_describe_slot(after)}, {told}", after)
    ]


def session_ends_in_time(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that no session runs on long after its end, in the time that was promised to the next one."""
    running = [one for one in seen.live_sessions() if one.status.phase is SessionPhase.RUNNING and one.status.ends_at]
    return [
        violation(NO_CAPACITY, f"it still runs, and its end was {one.status.ends_at:%d %H:%M}", one)
        for one in running
        if one.status.ends_at is not None and now - max(one.status.ends_at, seen.restored_at) > END_GRACE
    ]


def reservation_is_fulfilled(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that whatever a reservation holds becomes a session soon after its claim has begun.

    A reservation whose `last_error` says why its sessions cannot be created is excused.
    """
    lasting = [one for one in seen.reservations.values() if one.status.phase in _LASTING and not one.status.last_error]
    return [
        violation(
            NO_CAPACITY, f"nothing was made of number {held.number}, claimed from {held.claim.start:%d %H:%M}", one
        )
        for one in lasting
        for held in one.status.held
        if held.session is None and now - max(held.claim.start, seen.restored_at) > MAKING_GRACE
    ]


def _is_kept(before: ReservationClaim, after: ReservationClaim | None) -> bool:
    return after is not None and (after.session is not None or (after.claim == before.claim and after.seat is not None))


def _has_promise(session: LabletSession) -> bool:
    status = session.status
    return status.claim is not None and (status.seat is not None or status.worker_id is not None)


def _is_late(turn: ObservedChange[LabletSession], session: LabletSession) -> bool:
    start, phase = session.spec.timeslot_start, session.status.phase
    if start is None or turn.before is None:
        return False
    ran = [line for line in session.status.history if line.phase == SessionPhase.RUNNING]
    if phase is SessionPhase.RUNNING:
        return len(ran) == 1 and turn.at > start
    return phase in SESSION_MACHINE.final & _NEVER and not ran


def _late_reason(session: LabletSession) -> str:
    status = session.status
    risk = find_condition(status.conditions, SessionCondition.AT_RISK)
    if status.last_error:
        return status.last_error
    if status.retry_count:
        return f"it was tried {status.retry_count + 1} times"
    if ", late: " in status.history[-1].reason:
        return status.history[-1].reason
    return f"{risk.reason}: {risk.message}" if risk is not None and risk.message else ""


def _describe_slot(session: LabletSession) -> str:
    return f"its slot begins {session.spec.timeslot_start:%H:%M}"
