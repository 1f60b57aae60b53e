"""What an operator should look at in a pool's life, judged from a view. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from lcm.controllers.pool.view import View
from lcm.model.alert import Complaint, Severity
from lcm.model.pool import POOL, PoolPhase

FAILED: Final = "PoolFailed"
OVERDUE: Final = "PoolOverdue"
STUCK: Final = "PoolStuck"
NAMES: Final = (FAILED, OVERDUE, STUCK)
_WAITS: Final = {
    PoolPhase.SCALING_DOWN: "its workers are not seen gone",
    PoolPhase.TERMINATING: "its workers are not seen gone",
}


def complaints(view: View, trouble: str) -> Sequence[Complaint]:
    """List what is wrong with a pool now; `trouble` is what it was refused."""
    found = (_failed(view), _overdue(view), stuck(view.pool.metadata.name, "Refused", trouble) if trouble else None)
    return [one for one in found if one is not None]


def stuck(name: str, reason: str, why: str) -> Complaint:
    """Say that a pool cannot go on before a person has mended something."""
    return Complaint(alert=STUCK, severity=Severity.CRITICAL, reason=reason, message=f"{name}: {why}"[:2000])


def _failed(view: View) -> Complaint | None:
    if view.status.phase is not PoolPhase.FAILED:
        return None
    text = f"{view.pool.metadata.name}: {view.status.last_error}"
    return Complaint(alert=FAILED, severity=Severity.CRITICAL, reason="MinimumNotReady", message=text[:2000])


def _overdue(view: View) -> Complaint | None:
    phase = view.status.phase
    due = POOL.deadline(phase, view.status)
    if due is None or due[1].target is not None or view.now < due[0]:
        return None
    hours = (view.now - view.status.history[-1].at) // timedelta(hours=1)
    text = f"{view.pool.metadata.name} has been {phase} for {hours} hours: {_WAITS.get(phase) or _booked(view)}"
    severity = Severity.WARNING if phase is PoolPhase.DRAINING else Severity.CRITICAL
    return Complaint(alert=OVERDUE, severity=severity, reason=str(phase), message=text)


def _booked(view: View) -> str:
    if not view.claims:
        return "sessions are on its workers whose time is over"
    last = max(one.held.claim.end for one in view.claims)
    return f"it is booked until {last:%Y-%m-%d %H:%MZ}, and ends after that, or when those bookings are cancelled"
