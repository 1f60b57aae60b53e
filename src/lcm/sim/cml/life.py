"""The life of a simulated node: the moments at which its state changes, past and to come.

A state is a pure function of these moments and of the machine's age, so nothing needs to tick.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, Self

_KEPT: Final = 12


class State(StrEnum):
    """CML's states of a node; links and interfaces know the first two and STARTED only."""

    DEFINED = "DEFINED_ON_CORE"
    STOPPED = "STOPPED"
    QUEUED = "QUEUED"
    STARTED = "STARTED"
    BOOTED = "BOOTED"
    DISCONNECTED = "DISCONNECTED"


ACTIVE: Final = frozenset({State.QUEUED, State.STARTED, State.BOOTED, State.DISCONNECTED})
RUNNING: Final = frozenset({State.STARTED, State.BOOTED})
_RESTING: Final = frozenset({State.DEFINED, State.STOPPED, State.BOOTED})


class Life:
    """Changes of state by age, the last of them perhaps still to come."""

    __slots__ = ("_changes",)

    def __init__(self, age: float, state: State = State.DEFINED) -> None:
        self._changes: list[tuple[float, State]] = [(age, state)]

    @property
    def changes(self) -> Sequence[tuple[float, State]]:
        """Every change that is still known, from which another one can be made."""
        return self._changes

    @classmethod
    def of(cls, changes: Iterable[tuple[float, State]]) -> Self:
        """Make one with these changes."""
        (age, state), *later = changes
        made = cls(age, state)
        made._changes.extend(later)
        return made

    def state(self, age: float) -> State:
        """Return the state at an age."""
        for since, state in reversed(self._changes):
            if since <= age:
                return state
        return self._changes[0][1]

    def plan(self, age: float, *steps: tuple[float, State]) -> None:
        """Forget what was still to come, and change state after each of these numbers of simulated seconds."""
        self._changes = [change for change in self._changes if change[0] <= age][-_KEPT:]
        self._changes.extend((age + delay, state) for delay, state in steps)

    def settled(self, age: float) -> bool:
        """Tell whether it has reached the state that it was asked for."""
        since, state = self._changes[-1]
        return since <= age and state in _RESTING

    def leaving(self, age: float) -> bool:
        """Tell whether it is on its way to stand still."""
        since, state = self._changes[-1]
        return since > age and state in {State.STOPPED, State.DEFINED}

    def entered(self, state: State) -> float | None:
        """Return the age at which it last came, or will come, into a state."""
        return next((since for since, entered in reversed(self._changes) if entered is state), None)
