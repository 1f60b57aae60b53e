"""Checks that a session that nobody can host is refused or waits by itself, and never is in the way of others."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.capacity import Amount
from lcm.model.kinds.definition import LabletDefinition, compute_amount
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, SessionPhase, is_asap
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker
from lcm.placement.places import is_accepting
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.world.environment import Environment
from lcm.sim.world.scenario import ScenarioLab
from lcm.sim.world.world import Violation
from world.checks.places import suits_place
from world.checks.pools import closed_reason
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState
from world.scenarios import UNHOSTABLE_PREFIX

IN_THE_WAY: Final = "a session that nobody can host accepted, placed, or in the way of others"
KNOWN_AFTER: Final = timedelta(minutes=5)
"""What a machine has is known to all processes that long after it serves."""
WAIT_GRACE: Final = timedelta(minutes=45)
"""A change of leaders, an outage of the store, and licences that are checked again."""
AHEAD: Final = timedelta(hours=6)
_OWN_FILTERS: Final = frozenset({"cml_version", "node_definitions"})
"""Why machines reject labs that nobody can host; they would take any other lab."""


def unhostable_is_refused(
    seen: ObservedState, lab: ScenarioLab, asked_at: datetime, made: LabletSession
) -> Sequence[Violation]:
    """Check an accepted booking: at that time nobody could know that no machine will do.

    The size of every machine is known from its type. What its image has is told by machines of the same region: one of
    another region may have another image, also by the same name.
    """
    known = [
        one
        for one in seen.workers.values()
        if one.metadata.owner is not None
        and one.spec.lab_track == lab.track
        and one.status.phase in HOSTING_PHASES
        and _lacks(lab, one)
        and one.status.history[-1].at < asked_at - KNOWN_AFTER
    ]
    told = {one.spec.aws.region for one in known}
    if not lab.name.endswith("size") and not (told and told >= _regions_of(seen, lab.track)):
        return ()
    return [violation(IN_THE_WAY, f"{lab.name} was booked, and nobody can host it", made, *known)]


def unhostable_is_not_placed(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that no session is put on a worker that is known not to have what its lab needs."""
    before, after = turn.before, turn.after
    worker = seen.workers.get(after.status.worker_id or "") if after else None
    if after is None or worker is None or not is_unhostable(after):
        return ()
    if before is not None and before.status.worker_id == after.status.worker_id:
        return ()
    return [violation(IN_THE_WAY, f"it is put on {worker.metadata.name}, which cannot host it", after, worker)]


def reasons_are_its_own(_seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that no other session is told to wait for what only one that nobody can host asks for."""
    after = turn.after
    decision = after.status.last_decision if after else None
    if after is None or decision is None or is_unhostable(after):
        return ()
    told = [one for one in decision.rejections if one.filter in _OWN_FILTERS]
    return [violation(IN_THE_WAY, f"it waits because of {one.filter}: {one.examples}", after) for one in told]


def nobody_waits_beside_room(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that nobody waits for long while one worker has room for all who wait, and for all that is promised."""
    found = []
    waiting = [one for one in seen.live_sessions() if _waits(one)]
    for worker in seen.workers.values() if waiting else ():
        mine = [one for one in waiting if _track_of(seen, one) == worker.spec.lab_track and suits_place(one, worker)]
        mine = [one for one in mine if _is_open_for(seen, worker, one, now)]
        fits = bool(mine) and _serves(stage, worker, now) and _has_room(seen, worker, mine, now)
        for session in mine:
            what = ("beside room", worker.metadata.uid, session.metadata.uid)
            if seen.duration_of(what, now, is_so=fits) > WAIT_GRACE:
                text = f"it waits, and {worker.metadata.name} has room for all who wait"
                found.append(violation(IN_THE_WAY, text, session, worker))
    return found


def is_unhostable(session: LabletSession) -> bool:
    """Return whether nobody can host a session."""
    return session.spec.definition.startswith(UNHOSTABLE_PREFIX)


def _lacks(lab: ScenarioLab, worker: LabWorker) -> bool:
    """Return whether it is known of a worker that it lacks what a lab needs."""
    if lab.cml_version_min is not None:
        return bool(worker.status.cml.version)
    return worker.status.cml.node_definitions is not None


def _regions_of(seen: ObservedState, track: str) -> set[str]:
    """Return the regions in which a track has pools or workers."""
    pools = [one for one in seen.pools.values() if one.spec.lab_track == track]
    known = [found for one in pools if (found := seen.pool(one.metadata.name, one.metadata.namespace)) is not None]
    there = {one.spec.aws.region for one in seen.workers.values() if one.spec.lab_track == track}
    return there | {template.spec.worker.aws.region for _, template in known}


def _waits(session: LabletSession) -> bool:
    return is_asap(session) and session.status.phase is SessionPhase.PENDING and not is_unhostable(session)


def _is_open_for(seen: ObservedState, worker: LabWorker, session: LabletSession, now: datetime) -> bool:
    """Return whether the pool of a worker is open as long as a session would be on it; without a pool it is.

    A worker that a pool has adopted goes by the pool's hours like one that it made.
    """
    owner, every = worker.metadata.owner, seen.pools
    adopted = (one for one in every.values() if any(seat.worker_id == worker.metadata.uid for seat in one.status.seats))
    pool = every.get(owner.name) if owner else next(adopted, None)
    end = now + timedelta(minutes=session.spec.duration_minutes or 0) + CLEAN_UP_TIME
    return pool is None or not (closed_reason(pool, now) or closed_reason(pool, end))


def _track_of(seen: ObservedState, session: LabletSession) -> str | None:
    found = seen.objects.get(_definition_key(session))
    return session.spec.lab_track or (found.spec.lab_track if isinstance(found, LabletDefinition) else None)


def _serves(stage: Environment, worker: LabWorker, now: datetime) -> bool:
    machine = stage.cloud.account.machines.get(worker.status.ec2.instance_id)
    up = machine is not None and machine.state(now) is InstanceState.RUNNING
    return up and is_accepting(worker) and worker.status.cml.licensed is True and not worker.status.failure


def _has_room(seen: ObservedState, worker: LabWorker, waiting: Sequence[LabletSession], now: datetime) -> bool:
    """Return whether all who wait fit on a worker at once, beside all that is there or promised by its pool."""
    room = worker.status.capacity
    pool = worker.metadata.owner.name if worker.metadata.owner else ""
    there = (*seen.on_worker[worker.metadata.uid].values(), *seen.in_pool[pool].values())
    claims = [one.status.claim for one in there if one.status.claim and one.status.claim.start < now + AHEAD]
    total = worker.status.foreign
    for need in (*(claim.need for claim in claims), *_needs(seen, waiting)):
        total = total + need
    return room is not None and total.within(room)


def _needs(seen: ObservedState, waiting: Sequence[LabletSession]) -> Iterator[Amount]:
    for one in waiting:
        found = seen.objects.get(_definition_key(one))
        need = compute_amount(found.spec) if isinstance(found, LabletDefinition) else None
        if need is not None:
            yield need


def _definition_key(session: LabletSession) -> str:
    return f"{KINDS[LabletDefinition.__name__].prefix}{session.metadata.namespace}/{session.spec.definition}"
