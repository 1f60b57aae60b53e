"""Checks that a machine smaller than promised is noticed, and that sessions that do not fit on it are told so."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.resource import Condition, Truth, find_condition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionCondition, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.capacity import NO_CAPACITY, OVERCOMMIT
from world.checks.violation import violation
from world.observed import ObservedState

TOLD_GRACE: Final = timedelta(minutes=20)
"""A change of leaders, or a while without any process."""
NEAR: Final = timedelta(minutes=30)
"""A promised session that begins later than this may still find another place."""
TOO_SMALL: Final = "SeatTooSmall"
_P: Final = WorkerPhase
_SIZED: Final = frozenset({_P.READY, _P.ACTIVE, _P.DRAINING})
_LEAVES: Final = frozenset({SessionPhase.COLLECTING, SessionPhase.STOPPING})


def size_is_seen(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that no worker claims for long to hold more than its machine has, while its CML answers."""
    return [
        violation(OVERCOMMIT, f"{worker.metadata.name} has less than it is said to hold", worker)
        for worker in seen.workers.values()
        if seen.duration_of(("size", worker.metadata.uid), now, is_so=_is_machine_smaller(worker, stage)) > TOLD_GRACE
    ]


def misfits_are_told(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that, on a worker smaller than promised, the sessions without condition AtRisk fit together.

    Counted are the sessions on it, and those that were promised its seat from soon on: from now to their end,
    or to the end of their claims without the time to clean up, which is a reserve. A short misfit is excused.
    """
    found = []
    for uid in seen.small:
        worker = seen.workers[uid]
        untold = _untold_misfits(seen, worker, now)
        if seen.duration_of(("misfits", uid), now, is_so=bool(untold)) > TOLD_GRACE:
            found.append(violation(NO_CAPACITY, f"more is on {worker.metadata.name} than it holds", worker, *untold))
    return found


def reason_is_true(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that no session is told for long that its worker is too small when the worker is large enough."""
    return [
        violation(NO_CAPACITY, f"it is told {TOO_SMALL}, which has not been so for long", one)
        for several in seen.on_worker.values()
        for one in several.values()
        if seen.duration_of(("untrue", one.metadata.uid), now, is_so=_has_false_reason(seen, one)) > TOLD_GRACE
    ]


def _untold_misfits(seen: ObservedState, worker: LabWorker, now: datetime) -> Sequence[LabletSession]:
    """Return the sessions that were told nothing and do not fit together; empty if they fit."""
    room = worker.status.capacity
    if worker.status.phase not in _SIZED or room is None:
        return ()
    here = [one for one in seen.on_worker[worker.metadata.uid].values() if one.status.phase not in _LEAVES]
    coming = [
        one for one in _promised_sessions(seen, worker) if one.status.claim and one.status.claim.start < now + NEAR
    ]
    untold = [one for one in (*here, *coming) if _risk_condition(one) is None]
    return () if _fits(untold, room, now) else untold


def _is_machine_smaller(worker: LabWorker, stage: Environment) -> bool:
    known = find_condition(worker.status.conditions, WorkerCondition.REACHABLE)
    said, status = worker.status.capacity, worker.status
    if said is None or status.phase not in _SIZED or known is None or known.status is not Truth.TRUE:
        return False
    cml = stage.cml(status.ec2.instance_id)
    has = cml.machine if cml else None
    return has is not None and (has.cpu_count * 1000 < said.cpu_millis or has.memory_mb < said.memory_mb)


def _promised_sessions(seen: ObservedState, worker: LabWorker) -> Iterable[LabletSession]:
    """Return the sessions that were promised the seat that a worker fills, and are on no worker yet."""
    owner = worker.metadata.owner
    pool = seen.objects.get(f"worker-pools/{worker.metadata.namespace}/{owner.name}") if owner else None
    if not isinstance(pool, LabWorkerPool):
        return ()
    mine = {one.number for one in pool.status.seats if one.worker_id == worker.metadata.uid}
    seated = seen.in_pool[pool.metadata.name].values()
    return [
        one for one in seated if one.status.worker_id is None and one.status.seat and one.status.seat.number in mine
    ]


def _fits(sessions: Iterable[LabletSession], room: Amount, now: datetime) -> bool:
    claims = [_remaining_claim(one, one.status.claim, now) for one in sessions if one.status.claim]
    return all(level.within(room) for level in Profile.of(claims).levels)


def _remaining_claim(session: LabletSession, claim: Claim, now: datetime) -> Claim:
    end = claim.end - CLEAN_UP_TIME
    return msgspec.structs.replace(claim, start=max(claim.start, now), end=min(end, session.status.ends_at or end))


def _risk_condition(session: LabletSession) -> Condition | None:
    known = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    return known if known is not None and known.status is Truth.TRUE else None


def _has_false_reason(seen: ObservedState, session: LabletSession) -> bool:
    risk = _risk_condition(session)
    return risk is not None and risk.reason == TOO_SMALL and not _is_worker_small(seen, session)


def _is_worker_small(seen: ObservedState, session: LabletSession) -> bool:
    """Return whether the worker that a session is on, or any that fills its seat, holds less than it should."""
    if session.status.worker_id is not None:
        return session.status.worker_id in seen.small
    return any(session in _promised_sessions(seen, seen.workers[uid]) for uid in seen.small)
