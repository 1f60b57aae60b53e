"""What happens on a simulated CML, as its telemetry reports it; controllers read people's activity from it."""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lcm.sim.cml.pace import CmlPace

_MOST_EVENTS: Final = 1_000
_ROUNDING: Final = 1.0
"""An age and its moment, which is rounded to microseconds, differ by less than this many simulated seconds."""

EventData = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TelemetryEvent:
    """One event; it may be in the future."""

    age: float
    category: str
    lab_id: str | None
    node_id: str | None
    data: EventData


class CmlTelemetry:
    """The newest events by age."""

    def __init__(self, pace: CmlPace) -> None:
        self._pace = pace
        self._events: list[TelemetryEvent] = []
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
        """Record what happens now, or will happen after some simulated seconds unless it is dropped before."""
        event = TelemetryEvent(self._pace.age() + after, category, lab_id, node_id, data)
        if not self._events or self._events[-1].age <= event.age:
            self._events.append(event)
        else:
            insort(self._events, event, key=_age)
        if len(self._events) > 2 * _MOST_EVENTS:
            self._events = self._events[-_MOST_EVENTS:]

    def drop_planned(self, node_ids: set[str], age: float) -> None:
        """Drop events of these nodes that lie after an age."""
        first = self._index_after(age)
        self._events[first:] = [event for event in self._events[first:] if event.node_id not in node_ids]

    @property
    def events(self) -> Sequence[TelemetryEvent]:
        """Every known event, future ones included."""
        return self._events

    def restore_events(self, events: Iterable[TelemetryEvent]) -> None:
        """Restore the events of another CML."""
        self._events = sorted(events, key=_age)

    def past_events(self, lab_id: str | None = None) -> Sequence[tuple[datetime, TelemetryEvent]]:
        """Return what has happened, oldest first, everywhere or in one lab."""
        past = self._events[: self._index_after(self._pace.age())]
        return [(self._pace.moment(event.age), event) for event in past if lab_id in {None, event.lab_id}]

    def events_after(self, moment: datetime) -> Sequence[tuple[datetime, TelemetryEvent]]:
        """Return what has happened after a moment, oldest first."""
        first, end = self._index_after(self._pace.age_at(moment) - _ROUNDING), self._index_after(self._pace.age())
        dated = [(self._pace.moment(event.age), event) for event in self._events[first:end]]
        return [(at, event) for at, event in dated if at > moment]

    def _index_after(self, age: float) -> int:
        return bisect_right(self._events, age, key=_age)


def _age(event: TelemetryEvent) -> float:
    return event.age
