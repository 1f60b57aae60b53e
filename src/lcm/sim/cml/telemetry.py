"""What happens on a simulated CML, as its telemetry tells it; controllers read people's activity from it."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lcm.sim.cml.pace import Pace

_KEPT: Final = 1_000
_ROUNDING: Final = 1.0
"""An age and its moment, which is a whole number of microseconds, are the same up to less simulated seconds."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One event, perhaps still to come."""

    age: float
    category: str
    lab_id: str | None
    node_id: str | None
    data: Json


class Telemetry:
    """The newest events by age."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._events: list[Event] = []
        self.opt_in: bool | None = True

    def record(
        self,
        category: str,
        *,
        after: float = 0.0,
        lab_id: str | None = None,
        node_id: str | None = None,
        **data: str | int,
    ) -> None:
        """Note what happens now, or will happen after some simulated seconds unless it is forgotten before."""
        insort(self._events, Event(self._pace.age() + after, category, lab_id, node_id, data), key=_age)
        if len(self._events) > 2 * _KEPT:
            self._events = self._events[-_KEPT:]

    def forget_plans(self, node_ids: set[str], age: float) -> None:
        """Drop what was still to happen to these nodes at an age."""
        self._events = [event for event in self._events if event.age <= age or event.node_id not in node_ids]

    @property
    def events(self) -> Sequence[Event]:
        """Everything that is known, also what is still to come."""
        return self._events

    def recall(self, events: Iterable[Event]) -> None:
        """Know what another one knew."""
        self._events = sorted(events, key=_age)

    def past(self, lab_id: str | None = None) -> Sequence[tuple[datetime, Event]]:
        """List what has happened, oldest first; everywhere, or in one lab."""
        past = self._events[: self._place(self._pace.age())]
        return [(self._pace.moment(event.age), event) for event in past if lab_id in {None, event.lab_id}]

    def after(self, moment: datetime) -> Sequence[tuple[datetime, Event]]:
        """List what has happened after a moment, oldest first."""
        first, end = self._place(self._pace.age_at(moment) - _ROUNDING), self._place(self._pace.age())
        told = [(self._pace.moment(event.age), event) for event in self._events[first:end]]
        return [(at, event) for at, event in told if at > moment]

    def _place(self, age: float) -> int:
        return bisect_right(self._events, age, key=_age)


def _age(event: Event) -> float:
    return event.age
