"""Only who leads writes as a controller, and only who leads does anything to the outside."""

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
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Commit, Deed, Seen, Turn
from lcm.sim.world.stage import Stage

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
"""Who says what was seen of a kind, which is nobody's deed and so in no audit."""


def effect_is_the_leaders(seen: Seen, deed: Deed, _stage: Stage) -> Sequence[Violation]:
    """See that an effect comes from the host that holds its controller's lease at this moment.

    Excused is what was on its way at the very moment at which the store lost a lease before its time.
    """
    verb, host = deed.effect.verb, deed.host
    may = _may_do(verb)
    if host is None or any(seen.holders.get(one) == host for one in may):
        return ()
    if any(seen.robbed.get((one, host)) == deed.at for one in may):
        return ()
    worker = seen.worker_with(deed.effect.instance_id)
    text = f"{host} does {verb} {deed.effect.lab or deed.effect.instance_id}, {_led(seen, may)}"
    return [violation(DEPOSED, text, *([worker] if worker else []))]


def write_is_the_leaders(seen: Seen, commit: Commit) -> Sequence[Violation]:
    """See that what is written in a controller's name, or reported, comes from the host that holds its lease."""
    if commit.host is None:
        return ()
    if commit.audit is not None:
        return _as(seen, commit, commit.audit.who, commit.turns) if commit.audit.who in ACTORS else ()
    return [found for turn in commit.turns for found in _reported(seen, commit, turn)]


def _reported(seen: Seen, commit: Commit, turn: Turn[Resource]) -> Sequence[Violation]:
    before, after = turn.before, turn.after
    if before is None or after is None or before.status == after.status:
        return ()
    by = after.status.history[-1].by if after.status.history != before.status.history else ""
    if by in ACTORS:
        return _as(seen, commit, by, [turn])
    may = _REPORTS.get(type(after), ACTORS)
    if any(seen.holders.get(one) == commit.host for one in may):
        return ()
    return [violation(DEPOSED, f"{commit.host} reports of it, {_led(seen, may)}", after)]


def _as(seen: Seen, commit: Commit, actor: str, turns: Sequence[Turn[Resource]]) -> Sequence[Violation]:
    if seen.holders.get(actor) == commit.host:
        return ()
    text = f"{commit.host} writes as {actor}, {_led(seen, {actor})}"
    return [violation(DEPOSED, text, *(turn.now for turn in turns))]


def _may_do(verb: str) -> frozenset[str]:
    if verb in _LABS:
        return frozenset({LABLET_CONTROLLER})
    return frozenset({LABLET_CONTROLLER, WORKER_CONTROLLER} if verb == "stop lab" else {WORKER_CONTROLLER})


def _led(seen: Seen, actors: frozenset[str] | set[str]) -> str:
    return " and ".join(f"{seen.holders.get(one, 'nobody')} leads as {one}" for one in sorted(actors))
