"""Alerts about objects: raised, cleared, listed, swept. The only record of what is raised.

Called by `control.plane.local` for complaints of controllers, and by housekeeping, which sweeps the alerts whose object
is well or gone: whoever raised one may not have lived to clear it. All alerts of an object are stored under one key, so
that concurrent writers conflict.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.objects.records import ALERTS, alerts_key, read_entry
from lcm.control.objects.writer import Writer, commit_ops, retry_conflicts
from lcm.control.plane.protocol import R, Ref, ref_of
from lcm.control.telemetry.alert_records import Alerts, decode_alerts, make_alert, read_alerts
from lcm.control.telemetry.reports import USAGE_LIMITS
from lcm.control.telemetry.state_alerts import STATE_ALERTS
from lcm.model.base.errors import Conflict, Invalid, to_fault
from lcm.model.base.event import encode_event
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import LabletSession, worker_of
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.telemetry.alert import Alert, AlertFinding
from lcm.store.base import ABSENT, CheckRevision, Store, scan_all

_USAGE_ALERTS: Final = frozenset(limit.alert for limit in USAGE_LIMITS)
_UNMEASURED_PHASES: Final = frozenset({WorkerPhase.STOPPED, WorkerPhase.TERMINATED})
"""Phases in which no report comes any more that would clear an alert about a measurement."""


async def raise_alert(writer: Writer, ref: Ref[R], complaint: AlertFinding) -> None:
    """Raise an alert about an object, unless it is raised already."""
    try:  # the limits of its fields hold for a complaint made in code as for one from HTTP
        msgspec.convert(msgspec.to_builtins(complaint), AlertFinding)
    except msgspec.ValidationError as error:
        raise Invalid(to_fault(error, "complaint")) from error

    async def attempt() -> None:
        record = await writer.require(ref)
        kept, now = await read_alerts(writer.store, alerts_key(ref_of(record.resource))), writer.clock.now()
        after = kept.alerts.with_raised(make_alert(record.resource, complaint, now))
        if after != kept.alerts:
            ops = [*kept.replace_ops(after), CheckRevision(record.key, record.revision)]
            await writer.commit_edits(ops=ops, told=kept.change_events(after, now))

    await retry_conflicts(attempt, unless=lambda _: False)


async def clear_alert(writer: Writer, ref: Ref[R], name: str) -> None:
    """Clear an alert about an object, if it is raised."""

    async def attempt() -> None:
        record = await writer.require(ref)
        kept = await read_alerts(writer.store, alerts_key(ref_of(record.resource)))
        after = kept.alerts.without(name)
        if after != kept.alerts:
            await writer.commit_edits(ops=kept.replace_ops(after), told=kept.change_events(after, writer.clock.now()))

    await retry_conflicts(attempt, unless=lambda _: False)


async def sweep_alerts(store: Store, now: datetime) -> int:
    """Clear the alerts that nothing in the state of their object bears out any more; return how many there were."""
    swept, page = 0, await scan_all(store, ALERTS)
    for entry in page.entries:
        kept, key = decode_alerts(entry.key, entry), entry.key.removeprefix(ALERTS)
        kind = next((one for one in KINDS.values() if key.startswith(one.prefix)), None)
        found = await store.get(key) if kind else None
        resource = read_entry(found, kind.struct) if found and kind else None
        after = Alerts(standing=tuple(one for one in kept.alerts.standing if not is_outdated(one.alert, resource)))
        if kind is None or after == kept.alerts:
            continue
        told = [encode_event(event) for event in kept.change_events(after, now)]
        unchanged = CheckRevision(key, found.revision if found else ABSENT)
        with suppress(Conflict):  # somebody is at it: the next sweep looks again
            await commit_ops(store, *kept.replace_ops(after), unchanged, events=told)
            swept += len(kept.alerts.standing) - len(after.standing)
    return swept


def is_outdated(alert: Alert, resource: Resource | None) -> bool:
    """Return whether an object, None if it is gone, is not in a state of which such an alert can be raised. Pure."""
    if resource is None or resource.metadata.uid != alert.uid:
        return True
    match resource:
        case LabletSession() if alert.alert in STATE_ALERTS:
            return STATE_ALERTS[alert.alert](resource) is None
        case LabletSession():
            return worker_of(resource) is None
        case LabWorker():
            return alert.alert in _USAGE_ALERTS and resource.status.phase in _UNMEASURED_PHASES
        case Reservation():
            return resource.status.phase in RESERVATION_MACHINE.final
    return False


async def list_alerts(store: Store) -> Sequence[Alert]:
    """List all alerts that are raised, oldest first."""
    page = await scan_all(store, ALERTS)
    found = [one.alert for entry in page.entries for one in decode_alerts(entry.key, entry).alerts.standing]
    return sorted(found, key=lambda one: (one.since, one.kind, one.namespace, one.name, one.alert))
