"""Raising and clearing alerts. Called by `local` for what controllers complain of."""

from collections.abc import Sequence
from datetime import datetime

from lcm.control.board import Standing, board, board_of, complaint_of
from lcm.control.ledger import Ledger, persistently
from lcm.control.plane import R, Ref
from lcm.control.records import ALERTS, alerts_key
from lcm.model.alert import Alert, Complaint
from lcm.store.base import Check, Store, everything


async def complain(ledger: Ledger, ref: Ref[R], complaint: Complaint) -> None:
    """Raise an alert about an object, unless it is raised already."""

    async def attempt() -> None:
        record = await ledger.need(ref)
        kept, now = await board(ledger.store, alerts_key(record.resource)), ledger.clock.now()
        if kept.alerts.find(complaint.alert) is not None:
            return
        alert = complaint_of(record.resource, complaint, now)
        after = kept.alerts.having(Standing(alert=alert))
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


def _order(alert: Alert) -> tuple[datetime, str, str, str, str]:
    return alert.since, alert.kind, alert.namespace, alert.name, alert.alert
