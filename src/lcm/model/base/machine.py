"""State machines as tables: the allowed steps, who takes them, what the status must hold, how long a phase may last.

Only the control plane takes steps. `describe_machine` renders a table as Markdown, from which `docs/states.md` is
made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Final, Generic, TypeVar

from lcm.model.base.errors import IllegalStep
from lcm.model.base.resource import Status, format_history

P = TypeVar("P", bound=StrEnum)

USER: Final = "user"
CONTROL_PLANE: Final = "control-plane"
SCHEDULER: Final = "scheduler"
WORKER_CONTROLLER: Final = "worker-controller"
LABLET_CONTROLLER: Final = "lablet-controller"
POOL_CONTROLLER: Final = "pool-controller"
ACTORS: Final = frozenset({SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER})
"""Our own processes other than the control plane."""


@dataclass(frozen=True, slots=True)
class PhaseStep(Generic[P]):
    """One allowed change of phase.

    `needs` names status fields that must be set (`a|b` needs either), `bars` those that must not be set, and
    `equals` those that must have exactly this value. Use `equals` where a field may be unknown: neither of
    the other two can express that.
    """

    source: P
    target: P
    by: str
    why: str
    needs: tuple[str, ...] = ()
    bars: tuple[str, ...] = ()
    equals: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseLimit(Generic[P]):
    """How long a phase may last: a time span, or the moment in a status field. No target means an alert is raised."""

    phase: P
    after: timedelta | str
    target: P | None
    why: str


@dataclass(frozen=True, slots=True)
class StateMachine(Generic[P]):
    """All phases of a kind and the steps between them."""

    name: str
    initial: P
    final: frozenset[P]
    steps: tuple[PhaseStep[P], ...]
    limits: tuple[PhaseLimit[P], ...]

    @property
    def phases(self) -> tuple[P, ...]:
        """Every phase, in the order of declaration."""
        return tuple(type(self.initial))

    def find(self, source: P, target: P) -> Sequence[PhaseStep[P]]:
        """Return every step from one phase to another."""
        return [step for step in self.steps if step.source is source and step.target is target]

    def check_step(self, source: P, target: P, *, by: str, status: Status) -> PhaseStep[P]:
        """Return the step to take, given the status as it would be afterwards.

        Raises IllegalStep, with the object's history, when no step allows the change.
        """
        ways = self.find(source, target)
        mine = [step for step in ways if step.by == by]
        if not ways:
            allowed = ", ".join(dict.fromkeys(step.target for step in self.steps if step.source is source)) or "nothing"
            why = f"from {source} only {allowed} may follow"
        elif not mine:
            why = f"only {', '.join(step.by for step in ways)} may"
        elif missing := [need for need in mine[0].needs if not _has_any(status, need)]:
            why = f"status lacks {', '.join(missing)}"
        elif barred := [bar for bar in mine[0].bars if _has_any(status, bar)]:
            why = f"status still holds {', '.join(barred)}"
        elif other := [f"{path} is not {value}" for path, value in mine[0].equals if _read_path(status, path) != value]:
            why = ", ".join(other)
        else:
            return mine[0]
        story = format_history(status.history)
        raise IllegalStep(
            f"{self.name} {source} -> {target} by {by}: {why}" + (f"\nits story:\n{story}" if story else "")
        )

    def deadline(self, phase: P, status: Status) -> tuple[datetime, PhaseLimit[P]] | None:
        """Return until when a phase may last, and its limit.

        None means that it may last forever, or that the moment is not known yet.
        """
        limit = next((one for one in self.limits if one.phase is phase), None)
        if limit is None:
            return None
        if isinstance(limit.after, str):
            moment = _read_path(status, limit.after)
            return (moment, limit) if isinstance(moment, datetime) else None
        return (status.history[-1].at + limit.after, limit) if status.history else None


def describe_machine(machine: StateMachine[P]) -> str:
    """Return a state machine as Markdown: a diagram and its two tables."""
    diagram = [f"    [*] --> {machine.initial}"]
    diagram += dict.fromkeys(f"    {step.source} --> {step.target}" for step in machine.steps)
    diagram += [f"    {phase} --> [*]" for phase in machine.phases if phase in machine.final]
    steps = [
        f"| {step.source} | {step.target} | {step.by} | {_describe_conditions(step)} | {step.why} |"
        for step in machine.steps
    ]
    limits = [
        f"| {limit.phase} | {_describe_span(limit.after)} | {limit.target or 'stays, alert raised'} | {limit.why} |"
        for limit in machine.limits
    ]
    return "\n".join(
        [
            f"## {machine.name}",
            "",
            "```mermaid",
            "stateDiagram-v2",
            *diagram,
            "```",
            "",
            "| from | to | by | status must hold | when |",
            "| --- | --- | --- | --- | --- |",
            *steps,
            "",
            "| phase | may last | then | why |",
            "| --- | --- | --- | --- |",
            *limits,
            "",
        ]
    )


def _describe_conditions(step: PhaseStep[P]) -> str:
    needs = [need.replace("|", " or ") for need in step.needs]
    return ", ".join(
        [*needs, *(f"no {bar}" for bar in step.bars), *(f"{path} = {value}" for path, value in step.equals)]
    )


def _describe_span(after: timedelta | str) -> str:
    if isinstance(after, str):
        return f"until `{after}`"
    minutes = after // timedelta(minutes=1)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"


def _has_any(status: Status, need: str) -> bool:
    # Zero and an empty mapping count as set: a lab without ports was allocated an empty mapping.
    values = [_read_path(status, path) for path in need.split("|")]
    return any(value is not None and value is not False and value not in ("", ()) for value in values)


def _read_path(status: Status, path: str) -> object:
    try:
        return attrgetter(path)(status)
    except AttributeError:
        first = path.partition(".")[0]
        assert hasattr(status, first), f"{type(status).__name__} has no field {path}"
        return None
