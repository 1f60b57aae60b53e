"""Checks that only the leader writes as a controller, and that only the leader has effects on the outside."""

from collections.abc import Mapping, Sequence
from typing import Final

from lcm.model.base.machine import ACTORS, LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedEffect, ObservedState

DEPOSED: Final = "write or effect by a deposed leader"
_LABS: Final = frozenset({"import", "start lab", "wipe", "remove"})
_REPORTS: Final[Mapping[type[Resource], frozenset[str]]] = {
    LabWorker: frozenset({WORKER_CONTROLLER}),
    LabWorkerPool: frozenset({POOL_CONTROLLER}),
    LabletSession: frozenset({SCHEDULER, LABLET_CONTROLLER, POOL_CONTROLLER}),
    Reservation: frozenset({SCHEDULER, POOL_CONTROLLER}),
    LabletDefinition: frozenset({LABLET_CONTROLLER}),
    SystemSettings: frozenset({WORKER_CONTROLLER}),
}
"""Which controllers report the status of a kind; reports are not in the audit."""


def effect_is_the_leaders(seen: ObservedState, deed: ObservedEffect, _stage: Environment) -> Sequence[Violation]:
    """Check that an effect comes from the host that holds its controller's lease at this moment.

    An effect that was on its way at the very moment when the store lost a lease early is excused.
    """
    verb, host = deed.effect.verb, deed.host
    may = _actors_for(verb)
    if host is None or any(seen.holders.get(one) == host for one in may):
        return ()
    if any(seen.robbed.get((one, host)) == deed.at for one in may):
        return ()
    worker = seen.worker_with(deed.effect.instance_id)
    text = f"{host} does {verb} {deed.effect.lab or deed.effect.instance_id}, {_describe_leaders(seen, may)}"
    return [violation(DEPOSED, text, *([worker] if worker else []))]


def write_is_the_leaders(seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check that what is written or reported as a controller comes from the host that holds its lease."""
    if commit.host is None:
        return ()
    if commit.audit is not None:
        return _check_actor(seen, commit, commit.audit.who, commit.turns) if commit.audit.who in ACTORS else ()
    return [found for turn in commit.turns for found in _check_report(seen, commit, turn)]


def _check_report(seen: ObservedState, commit: Commit, turn: ObservedChange[Resource]) -> Sequence[Violation]:
    before, after = turn.before, turn.after
    if before is None or after is None or before.status == after.status:
        return ()
    by = after.status.history[-1].by if after.status.history != before.status.history else ""
    if by in ACTORS:
        return _check_actor(seen, commit, by, [turn])
    may = _REPORTS.get(type(after), ACTORS)
    if any(seen.holders.get(one) == commit.host for one in may):
        return ()
    return [violation(DEPOSED, f"{commit.host} reports of it, {_describe_leaders(seen, may)}", after)]


def _check_actor(
    seen: ObservedState, commit: Commit, actor: str, turns: Sequence[ObservedChange[Resource]]
) -> Sequence[Violation]:
    if seen.holders.get(actor) == commit.host:
        return ()
    text = f"{commit.host} writes as {actor}, {_describe_leaders(seen, {actor})}"
    return [violation(DEPOSED, text, *(turn.latest for turn in turns))]


def _actors_for(verb: str) -> frozenset[str]:
    if verb in _LABS:
        return frozenset({LABLET_CONTROLLER})
    return frozenset({LABLET_CONTROLLER, WORKER_CONTROLLER} if verb == "stop lab" else {WORKER_CONTROLLER})


def _describe_leaders(seen: ObservedState, actors: frozenset[str] | set[str]) -> str:
    return " and ".join(f"{seen.holders.get(one, 'nobody')} leads as {one}" for one in sorted(actors))
