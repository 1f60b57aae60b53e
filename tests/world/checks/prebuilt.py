"""Checks that prebuilt labs are in nobody's way, and that each is taken by one person at most."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.plane.protocol import Ref
from lcm.controllers.session.progress import lab_uid
from lcm.model.base.capacity import ZERO_AMOUNT, Amount
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.model.kinds.worker import LabWorker
from lcm.placement.claims import need_of
from lcm.placement.places import is_accepting
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.hosting import is_unhostable
from world.checks.places import suits_place
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState, is_live

PREBUILT: Final = "a prebuilt lab in somebody's way, or given to two"
WAY_GRACE: Final = timedelta(minutes=30)
"""A change of leaders, and a CML that is silent while the lab is to be removed."""


def lab_is_given_once(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a lab has one live session, and that a prebuilt one that is taken over has ended and had no owner."""
    after = turn.after
    if after is None or not is_live(after) or after.status.taken_from is None:
        return ()
    here = seen.on_worker[after.status.worker_id or ""].values()
    others = [one for one in here if one.metadata.uid != after.metadata.uid and lab_uid(one) == lab_uid(after)]
    found = [violation(PREBUILT, f"{one.metadata.name} has its lab, too", after, one) for one in others]
    before = seen.sessions.get(after.status.taken_from.uid)
    if turn.before is None and before is not None and not before.spec.prebuilt:
        found.append(violation(PREBUILT, "it has taken somebody's lab", after, before))
    return found


def prebuilt_holds_no_promise(_seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a prebuilt session holds no time of a planned worker: whoever books is promised all that there is."""
    after = turn.after
    if after is None or not after.spec.prebuilt or after.status.seat is None:
        return ()
    return [violation(PREBUILT, f"it holds {after.status.seat.pool}/{after.status.seat.number}", after)]


def prebuilt_gives_way(seen: ObservedState, _stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that no prebuilt lab stays for long where a claim has begun, or somebody waits, and there is no room."""
    found = []
    for worker in list(seen.workers.values()):
        here = seen.on_worker[worker.metadata.uid].values()
        labs = [one for one in here if one.spec.prebuilt and one.status.phase is SessionPhase.RUNNING]
        is_so = bool(labs) and is_accepting(worker) and _is_in_the_way(seen, worker, labs, now)
        if seen.duration_of(("prebuilt", worker.metadata.uid), now, is_so=is_so) > WAY_GRACE:
            found.append(violation(PREBUILT, f"somebody needs its room on {worker.metadata.name}", worker, *labs))
    return found


def _is_in_the_way(seen: ObservedState, worker: LabWorker, labs: Sequence[LabletSession], now: datetime) -> bool:
    """Return whether somebody would have room on a worker but for its prebuilt labs."""
    there = [one for one in seen.on_worker[worker.metadata.uid].values() if not one.spec.prebuilt]
    coming, room = list(_find_coming(seen, worker, now)), worker.status.capacity
    if not coming or room is None:
        return False
    needed = _sum(seen, [*there, *coming]) + worker.status.foreign
    return needed.within(room) and not (needed + _sum(seen, labs)).within(room)


def _find_coming(seen: ObservedState, worker: LabWorker, now: datetime) -> Iterator[LabletSession]:
    """Yield those whose claim on a worker has begun and who are not there, and the one who waits longest."""
    uid, live = worker.metadata.uid, [one for one in seen.live_sessions() if one.status.worker_id is None]
    filled = {
        (pool.metadata.name, one.number)
        for pool in seen.pools.values()
        for one in pool.status.seats
        if one.worker_id == uid
    }
    for one in live:
        seat, claim = one.status.seat, one.status.claim
        if seat is not None and claim is not None and claim.start <= now and (seat.pool, seat.number) in filled:
            yield one
    waiting = [one for one in live if _waits(one) and suits_place(one, worker) and not is_unhostable(one)]
    mine = [one for one in waiting if one.spec.lab_track == worker.spec.lab_track]
    yield from sorted(mine, key=lambda one: str(one.metadata.created_at))[:1]


def _waits(session: LabletSession) -> bool:
    status = session.status
    return is_asap(session) and not session.spec.prebuilt and status.waiting is not None and status.claim is None


def _sum(seen: ObservedState, sessions: Iterable[LabletSession]) -> Amount:
    total = ZERO_AMOUNT
    for one in sessions:
        found = seen.objects.get(Ref(LabletDefinition, one.spec.definition, one.metadata.namespace).key)
        need = need_of(one, found) if isinstance(found, LabletDefinition) else None
        total += one.status.claim.need if one.status.claim is not None else need or ZERO_AMOUNT
    return total
