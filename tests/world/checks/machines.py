"""Checks that each machine of ours has one record, each live worker its machine, and no machine in use is taken."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker, WorkerPhase
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.providers.protocols.compute import ENDING, OWNER_TAG, WORKER_TAG, Instance, InstanceState
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedEffect, ObservedState

TWO_MACHINES: Final = "two instances for one worker"
NO_RECORD: Final = "instance without a record after grace"
UNNOTICED: Final = "record of a live worker whose instance is gone, unnoticed"
TAKEN: Final = "a running session's worker paused, scaled down, or drained past its deadline without warning"
OWNER: Final = "lcm"
RECORD_GRACE: Final = timedelta(minutes=30)
"""Ten minutes in which a machine may be new, five between two polls of the cloud, and a change of leaders."""
NOTICE_GRACE: Final = timedelta(minutes=30)
"""Several polls of a controller, with a change of leaders and a cloud that does not answer for a while."""
DRAIN_WARNING: Final = "DrainDeadlineNear"
STRAY: Final = "StrayInstance"
_P: Final = WorkerPhase
_UP: Final = HOSTING_PHASES | {_P.LICENSING, _P.DRAINING}
_DOWN: Final = ENDING | {InstanceState.STOPPED}
_TAKING: Final = frozenset({_P.STOPPING, _P.UNLICENSING, _P.TERMINATING_EC2})
_TAKES: Final = frozenset({"stop", "terminate", "reboot"})
_BUSY: Final = frozenset({SessionPhase.INSTANTIATING, SessionPhase.RUNNING, SessionPhase.COLLECTING})


def living_machines(stage: Environment) -> Sequence[Instance]:
    """Return the machines that cost money."""
    now = stage.clock.now()
    machines = stage.cloud.account.machines.values()
    return [machine.instance(now) for machine in machines if machine.state(now) not in ENDING]


def worker_has_one_machine(seen: ObservedState, deed: ObservedEffect, stage: Environment) -> Sequence[Violation]:
    """Check that no machine is launched for a worker that has a living one.

    Machines that people launch at the console with our tags are theirs to terminate.
    """
    if deed.host is None or deed.effect.verb != "run":
        return ()
    by_worker: defaultdict[str, list[str]] = defaultdict(list)
    for one in living_machines(stage):
        if one.tags.get(OWNER_TAG) == OWNER:
            by_worker[one.tags.get(WORKER_TAG, "")].append(one.instance_id)
    return [
        Violation(TWO_MACHINES, f"{uid} has {', '.join(ids)}", _worker_name(seen.workers.get(uid)))
        for uid, ids in by_worker.items()
        if len(ids) > 1 and deed.effect.instance_id in ids
    ]


def machine_has_a_record(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a living machine with our tag has a record that is not over, at the latest after a grace period.

    A record that calls a living machine terminated is as good as none, unless an alert says so.
    """
    ours = [one for one in living_machines(stage) if one.tags.get(OWNER_TAG) == OWNER]
    return [
        Violation(NO_RECORD, f"{one.instance_id} is {one.state} and launched {one.launched_at:%d %H:%M}", ())
        for one in ours
        if now - max(one.launched_at, seen.restored_at) > RECORD_GRACE and not _has_record(seen, one, now)
    ]


