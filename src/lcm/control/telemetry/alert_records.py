"""The alerts of one object as the store keeps them: under one key, so that two who write at once notice each other.

Used by `alerts`, by `reports` and by `hanging`, which takes them away with their object. What is raised is remembered
here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec

from lcm.control.delivery.events import alert_cleared_event, alert_raised_event
from lcm.control.objects.records import CODEC, encode_checked
from lcm.model.base.event import Event
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import Resource
from lcm.model.telemetry.alert import Alert, AlertFinding, Severity
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store


class ActiveAlert(Part):
    """A raised alert; `calm_since` is when the measured value last fell below the limit, None while it has not."""

    alert: Alert
    calm_since: Moment | None = None


class Alerts(Part):
    """All alerts of one object."""

    standing: Annotated[tuple[ActiveAlert, ...], msgspec.Meta(max_length=100)] = ()

    def find(self, name: str) -> ActiveAlert | None:
        """Find an alert by its name; None means that it is not raised."""
        return next((one for one in self.standing if one.alert.alert == name), None)

    def with_raised(self, alert: Alert) -> "Alerts":
        """Return the alerts with this one raised.

        An alert that is raised already only changes its severity or reason, and keeps the time at which it began.
        """
        old = self.find(alert.alert)
        if old is None:
            return self.with_alert(ActiveAlert(alert=alert))
        if (old.alert.severity, old.alert.reason) == (alert.severity, alert.reason):
            return self
        later = msgspec.structs.replace(alert, since=old.alert.since)
        return self.with_alert(ActiveAlert(alert=later, calm_since=old.calm_since))

    def with_alert(self, new: ActiveAlert) -> "Alerts":
        """Return the alerts with this one in place of the one of the same name."""
        return Alerts(standing=(*self.without(new.alert.alert).standing, new))

    def without(self, name: str) -> "Alerts":
        """Return the alerts without the one of this name."""
        return Alerts(standing=tuple(one for one in self.standing if one.alert.alert != name))


@dataclass(frozen=True, slots=True)
class AlertSnapshot:
    """The alerts of one object, and the revision at which they were read."""

    key: str
    alerts: Alerts
    revision: int

    def replace_ops(self, after: Alerts) -> Sequence[Op]:
        """Return the operations that replace the stored alerts."""
        if after == self.alerts:
            return ()
        if not after.standing:
            return (Delete(self.key, at=self.revision),)
        return (Put(self.key, encode_checked(after), at=self.revision),)

    def change_events(self, after: Alerts, now: datetime) -> Sequence[Event]:
        """Return the events for a change of alerts; an alert that has become critical is announced again."""
        old = {one.alert.alert: one.alert for one in self.alerts.standing}
        new = {one.alert.alert: one.alert for one in after.standing}
        return [
            *(alert_cleared_event(alert, now=now) for name, alert in old.items() if name not in new),
            *(
                alert_raised_event(alert, now=now)
                for name, alert in new.items()
                if name not in old or alert.severity is Severity.CRITICAL is not old[name].severity
            ),
        ]


async def read_alerts(store: Store, key: str) -> AlertSnapshot:
    """Read the alerts of one object."""
    return decode_alerts(key, await store.get(key))


def decode_alerts(key: str, entry: Entry | None) -> AlertSnapshot:
    """Decode the alerts that a key holds; none, if it is not there."""
    if entry is None:
        return AlertSnapshot(key, Alerts(), ABSENT)
    return AlertSnapshot(key, CODEC.decode(entry.value, Alerts), entry.revision)


def make_alert(resource: Resource, complaint: AlertFinding, now: datetime) -> Alert:
    """Make an alert about an object from a complaint."""
    metadata = resource.metadata
    return Alert(
        kind=resource.kind,
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        **msgspec.structs.asdict(complaint),
        since=now,
    )
