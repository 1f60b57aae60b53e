"""Raising and clearing alerts. Called by `local` for what controllers complain of."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from lcm.control.objects.records import ALERTS, alerts_key
from lcm.control.objects.writer import Ledger, persistently
from lcm.control.plane.protocol import R, Ref
from lcm.control.telemetry.alert_records import board, board_of, complaint_of
from lcm.model.base.errors import Fault, Invalid
from lcm.model.telemetry.alert import Alert, Complaint
from lcm.store.base import Check, Store, everything


async def complain(ledger: Ledger, ref: Ref[R], complaint: Complaint) -> None:
    """Raise an alert about an object, unless it is raised already."""
    _check(complaint)

    async def attempt() -> None:
        record = await ledger.need(ref)
        kept, now = await board(ledger.store, alerts_key(record.resource)), ledger.clock.now()
        after = kept.alerts.raising(complaint_of(record.resource, complaint, now))
        if after != kept.alerts:
            ops = [*kept.becoming(after), Check(record.key, record.revision)]
            await ledger.commit(ops=ops, told=kept.told(after, now))

    await persistently(attempt, unless=lambda _: False)


async def settle(ledger: Ledger, ref: Ref[R], name: str) -> None:
    """Clear an alert about an object, if it is raised."""

    async def attempt() -> None:
        record = await ledger.need(ref)
        kept = await board(ledger.store, alerts_key(record.resource))
        after = kept.alerts.without(name)
        if after != kept.alerts:
            await ledger.commit(ops=kept.becoming(after), told=kept.told(after, ledger.clock.now()))

    await persistently(attempt, unless=lambda _: False)


async def every_alert(store: Store) -> Sequence[Alert]:
    """List what is raised, oldest first."""
    page = await everything(store, ALERTS)
    found = [one.alert for entry in page.entries for one in board_of(entry).alerts.standing]
    return sorted(found, key=_order)


def _check(complaint: Complaint) -> None:
    """Hold what code has put together against the limits of its fields, as is done with what comes over HTTP."""
    try:
        msgspec.convert(msgspec.to_builtins(complaint), Complaint)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        raise Invalid(Fault(path.rstrip("`") or "complaint", problem)) from error


def _order(alert: Alert) -> tuple[datetime, str, str, str, str]:
    return alert.since, alert.kind, alert.namespace, alert.name, alert.alert
