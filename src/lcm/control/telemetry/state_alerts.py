"""Alerts that a session's state says by itself: raised and cleared in the commit that changes the state.

`control.objects.writer` calls `follow_state` for each change, so that no alert is raised before the state it speaks of
is there, and none outlasts it. All other alerts are findings of controllers; `control.telemetry.alerts` keeps those.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from lcm.control.objects.records import alerts_key
from lcm.control.plane.protocol import ref_of
from lcm.control.telemetry.alert_records import make_alert, read_alerts
from lcm.model.base.event import Event
from lcm.model.base.resource import Truth, find_condition, shorten_text
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import (
    ON_WORKER_PHASES,
    SESSION_MACHINE,
    LabletSession,
    RiskReason,
    SessionCondition,
    describe_drift,
)
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.store.base import Op, Store

AT_RISK_ALERT: Final = "SessionAtRisk"
DRIFT_ALERT: Final = "PortDrift"
_RISK_REASONS: Final = frozenset(map(str, RiskReason))
"""A session that has just lost its worker has another reason, until the scheduler has looked for another place."""


def check_at_risk(session: LabletSession) -> AlertFinding | None:
    """Complain of a session that may not get what it was promised."""
    risk = find_condition(session.status.conditions, SessionCondition.AT_RISK)
    over = session.status.phase in SESSION_MACHINE.final
    if risk is None or risk.status is not Truth.TRUE or over or risk.reason not in _RISK_REASONS:
        return None
    remedy = "" if risk.reason == RiskReason.NO_LICENCE else "; free a worker for it"
    text = f"{session.metadata.name}: {risk.message}{remedy}, or tell its owner"
    return AlertFinding(alert=AT_RISK_ALERT, severity=Severity.CRITICAL, reason=risk.reason, message=shorten_text(text))


def check_drift(session: LabletSession) -> AlertFinding | None:
    """Complain of a lab that has other ports than it was given."""
    status = session.status
    if not status.port_drift_detected or status.phase not in ON_WORKER_PHASES:
        return None
    name = session.metadata.name
    text = f"the lab of {name} on {status.worker_name} has other ports than it was given: {describe_drift(status)}"
    remedy = (
        f"no other session there gets them while it runs; correct its tags, or end it (`lcm observe session {name}`)"
    )
    return AlertFinding(
        alert=DRIFT_ALERT, severity=Severity.WARNING, reason=DRIFT_ALERT, message=shorten_text(f"{text}; {remedy}")
    )


STATE_ALERTS: Final[Mapping[str, Callable[[LabletSession], AlertFinding | None]]] = {
    AT_RISK_ALERT: check_at_risk,
    DRIFT_ALERT: check_drift,
}
"""The alerts that a session's state says, by name."""


async def follow_state(
    store: Store, before: Resource | None, after: Resource, now: datetime
) -> tuple[Sequence[Op], Sequence[Event]]:
    """Return the operations and events by which the alerts of an object follow a change of its state."""
    if not isinstance(after, LabletSession):
        return (), ()
    changed = {
        name: finding
        for name, check in STATE_ALERTS.items()
        if _gist(finding := check(after)) != _gist(check(before) if isinstance(before, LabletSession) else None)
    }
    if not changed:
        return (), ()
    kept = await read_alerts(store, alerts_key(ref_of(after)))
    alerts = kept.alerts
    for name, finding in changed.items():
        alerts = alerts.with_raised(make_alert(after, finding, now)) if finding else alerts.without(name)
    return kept.replace_ops(alerts), kept.change_events(alerts, now)


def _gist(finding: AlertFinding | None) -> tuple[Severity, str] | None:
    return (finding.severity, finding.reason) if finding else None
