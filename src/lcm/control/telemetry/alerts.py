"""Alerts about objects: raised, cleared, listed. The only record of what is raised.

Called by `control.plane.local` for complaints of controllers, by `reports`, and by `control.objects.writer`, which
removes the alerts of an object with it. All alerts of an object are stored under one key, so that concurrent writers
conflict.
"""

from collections.abc import Sequence

import msgspec

from lcm.control.objects.records import ALERTS, alerts_key
from lcm.control.objects.writer import Writer, retry_conflicts
from lcm.control.plane.protocol import R, Ref
from lcm.control.telemetry.alert_records import decode_alerts, make_alert, read_alerts
from lcm.model.base.errors import Invalid, to_fault
from lcm.model.telemetry.alert import Alert, AlertFinding
from lcm.store.base import CheckRevision, Store, scan_all


async def raise_alert(writer: Writer, ref: Ref[R], complaint: AlertFinding) -> None:
    """Raise an alert about an object, unless it is raised already."""
    try:  # the limits of its fields hold for a complaint made in code as for one from HTTP
        msgspec.convert(msgspec.to_builtins(complaint), AlertFinding)
    except msgspec.ValidationError as error:
        raise Invalid(to_fault(error, "complaint")) from error

    async def attempt() -> None:
        record = await writer.require(ref)
        kept, now = await read_alerts(writer.store, alerts_key(record.resource)), writer.clock.now()
        after = kept.alerts.with_raised(make_alert(record.resource, complaint, now))
        if after != kept.alerts:
            ops = [*kept.replace_ops(after), CheckRevision(record.key, record.revision)]
            await writer.commit_edits(ops=ops, told=kept.change_events(after, now))

    await retry_conflicts(attempt, unless=lambda _: False)


async def clear_alert(writer: Writer, ref: Ref[R], name: str) -> None:
    """Clear an alert about an object, if it is raised."""

    async def attempt() -> None:
        record = await writer.require(ref)
        kept = await read_alerts(writer.store, alerts_key(record.resource))
        after = kept.alerts.without(name)
        if after != kept.alerts:
            await writer.commit_edits(ops=kept.replace_ops(after), told=kept.change_events(after, writer.clock.now()))

    await retry_conflicts(attempt, unless=lambda _: False)


async def list_alerts(store: Store) -> Sequence[Alert]:
    """List all alerts that are raised, oldest first."""
    page = await scan_all(store, ALERTS)
    found = [one.alert for entry in page.entries for one in decode_alerts(entry).alerts.standing]
    return sorted(found, key=lambda one: (one.since, one.kind, one.namespace, one.name, one.alert))
