"""Checks that nothing is left over when nothing is going on any more."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.session_files import COLLECTED_PREFIX
from lcm.model.kinds.session import CLEAN_UP_TIME, INSTANTIATION_LIMIT, LabletSession, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.providers.protocols.artifacts import parse_address
from lcm.providers.protocols.compute import OWNER_TAG, InstanceState
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.labs import LEFT, lab_holder, uid_in
from world.checks.machines import NO_RECORD, OWNER, living_machines
from world.checks.violation import violation
from world.observed import ObservedState

AT_REST: Final = "something is left when all is over"
SWEEP_GRACE: Final = timedelta(hours=3)
_P: Final = WorkerPhase
_SETTLED: Final = frozenset({_P.READY, _P.READY_UNLICENSED, _P.ACTIVE, _P.STOPPED, _P.TERMINATED})
_WAITS: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})
_RUNS: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})


def sessions_are_over(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that each session has ended, or rightly waits for its slot or for a place."""
    now = stage.clock.now()
    return [
        violation(AT_REST, f"{one.status.phase} since {one.status.history[-1].at:%d %H:%M}", one)
        for one in seen.live_sessions()
        if not _is_still_due(one, now)
    ]


def labs_are_gone(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that no living machine, not even on its disk, has a lab of a session that has ended."""
    found = []
    for instance in living_machines(stage):
        cml = stage.fleet.find_cml(instance.instance_id)
        for uid in (uid_in(lab.title) for lab in cml.labs) if cml else ():
            session = lab_holder(seen, uid or "")
            if session is not None and seen.is_over(session):
                found.append(violation(LEFT, f"its lab is on {instance.instance_id}, {instance.state}", session))
    return found


def machines_are_wanted(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that each living machine of ours belongs to a worker that is not over."""
    found = []
    for instance in living_machines(stage):
        worker = seen.worker_with(instance.instance_id)
        known = worker is not None and worker.status.phase not in WORKER_MACHINE.final
        if instance.tags.get(OWNER_TAG) == OWNER and not known:
            about = [worker] if worker else []
            found.append(violation(NO_RECORD, f"{instance.instance_id} is {instance.state} for nobody", *about))
    return found


def pools_are_small_again(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that a pool without promised sessions runs no more machines than its minimum.

    Machines are counted by the pool that owns their worker.
    """
    running = {one.instance_id for one in living_machines(stage) if one.state in _RUNS}
    owners = Counter(
        one.metadata.owner.name
        for one in seen.workers.values()
        if one.metadata.owner is not None and one.status.ec2.instance_id in running
    )
    return [
        violation(AT_REST, f"{owners[name]} machines run, {pool.spec.min_workers} are wanted", pool)
        for name, pool in seen.pools.items()
        if owners[name] > pool.spec.min_workers and not any(seen.in_pool[name])
    ]


def workers_are_settled(seen: ObservedState, _stage: Environment) -> Sequence[Violation]:
    """Check that each worker serves, is stopped or is over, or has an alert."""
    alerted = {alert.uid for board in seen.alerts.values() for alert in board}
    return [
        violation(AT_REST, f"{uid} is {one.status.phase}, and nobody was told", one)
        for uid, one in seen.workers.items()
        if one.status.phase not in _SETTLED and uid not in alerted
    ]


def files_are_gone(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that no temporary file of a session is left after its end; collected files are kept for its owner.

    A recent file is excused: one that came after its session's end is removed within `SWEEP_GRACE`.
    """
    old = [one for one in stage.artifacts.temporary_now() if stage.clock.now() - one.stored_at > SWEEP_GRACE]
    names = [name for one in old if not (name := parse_address(one.uri).name).startswith(COLLECTED_PREFIX)]
    whose = [(name, seen.sessions.get(name.partition("/")[0])) for name in names]
    return [
        violation(AT_REST, f"its file {name} is left", session) if session else Violation(AT_REST, f"{name} is left")
        for name, session in whose
        if session is None or seen.is_over(session)
    ]


def _is_still_due(session: LabletSession, now: datetime) -> bool:
    """Return whether a session is rightly still to come, or under way. Prebuilt ones come and go at any time."""
    end = session.status.ends_at or session.spec.timeslot_end
    if session.status.phase in _WAITS:
        until = session.spec.timeslot_start or session.status.expires_at
        return until is not None and until > now
    if session.spec.prebuilt and session.status.phase is not SessionPhase.RUNNING:
        return now < session.status.history[-1].at + INSTANTIATION_LIMIT
    return end is not None and now < end + CLEAN_UP_TIME
