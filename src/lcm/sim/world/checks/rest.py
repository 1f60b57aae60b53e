"""When nothing is going on any more, nothing is left of what went on."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.session_files import COLLECTED
from lcm.model.kinds.session import CLEAN_UP, LabletSession, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.model.kinds.worker_machine import WORKER
from lcm.providers.protocols.artifacts import parse
from lcm.providers.protocols.compute import OWNER_TAG, InstanceState
from lcm.sim.world.checks.labs import LEFT, uid_in
from lcm.sim.world.checks.machines import NO_RECORD, OWNER
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Seen
from lcm.sim.world.stage import Stage

AT_REST: Final = "something is left when all is over"
SWEPT: Final = timedelta(hours=3)
_P: Final = WorkerPhase
_SETTLED: Final = frozenset({_P.READY, _P.READY_UNLICENSED, _P.ACTIVE, _P.STOPPED, _P.TERMINATED})
_WAITS: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})
_RUNS: Final = frozenset({InstanceState.PENDING, InstanceState.RUNNING})


def sessions_are_over(seen: Seen, stage: Stage) -> Sequence[Violation]:
    """See that each session has ended, or waits for a slot that is still to come, or with patience that still lasts."""
    now = stage.clock.now()
    return [
        violation(AT_REST, f"{one.status.phase} since {one.status.history[-1].at:%d %H:%M}", one)
        for one in seen.live()
        if not _is_later(one, now)
    ]


def labs_are_gone(seen: Seen, stage: Stage) -> Sequence[Violation]:
    """See that no machine that lives, also on its disk, has a lab of a session that has ended."""
    found = []
    for instance in stage.living():
        cml = stage.fleet.known(instance.instance_id)
        for uid in (uid_in(lab.title) for lab in cml.labs) if cml else ():
            session = seen.sessions.get(uid or "")
            if session is not None and seen.is_over(session):
                found.append(violation(LEFT, f"its lab is on {instance.instance_id}, {instance.state}", session))
    return found


def machines_are_wanted(seen: Seen, stage: Stage) -> Sequence[Violation]:
    """See that each living machine of ours is the one of a worker that is not over."""
    found = []
    for instance in stage.living():
        worker = seen.worker_with(instance.instance_id)
        known = worker is not None and worker.status.phase not in WORKER.final
        if instance.tags.get(OWNER_TAG) == OWNER and not known:
            about = [worker] if worker else []
            found.append(violation(NO_RECORD, f"{instance.instance_id} is {instance.state} for nobody", *about))
    return found


def pools_are_small_again(seen: Seen, stage: Stage) -> Sequence[Violation]:
    """See that no more machines run for a pool than it has at least, and those that sessions to come need.

    Counted are machines by the seats of the pool and by who owns their worker.
    """
    running = {one.instance_id for one in stage.living() if one.state in _RUNS}
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


def workers_are_settled(seen: Seen, _stage: Stage) -> Sequence[Violation]:
    """See that each worker serves, rests or is over, or that somebody was told what is wrong with it."""
    alerted = {alert.uid for board in seen.alerts.values() for alert in board}
    return [
        violation(AT_REST, f"{uid} is {one.status.phase}, and nobody was told", one)
        for uid, one in seen.workers.items()
        if one.status.phase not in _SETTLED and uid not in alerted
    ]


def files_are_gone(seen: Seen, stage: Stage) -> Sequence[Violation]:
    """See that no temporary file of a session is left after its end; what was collected is kept for its owner.

    Excused is a file that was written lately: one that came after its session's end is swept up within `SWEPT`.
    """
    old = [one for one in stage.temporary_files() if stage.clock.now() - one.stored_at > SWEPT]
    names = [name for one in old if not (name := parse(one.uri).name).startswith(COLLECTED)]
    whose = [(name, seen.sessions.get(name.partition("/")[0])) for name in names]
    return [
        violation(AT_REST, f"its file {name} is left", session) if session else Violation(AT_REST, f"{name} is left")
        for name, session in whose
        if session is None or seen.is_over(session)
    ]


def _is_later(session: LabletSession, now: datetime) -> bool:
    """Tell whether a session is rightly still to come, or under way."""
    end = session.status.ends_at or session.spec.timeslot_end
    if session.status.phase in _WAITS:
        until = session.spec.timeslot_start or session.status.expires_at
        return until is not None and until > now
    return end is not None and now < end + CLEAN_UP
