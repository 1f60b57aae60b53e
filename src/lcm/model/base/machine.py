"""State machines as tables: which step, by whom, with which status already known, and how long a phase may last.

Only the control plane takes steps. `docs/states.md` is made from these tables by `describe`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from typing import Final, Generic, TypeVar

from lcm.model.base.errors import IllegalStep
from lcm.model.base.resource import PhaseChange, Status, story

P = TypeVar("P", bound=StrEnum)

USER: Final = "user"
CONTROL_PLANE: Final = "control-plane"
SCHEDULER: Final = "scheduler"
WORKER_CONTROLLER: Final = "worker-controller"
LABLET_CONTROLLER: Final = "lablet-controller"
POOL_CONTROLLER: Final = "pool-controller"
ACTORS: Final = frozenset({SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER})
"""Our own processes besides the control plane."""


@dataclass(frozen=True, slots=True)
class Step(Generic[P]):
    """One allowed change of phase.

    `needs` names status fields that must hold something (`a|b` wants either), `bars` those that must hold nothing, and
    `equals` those that must hold exactly this: where "unknown" is possible, neither of the other two will do.
    """

    source: P
    target: P
    by: str
    why: str
    needs: tuple[str, ...] = ()
    bars: tuple[str, ...] = ()
    equals: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Limit(Generic[P]):
    """How long a phase may last: a span, or the moment in a field of the status. No target: it raises an alert."""

    phase: P
    after: timedelta | str
    target: P | None
    why: str


@dataclass(frozen=True, slots=True)
class Machine(Generic[P]):
    """All phases of a kind and the steps between them."""

    name: str
    initial: P
    final: frozenset[P]
    steps: tuple[Step[P], ...]
    limits: tuple[Limit[P], ...]

    @property
    def phases(self) -> tuple[P, ...]:
        """Every phase, in the order in which it was declared."""
        return tuple(type(self.initial))

    def find(self, source: P, target: P) -> Sequence[Step[P]]:
        """Every way in which this change may happen."""
        return [step for step in self.steps if step.source is source and step.target is target]

    def take(self, source: P, target: P, *, by: str, status: Status) -> Step[P]:
        """Allow a step, given the status as it would be afterwards, or raise IllegalStep with the object's story."""
        ways = self.find(source, target)
        if not ways:
            allowed = ", ".join(dict.fromkeys(step.target for step in self.steps if step.source is source)) or "nothing"
            raise self._illegal(source, target, by, f"from {source} only {allowed} may follow", status.history)
        mine = [step for step in ways if step.by == by]
        if not mine:
            raise self._illegal(source, target, by, f"only {', '.join(step.by for step in ways)} may", status.history)
        missing = [need for need in mine[0].needs if not _known(status, need)]
        if missing:
            raise self._illegal(source, target, by, f"status lacks {', '.join(missing)}", status.history)
        barred = [bar for bar in mine[0].bars if _known(status, bar)]
        if barred:
            raise self._illegal(source, target, by, f"status still holds {', '.join(barred)}", status.history)
        other = [f"{path} is not {value}" for path, value in mine[0].equals if _value(status, path) != value]
        if other:
            raise self._illegal(source, target, by, ", ".join(other), status.history)
        return mine[0]

    def deadline(self, phase: P, status: Status) -> tuple[datetime, Limit[P]] | None:
        """Say until when a phase may last, and what then; None when it may last for ever, or that is not known yet."""
        limit = next((one for one in self.limits if one.phase is phase), None)
        if limit is None:
            return None
        if isinstance(limit.after, str):
            moment = _value(status, limit.after)
            return (moment, limit) if isinstance(moment, datetime) else None
        return (status.history[-1].at + limit.after, limit) if status.history else None

    def _illegal(self, source: P, target: P, by: str, why: str, history: Sequence[PhaseChange]) -> IllegalStep:
        told = story(history)
        return IllegalStep(
            f"{self.name} {source} -> {target} by {by}: {why}" + (f"\nits story:\n{told}" if told else "")
        )


def describe(machine: Machine[P]) -> str:
    """Write a machine as Markdown: a diagram and its two tables."""
    diagram = [f"    [*] --> {machine.initial}"]
    diagram += dict.fromkeys(f"    {step.source} --> {step.target}" for step in machine.steps)
    diagram += [f"    {phase} --> [*]" for phase in machine.phases if phase in machine.final]
    steps = [
        f"| {step.source} | {step.target} | {step.by} | {_conditions(step)} | {step.why} |" for step in machine.steps
    ]
    limits = [
        f"| {limit.phase} | {_span(limit.after)} | {limit.target or 'stays, alert raised'} | {limit.why} |"
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


def _conditions(step: Step[P]) -> str:
    needs = [need.replace("|", " or ") for need in step.needs]
    return ", ".join(
        [*needs, *(f"no {bar}" for bar in step.bars), *(f"{path} = {value}" for path, value in step.equals)]
    )


def _span(after: timedelta | str) -> str:
    if isinstance(after, str):
        return f"until `{after}`"
    minutes = after // timedelta(minutes=1)
    return f"{minutes // 60} h" if minutes % 60 == 0 else f"{minutes} min"


def _known(status: Status, need: str) -> bool:
    return any(_holds(_value(status, path)) for path in need.split("|"))


def _holds(value: object) -> bool:
    # Zero and an empty mapping are answers: a lab without ports has been allocated none.
    return value is not None and value is not False and value not in ("", ())


def _value(status: Status, path: str) -> object:
    try:
        return attrgetter(path)(status)
    except AttributeError:
        first = path.partition(".")[0]
        assert hasattr(status, first), f"{type(status).__name__} has no field {path}"
        return None
