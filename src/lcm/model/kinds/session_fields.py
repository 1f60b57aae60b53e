"""Status fields of a session that change together: those of its worker when it leaves it, those of its requests.

The scheduler and the lablet controller report them; `control.booking` and `control.telemetry` commit them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from lcm.model.base.resource import Condition, Truth, shorten_text, with_condition
from lcm.model.kinds.saved_lab import LabRequest, has_timed_out
from lcm.model.kinds.session import LabletSession, LabletSessionStatus, SessionCondition, is_asap

_WORKER_FIELDS: Final = (
    *("worker_id", "worker_ref", "worker_name", "worker_namespace", "assigned_at"),
    *("allocated_ports", "resource_allocation", "cml_lab_id", "access_url", "access_urls", "progress"),
    "taken_from",
    *("boot_use", "nodes"),
    *("observed_ports", "port_drift_detected", "observed_last"),
)
"""What a session has of its worker, of its lab there, and of looks at it by which another lab would be judged."""
_NEW_STATUS: Final = LabletSessionStatus()


def fields_without_worker(conditions: tuple[Condition, ...]) -> dict[str, Any]:
    """Return the status fields that a session has once it leaves its worker, with these conditions."""
    return {name: getattr(_NEW_STATUS, name) for name in _WORKER_FIELDS} | {"conditions": conditions}


def fields_to_place_again(session: LabletSession, reason: str, why: str, now: datetime) -> dict[str, Any]:
    """Return the status fields of a session that loses its worker and is placed again.

    It keeps what it was promised, and loses what it only held for the time being.
    """
    held: dict[str, Any] = {"claim": None, "seat": None} if is_asap(session) else {}
    return fields_without_worker(_conditions_without_worker(session, reason, why, now)) | held


def _conditions_without_worker(session: LabletSession, reason: str, why: str, now: datetime) -> tuple[Condition, ...]:
    """Return the conditions of a session that loses its worker.

    A booking without a planned worker depends on its worker alone, so its promise is at risk from this moment
    on.
    """
    false = Condition(type=SessionCondition.WORKER_ASSIGNED, status=Truth.FALSE, last_transition_at=now, reason=reason)
    conditions = with_condition(session.status.conditions, false)
    if is_asap(session) or session.status.seat is not None:
        return conditions
    risk = Condition(
        type=SessionCondition.AT_RISK,
        status=Truth.TRUE,
        last_transition_at=now,
        reason=reason,
        message=shorten_text(why),
    )
    return with_condition(conditions, risk)


def open_requests(status: LabletSessionStatus) -> Mapping[str, LabRequest]:
    """Return the requests that were not answered yet, by the fields that hold them."""
    found = {"observation": status.observation_request, "save": status.save_request}
    return {name: one for name, one in found.items() if one is not None}


def unanswered_fields(name: str, error: str) -> dict[str, Any]:
    """Return the status fields of a request that gets no answer, and why."""
    return {f"{name}_request": None, f"{name}_error": shorten_text(error)}


def clear_timed_out_requests(status: LabletSessionStatus, now: datetime) -> LabletSessionStatus:
    """Clear requests that were not answered in time, and record the errors.

    Returns the same object when there is nothing to clear.
    """
    changes: dict[str, Any] = {}
    for name, request in open_requests(status).items():
        if has_timed_out(request, now):
            asked = f"{request.requested_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
            waited = f"no answer came within {request.limit // timedelta(seconds=1)} s; ask again"
            changes |= unanswered_fields(
                name, f"not {request.deed}: {request.requested_by} asked at {asked}, and {waited}"
            )
    return msgspec.structs.replace(status, **changes) if changes else status
