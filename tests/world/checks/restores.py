"""Checks that a store that was put back costs nobody their work, and that whoever knew its later state ends."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.actions import HELD_LAB, REMOVE_HELD_LAB
from lcm.controllers.session.held_labs import UNKNOWN_LAB
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.environment import Environment
from lcm.sim.world.process import Process
from lcm.sim.world.world import Violation
from world.checks.labs import labs_on, uid_in
from world.checks.ports import is_answering
from world.checks.violation import violation
from world.observed import ObservedEffect, ObservedState

RESTORED: Final = "work lost by a restore, or a store that went back unnoticed"
END_GRACE: Final = timedelta(minutes=2)
TOLD_GRACE: Final = timedelta(hours=1)
"""Several sweeps, and the time in which a lab may be new; a new leader begins to count again."""


def held_lab_is_not_removed(seen: ObservedState, deed: ObservedEffect, stage: Environment) -> Sequence[Violation]:
    """Check that none of our processes removes a lab of a session that a restore has made unknown.

    A person's word is an excuse: about the lab, or about its worker.
    """
    worker, verb = seen.worker_with(deed.effect.instance_id), deed.effect.verb
    if deed.host is None or worker is None or verb not in {"remove", "wipe", "terminate"}:
        return ()
    if verb == "terminate":
        here = [uid for where, uid, _ in labs_on(stage, deed.at) if where == deed.effect.instance_id]
        lost = [] if _is_deleted_by_a_person(worker) else [uid for uid in here if uid in seen.forgotten]
    else:
        uid = uid_in(deed.effect.lab) or ""
        lost = [uid] if uid in seen.forgotten and not _is_given_up(worker) else []
    return [
        violation(RESTORED, f"{deed.host} does {verb} on {worker.metadata.name}", seen.forgotten[uid], worker)
        for uid in lost
    ]


def held_labs_are_told(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that somebody is told of a lab on a serving worker whose session a restore has made unknown."""
    told = {alert.uid for board in seen.alerts.values() for alert in board if alert.alert == UNKNOWN_LAB}
    found = []
    for where, uid, _ in labs_on(stage, now) if seen.forgotten else ():
        worker = seen.worker_with(where)
        untold = uid in seen.forgotten and worker is not None and worker.metadata.uid not in told
        untold = untold and worker is not None and is_answering(worker, now)
        what = ("untold lab", where, uid, seen.holders.get(LABLET_CONTROLLER, ""))
        _forget_other_leaders(seen, what)
        if seen.duration_of(what, now, is_so=untold) > TOLD_GRACE:
            found.append(violation(RESTORED, f"its lab is on {where}, and nobody is told", seen.forgotten[uid]))
    return found


def _forget_other_leaders(seen: ObservedState, what: tuple[str, ...]) -> None:
    """Forget since when a lab is untold under other leaders: one that leads again begins to count again, too."""
    for other in [one for one in seen.since if one[:-1] == what[:-1] and one != what]:
        del seen.since[other]


def process_notices(seen: ObservedState, process: Process, now: datetime) -> Sequence[Violation]:
    """Check that a process ends that has seen a later state of the store than there is."""
    unaware = process.host.running and not process.link.is_cut and process.link.went_back
    if seen.duration_of(("went back", process.name), now, is_so=unaware) <= END_GRACE:
        return ()
    return [Violation(RESTORED, f"{process.name} goes on with a store that went back")]


def _is_given_up(worker: LabWorker) -> bool:
    said = [value for name, value in worker.metadata.annotations.items() if name.startswith(HELD_LAB)]
    return REMOVE_HELD_LAB in said or _is_deleted_by_a_person(worker)


def _is_deleted_by_a_person(worker: LabWorker) -> bool:
    """Return whether a worker goes, and not because its pool needs it no more."""
    by_pool = any(line.by == POOL_CONTROLLER for line in worker.status.history[-6:])
    return worker.metadata.deletion_timestamp is not None and not by_pool
