"""Checks that no owner books more than the limits allow, and that who has much does not go before who has nothing."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.scheduler.queue_plan import FAIR_STEP
from lcm.model.access.identity import Role
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedState

GREEDY: Final = "an owner above their limits, or before others whose turn it was"
TURN_MARGIN: Final = timedelta(minutes=10)
"""Waiting this much longer is no reason to be first: a plan takes a while, and so does a change of leaders."""
PASSED_AGAIN: Final = timedelta(minutes=5)
"""Of those whose turn comes at one moment, one may be refused and asked again: after this time it is passed over."""


def owner_is_within_limits(seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check a commit by which somebody books sessions: of all that they have, none is above their limits.

    Reservations are left out, so an owner may have less than this allows. The decision was made between the moment at
    which the session was admitted and that of the commit; whoever is above a limit is so at both.
    """
    if commit.audit is None or commit.audit.role is not Role.USER:
        return ()
    new = [turn.after for turn in commit.turns if turn.before is None and isinstance(turn.after, LabletSession)]
    return [
        violation(GREEDY, f"{one.spec.owner} has {excess}", one)
        for one in new
        if (excess := _excess(seen, one, commit.at)) and _excess(seen, one, one.metadata.created_at or commit.at)
    ]


def turn_is_fair(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check, when a session gets a worker at once, that nobody waits for the same whose turn it was before.

    The same is the same lab for the same time: where one fits, so does the other.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or before.status.worker_id or not after.status.worker_id or not is_asap(after):
        return ()
    own = _turn_of(seen, before)
    late = [one for one in seen.live_sessions() if _waits_for_the_same(one, after)]
    found = []
    for one in late:
        if _turn_of(seen, one) + TURN_MARGIN < own and turn.at - _created(one) > TURN_MARGIN:
            first = seen.passed_over.setdefault(one.metadata.uid, turn.at)
            if turn.at - first > PASSED_AGAIN:
                found.append(
                    violation(GREEDY, f"{one.metadata.name} waits, and {after.metadata.name} goes", one, after)
                )
    return found


def _excess(seen: ObservedState, new: LabletSession, now: datetime) -> str:
    """Return in words what an owner has too much of with a new session; empty if nothing."""
    limits = seen.limits
    own = [one for one in seen.live_sessions() if one.spec.owner == new.spec.owner]
    spans = [_span(one, now) for one in own]
    start, end = _span(new, now)
    if max(start, new.spec.give_up_at or start) > now + limits.horizon:
        return f"booked for {start}"
    waiting = [one for one in own if is_asap(one) and one.status.phase is SessionPhase.PENDING]
    if is_asap(new) and len(waiting) > limits.pending:
        return f"{len(waiting)} waiting"
    moments = [start, *(one for one, _ in spans if start <= one < end)]
    most = max(sum(first <= at < last for first, last in spans) for at in moments)
    if most > limits.live:
        return f"{most} at once"
    ahead = sum(first > now for first, _ in spans)
    return f"{ahead} ahead" if start > now and ahead > limits.ahead else ""


def _span(session: LabletSession, now: datetime) -> tuple[datetime, datetime]:
    start, end = session.spec.timeslot_start or now, session.status.ends_at or session.spec.timeslot_end
    return start, end or now + timedelta(minutes=session.spec.duration_minutes or 0)


def _waits_for_the_same(one: LabletSession, placed: LabletSession) -> bool:
    return (
        is_asap(one)
        and one.status.phase is SessionPhase.PENDING
        and one.status.worker_id is None
        and not one.status.retry_count
        and one.spec.owner != placed.spec.owner
        and one.spec.definition == placed.spec.definition
        and one.spec.duration_minutes == placed.spec.duration_minutes
        and one.spec.priority >= placed.spec.priority
    )


def _turn_of(seen: ObservedState, session: LabletSession) -> datetime:
    """Return the moment by which a session's turn is: the later, the more its owner has and waits for before it."""
    others = [one for one in seen.live_sessions() if one.spec.owner == session.spec.owner]
    served = sum(one.status.worker_id is not None and one.metadata.uid != session.metadata.uid for one in others)
    waiting = [one for one in others if is_asap(one) and one.status.phase is SessionPhase.PENDING]
    ahead = sum(_created(one) < _created(session) for one in waiting)
    return _created(session) + (served + ahead) * FAIR_STEP


def _created(session: LabletSession) -> datetime:
    assert session.metadata.created_at is not None, "it was admitted"
    return session.metadata.created_at