def record_has_its_machine(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a serving worker has a running machine, or that a controller notices within a grace period."""
    found = []
    for worker in seen.workers.values():
        machine = stage.cloud.account.machines.get(worker.status.ec2.instance_id)
        if machine is None or worker.status.phase not in _UP:
            continue
        last = machine.change_at(now)
        if last.state in _DOWN and now - max(last.at, seen.restored_at) > NOTICE_GRACE:
            text = f"{worker.status.phase}, and {machine.instance_id} is {last.state} since {last.at:%d %H:%M:%S}"
            found.append(violation(UNNOTICED, text, worker))
    return found


def machine_is_not_taken_by_effect(
    seen: ObservedState, deed: ObservedEffect, stage: Environment
) -> Sequence[Violation]:
    """Check that none of our processes stops, terminates or reboots a running machine that is in use.

    A drain whose deadline has passed after a warning is excused. People at the console are not our processes.
    """
    effect = deed.effect
    machine = stage.cloud.account.machines.get(effect.instance_id)
    if deed.host is None or effect.verb not in _TAKES or machine is None:
        return ()
    runs = machine.state(deed.at) is InstanceState.RUNNING
    worker = seen.worker_with(effect.instance_id)
    if worker is None or not runs or _is_drain_over(seen, worker, deed.at):
        return ()
    busy = _busy_sessions(seen, worker)
    text = f"{deed.host} does {effect.verb} {effect.instance_id} of {worker.metadata.name}"
    return [violation(TAKEN, f"{text}, {_describe_sessions(busy)} on it", worker, *busy)] if busy else ()


def machine_is_not_taken_by_step(seen: ObservedState, turn: ObservedChange[LabWorker]) -> Sequence[Violation]:
    """Check that no worker is paused, given up or ended while it is in use; excused as for the effect.

    What somebody did to the machine by hand is reported as stopped or terminated, which is no decision of ours.
    """
    before, after = turn.before, turn.after
    if before is None or after is None or after.status.phase not in _TAKING or before.status.phase not in _UP:
        return ()
    if _is_drain_over(seen, before, turn.at):
        return ()
    busy = _busy_sessions(seen, after)
    step = f"{before.status.phase} -> {after.status.phase}"
    return [violation(TAKEN, f"{step} with {_describe_sessions(busy)} on it", after, *busy)] if busy else ()


def session_is_not_ended_unwarned(seen: ObservedState, turn: ObservedChange[LabletSession]) -> Sequence[Violation]:
    """Check that a drain ends a running session only after its deadline, and after a warning."""
    before, after = turn.before, turn.after
    if before is None or after is None or before.status.phase not in _BUSY or after.status.phase in _BUSY - {_COLLECTS}:
        return ()
    lines, worker = after.status.history[-1:], seen.workers.get(before.status.worker_id or "")
    if before.status.phase is after.status.phase or worker is None or _is_drain_over(seen, worker, turn.at):
        return ()
    return [
        violation(TAKEN, f"ended by {line.by} ({line.reason}) without warning", after, worker)
        for line in lines
        if line.by == WORKER_CONTROLLER
    ]


_COLLECTS: Final = SessionPhase.COLLECTING


def _has_record(seen: ObservedState, instance: Instance, now: datetime) -> bool:
    uids = (*seen.had_machine.get(instance.instance_id, ()), instance.tags.get(WORKER_TAG, ""))
    records = [seen.workers[uid] for uid in uids if uid in seen.workers]
    if any(one.status.phase not in WORKER_MACHINE.final for one in records):
        return True
    stray = {alert.uid for board in seen.alerts.values() for alert in board if alert.alert == STRAY}
    lately = [uid for uid in uids if uid in seen.removed and now - seen.removed[uid] < RECORD_GRACE]
    return bool(lately) or any(one.metadata.uid in stray for one in records)


def _is_drain_over(seen: ObservedState, worker: LabWorker, now: datetime) -> bool:
    """Return whether a drain's deadline has passed, and its sessions were warned of it since it began."""
    deadline, warned = worker.status.drain_deadline_at, seen.warned.get((worker.metadata.uid, DRAIN_WARNING))
    begun = [line.at for line in worker.status.history if line.phase == _P.DRAINING]
    since = begun[-1] if begun else None
    return deadline is not None and deadline <= now and warned is not None and (since is None or since <= warned)


def _busy_sessions(seen: ObservedState, worker: LabWorker) -> Sequence[LabletSession]:
    return [one for one in seen.on_worker[worker.metadata.uid].values() if one.status.phase in _BUSY]


def _describe_sessions(sessions: Sequence[LabletSession]) -> str:
    return ", ".join(f"{one.metadata.name} ({one.status.phase})" for one in sessions)


def _worker_name(worker: LabWorker | None) -> tuple[str, ...]:
    return (f"LabWorker/{worker.metadata.name}",) if worker else ()
