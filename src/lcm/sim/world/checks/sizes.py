"""A machine that turns out smaller than was promised: it is seen, and those who do not fit on it are told so."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.resource import Condition, Truth, condition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import CLEAN_UP, LabletSession, SessionCondition, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.sim.world.checks.capacity import NO_CAPACITY, OVERCOMMIT
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Seen
from lcm.sim.world.stage import Stage

TOLD_GRACE: Final = timedelta(minutes=20)
"""A change of leaders, or all of ours being away for a while."""
NEAR: Final = timedelta(minutes=30)
"""Of what is only promised, what begins later may still find another place."""
TOO_SMALL: Final = "SeatTooSmall"
_P: Final = WorkerPhase
_SIZED: Final = frozenset({_P.READY, _P.ACTIVE, _P.DRAINING})
_LEAVES: Final = frozenset({SessionPhase.COLLECTING, SessionPhase.STOPPING})


def size_is_seen(seen: Seen, stage: Stage, now: datetime) -> Sequence[Violation]:
    """See that no worker is said for long to hold more than its machine has, while its CML answers."""
    return [
        violation(OVERCOMMIT, f"{worker.metadata.name} has less than it is said to hold", worker)
        for worker in seen.workers.values()
        if seen.lasts(("size", worker.metadata.uid), now, is_so=_is_less(worker, stage)) > TOLD_GRACE
    ]


def misfits_are_told(seen: Seen, _stage: Stage, now: datetime) -> Sequence[Violation]:
    """See that on a worker smaller than promised those fit together who are not told that they are AtRisk.

    Looked at is who is on it, and who was promised its seat from soon on, from this moment to their end, or to that of
    their claims but for the time to clean up: what is left then is a reserve. Excused is what has been so for a short
    while only.
    """
    found = []
    for uid in seen.small:
        worker = seen.workers[uid]
        untold = _untold(seen, worker, now)
        if seen.lasts(("misfits", uid), now, is_so=bool(untold)) > TOLD_GRACE:
            found.append(violation(NO_CAPACITY, f"more is on {worker.metadata.name} than it holds", worker, *untold))
    return found


def reason_is_true(seen: Seen, _stage: Stage, now: datetime) -> Sequence[Violation]:
    """See that nobody is told for long that their worker is too small where it holds what is on it and promised."""
    return [
        violation(NO_CAPACITY, f"it is told {TOO_SMALL}, which has not been so for long", one)
        for several in seen.on_worker.values()
        for one in several.values()
        if seen.lasts(("untrue", one.metadata.uid), now, is_so=_is_told_untruly(seen, one)) > TOLD_GRACE
    ]


def _untold(seen: Seen, worker: LabWorker, now: datetime) -> Sequence[LabletSession]:
    """Give those who are not told of anything and do not fit together, if they do not."""
    room = worker.status.capacity
    if worker.status.phase not in _SIZED or room is None:
        return ()
    here = [one for one in seen.on_worker[worker.metadata.uid].values() if one.status.phase not in _LEAVES]
    coming = [one for one in _promised(seen, worker) if one.status.claim and one.status.claim.start < now + NEAR]
    untold = [one for one in (*here, *coming) if _risk(one) is None]
    return () if _fit(untold, room, now) else untold


def _is_less(worker: LabWorker, stage: Stage) -> bool:
    known = condition(worker.status.conditions, WorkerCondition.REACHABLE)
    said, status = worker.status.capacity, worker.status
    if said is None or status.phase not in _SIZED or known is None or known.status is not Truth.TRUE:
        return False
    cml = stage.cml(status.ec2.instance_id)
    has = cml.machine if cml else None
    return has is not None and (has.cpu_count * 1000 < said.cpu_millis or has.memory_mb < said.memory_mb)


def _promised(seen: Seen, worker: LabWorker) -> Iterable[LabletSession]:
    """Give those who were promised the seat that a worker fills, and are on no worker yet."""
    owner = worker.metadata.owner
    pool = seen.objects.get(f"worker-pools/{worker.metadata.namespace}/{owner.name}") if owner else None
    if not isinstance(pool, LabWorkerPool):
        return ()
    mine = {one.number for one in pool.status.seats if one.worker_id == worker.metadata.uid}
    seated = seen.in_pool[pool.metadata.name].values()
    return [
        one for one in seated if one.status.worker_id is None and one.status.seat and one.status.seat.number in mine
    ]


def _fit(sessions: Iterable[LabletSession], room: Amount, now: datetime) -> bool:
    claims = [_left(one, one.status.claim, now) for one in sessions if one.status.claim]
    return all(level.within(room) for level in Profile.of(claims).levels)


def _left(session: LabletSession, claim: Claim, now: datetime) -> Claim:
    end = claim.end - CLEAN_UP
    return msgspec.structs.replace(claim, start=max(claim.start, now), end=min(end, session.status.ends_at or end))


def _risk(session: LabletSession) -> Condition | None:
    known = condition(session.status.conditions, SessionCondition.AT_RISK)
    return known if known is not None and known.status is Truth.TRUE else None


def _is_told_untruly(seen: Seen, session: LabletSession) -> bool:
    risk = _risk(session)
    return risk is not None and risk.reason == TOO_SMALL and not _is_small(seen, session)


def _is_small(seen: Seen, session: LabletSession) -> bool:
    """Tell whether the worker that a session is on, or any that fills its seat, holds less than it should."""
    if session.status.worker_id is not None:
        return session.status.worker_id in seen.small
    return any(session in _promised(seen, seen.workers[uid]) for uid in seen.small)
