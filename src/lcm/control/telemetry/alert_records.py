"""The alerts of one object as the store keeps them: under one key, so that two who write at once notice each other.

Used by `alerts`, by `reports` and by `hanging`, which takes them away with their object. What is raised is remembered
here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from lcm.control.delivery.events import cleared, raised
from lcm.control.objects.records import CODEC, written
from lcm.model.base.event import Event
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import Resource
from lcm.model.telemetry.alert import Alert, Complaint, Severity
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store


class Standing(Part):
    """An alert that is raised; `calm_since` is when what is measured fell below the limit, for the time being."""

    alert: Alert
    calm_since: Moment | None = None


class Alerts(Part):
    """All alerts of one object."""

    standing: Annotated[tuple[Standing, ...], msgspec.Meta(max_length=100)] = ()

    def find(self, name: str) -> Standing | None:
        """Find an alert by its name; None means not raised."""
        return next((one for one in self.standing if one.alert.alert == name), None)

    def raising(self, alert: Alert) -> "Alerts":
        """Raise an alert; one that stands already only takes on another severity or reason, and keeps its beginning."""
        old = self.find(alert.alert)
        if old is None:
            return self.having(Standing(alert=alert))
        if (old.alert.severity, old.alert.reason) == (alert.severity, alert.reason):
            return self
        later = msgspec.structs.replace(alert, since=old.alert.since)
        return self.having(Standing(alert=later, calm_since=old.calm_since))

    def having(self, new: Standing) -> "Alerts":
        """Put an alert in the place of the one with its name."""
        return Alerts(standing=(*self.without(new.alert.alert).standing, new))

    def without(self, name: str) -> "Alerts":
        """Leave an alert out."""
        return Alerts(standing=tuple(one for one in self.standing if one.alert.alert != name))


@dataclass(frozen=True, slots=True)
class Board:
    """The alerts of one object, and the state in which they were found."""

    key: str
    alerts: Alerts
    revision: int

    def becoming(self, after: Alerts) -> Sequence[Op]:
        """Say how the store puts others in their place."""
        if after == self.alerts:
            return ()
        if not after.standing:
            return (Delete(self.key, at=self.revision),)
        return (Put(self.key, written(after), at=self.revision),)

    def told(self, after: Alerts, now: datetime) -> Sequence[Event]:
        """Say what that means to the outside; what has become critical is told once more."""
        old = {one.alert.alert: one.alert for one in self.alerts.standing}
        new = {one.alert.alert: one.alert for one in after.standing}
        return [
            *(cleared(alert, now=now) for name, alert in old.items() if name not in new),
            *(raised(alert, now=now) for name, alert in new.items() if name not in old or _worse(old[name], alert)),
        ]


async def board(store: Store, key: str) -> Board:
    """Read the alerts of one object."""
    entry = await store.get(key)
    return board_of(entry) if entry else Board(key, Alerts(), ABSENT)


def board_of(entry: Entry) -> Board:
    """Read the alerts that an entry holds."""
    return Board(entry.key, CODEC.decode(entry.value, Alerts), entry.revision)


def complaint_of(resource: Resource, complaint: Complaint, now: datetime) -> Alert:
    """Make an alert about an object."""
    metadata = resource.metadata
    return Alert(
        kind=resource.kind,
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        alert=complaint.alert,
        severity=complaint.severity,
        reason=complaint.reason,
        message=complaint.message,
        since=now,
    )


def _worse(before: Alert, after: Alert) -> bool:
    return after.severity is Severity.CRITICAL is not before.severity
