"""Every change of phase is a row of its machine's table, and stories are only ever written on."""

from collections.abc import Sequence
from typing import Any, Final

from lcm.model.base.errors import IllegalStep
from lcm.model.base.machine import ACTORS, CONTROL_PLANE, Machine
from lcm.model.base.resource import HISTORY_LIMIT, PhaseChange
from lcm.model.kinds.registry import KINDS, Resource
from lcm.sim.world.checks.violation import Violation, violation
from lcm.sim.world.seen import Seen, Turn

ILLEGAL: Final = "illegal phase change"


def phase_changes_by_the_table(_seen: Seen, turn: Turn[Resource]) -> Sequence[Violation]:
    """See that a phase begins as its machine says and changes by a row of its table, taken by who may.

    Whoever is no controller, and a controller that asks for an action, acts through the control plane's own rows.
    """
    machine, after = KINDS[turn.now.kind].machine, turn.after
    if machine is None or after is None:
        return ()
    lines = _added(turn)
    source = machine.initial if turn.before is None else _phase(turn.before)
    if turn.before is None and lines and lines[0].phase == machine.initial:
        lines = lines[1:]
    for line in lines:
        target = type(machine.initial)(line.phase)
        last = line is lines[-1]
        if wrong := _wrong(machine, source, target, line, after if last else None):
            return [violation(ILLEGAL, wrong, after)]
        source = target
    if source is not _phase(after):
        return [
            violation(ILLEGAL, f"{_phase(turn.before or after)} -> {_phase(after)} without a line in its story", after)
        ]
    return ()


def story_is_only_added_to(_seen: Seen, turn: Turn[Resource]) -> Sequence[Violation]:
    """See that no line of a story is changed or lost but the oldest beyond its bound, and that its time goes on."""
    before, after = turn.before, turn.after
    if before is None or after is None or KINDS[after.kind].machine is None:
        return ()
    old, new = before.status.history, after.status.history
    if old is new or old == new:
        return ()
    added = len(_added(turn))
    if not added or (*old, *new[-added:])[-HISTORY_LIMIT:] != new:
        return [violation(ILLEGAL, "its story was rewritten", after)]
    if any(line.at > turn.at or (old and line.at < old[-1].at) for line in new[-added:]):
        return [violation(ILLEGAL, "its story has a line from another time", after)]
    return ()


def _wrong(machine: Machine[Any], source: Any, target: Any, line: PhaseChange, after: Resource | None) -> str:  # noqa: ANN401  each machine has phases of its own type
    if source in machine.final:
        return f"{source} -> {target} by {line.by}: {source} is final"
    ways = [step for step in machine.find(source, target) if step.by in _parts(line.by)]
    if not ways:
        return f"{source} -> {target} by {line.by} is no row of the table"
    if after is None:
        return ""
    errors = [_lacking(machine, source, target, step.by, after) for step in ways]
    return "" if "" in errors else errors[0]


def _lacking(machine: Machine[Any], source: Any, target: Any, by: str, after: Resource) -> str:  # noqa: ANN401  likewise
    try:
        machine.take(source, target, by=by, status=after.status)
    except IllegalStep as error:
        return str(error).partition("\n")[0]
    return ""


def _parts(author: str) -> tuple[str, ...]:
    return (author, CONTROL_PLANE) if author in ACTORS else (CONTROL_PLANE,)


def _added(turn: Turn[Resource]) -> Sequence[PhaseChange]:
    """Give the lines that a commit has added to a story: those that follow the last one that was there."""
    assert turn.after is not None, "asked of what is there"
    new = turn.after.status.history
    old = turn.before.status.history if turn.before else ()
    if old is new or not new or old == new:
        return ()
    if not old:
        return new
    places = [place for place, line in enumerate(new) if line == old[-1]]
    return new[places[-1] + 1 :] if places else new


def _phase(resource: Resource) -> Any:  # noqa: ANN401  likewise
    return resource.status.phase  # type: ignore[attr-defined]  # every kind with a machine has one
