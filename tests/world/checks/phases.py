"""Checks that every phase change is in its state machine's table, and that history is only appended to."""

from collections.abc import Sequence
from typing import Any, Final

from lcm.model.base.errors import IllegalStep
from lcm.model.base.machine import ACTORS, CONTROL_PLANE, StateMachine
from lcm.model.base.resource import HISTORY_LIMIT, PhaseChange
from lcm.model.kinds.registry import KINDS, Resource
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedState

ILLEGAL: Final = "illegal phase change"


def phase_changes_by_the_table(_seen: ObservedState, turn: ObservedChange[Resource]) -> Sequence[Violation]:
    """Check that a phase begins and changes as its state machine's table says, by an actor that may.

    People, and controllers that ask for an action, act through the rows of the control plane.
    """
    machine, after = KINDS[turn.latest.kind].machine, turn.after
    if machine is None or after is None:
        return ()
    lines = _new_lines(turn)
    source = machine.initial if turn.before is None else _phase(turn.before)
    if turn.before is None and lines and lines[0].phase == machine.initial:
        lines = lines[1:]
    for line in lines:
        target = type(machine.initial)(line.phase)
        last = line is lines[-1]
        if wrong := _step_fault(machine, source, target, line, after if last else None):
            return [violation(ILLEGAL, wrong, after)]
        source = target
    if source is not _phase(after):
        return [
            violation(ILLEGAL, f"{_phase(turn.before or after)} -> {_phase(after)} without a line in its story", after)
        ]
    return ()


def story_is_only_added_to(_seen: ObservedState, turn: ObservedChange[Resource]) -> Sequence[Violation]:
    """Check that history lines are only appended: only the oldest are dropped beyond the limit, and time only grows."""
    before, after = turn.before, turn.after
    if before is None or after is None or KINDS[after.kind].machine is None:
        return ()
    old, new = before.status.history, after.status.history
    if old is new or old == new:
        return ()
    added = len(_new_lines(turn))
    if not added or (*old, *new[-added:])[-HISTORY_LIMIT:] != new:
        return [violation(ILLEGAL, "its story was rewritten", after)]
    if any(line.at > turn.at or (old and line.at < old[-1].at) for line in new[-added:]):
        return [violation(ILLEGAL, "its story has a line from another time", after)]
    return ()


def _step_fault(machine: StateMachine[Any], source: Any, target: Any, line: PhaseChange, after: Resource | None) -> str:
    if source in machine.final:
        return f"{source} -> {target} by {line.by}: {source} is final"
    ways = [step for step in machine.find(source, target) if step.by in _actors_of(line.by)]
    if not ways:
        return f"{source} -> {target} by {line.by} is no row of the table"
    if after is None:
        return ""
    errors = [_rejection_of(machine, source, target, step.by, after) for step in ways]
    return "" if "" in errors else errors[0]


def _rejection_of(machine: StateMachine[Any], source: Any, target: Any, by: str, after: Resource) -> str:
    try:
        machine.check_step(source, target, by=by, status=after.status)
    except IllegalStep as error:
        return str(error).partition("\n")[0]
    return ""


def _actors_of(author: str) -> tuple[str, ...]:
    return (author, CONTROL_PLANE) if author in ACTORS else (CONTROL_PLANE,)


def _new_lines(turn: ObservedChange[Resource]) -> Sequence[PhaseChange]:
    """Return the lines that a commit has added to a history: those after the last one that was there."""
    assert turn.after is not None, "asked of what is there"
    new = turn.after.status.history
    old = turn.before.status.history if turn.before else ()
    if old is new or not new or old == new:
        return ()
    if not old:
        return new
    places = [place for place, line in enumerate(new) if line == old[-1]]
    return new[places[-1] + 1 :] if places else new


def _phase(resource: Resource) -> Any:
    return resource.status.phase  # type: ignore[attr-defined]  # every kind with a machine has one
