"""Whoever follows the events has every row as it is: no field of one changes without an event that has the new row."""

from typing import Any, Final

import msgspec
import pytest

from harness import given
from harness.plane_world import NOW
from lcm.control.delivery.events import derive_events
from lcm.model.base.resource import Condition, Owner, Truth
from lcm.model.kinds.definition import ResourceRequirements
from lcm.model.kinds.pool import PoolPause, ScalingDecision
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.rows import row_of
from lcm.model.kinds.session import Artifact, Progress, SessionCondition, Waiting
from lcm.model.kinds.worker import IdleVerdict

FIXED: Final = {"uid", "name", "namespace", "resource_version", "created_at"}
IDLE: Final = IdleVerdict(idle=True, reason="nobody", judged_at=NOW, pause_at=NOW, snoozed_until=NOW)
DECIDED: Final = ScalingDecision(at=NOW, action="none", reason="enough", workers_before=1, workers_after=1)
PAUSED: Final = PoolPause(since=NOW, until=NOW)
PROGRESS: Final = Progress(step="import", percent=40, message="importing", at=NOW)
NEEDS: Final = ResourceRequirements(cpu_cores=3, memory_gb=3, storage_gb=3)
RISK: Final = Condition(type=SessionCondition.AT_RISK, status=Truth.TRUE, last_transition_at=NOW, message="late")
FILE: Final = Artifact(name="a.txt", digest="d", size_bytes=1, collected_at=NOW)
BASES: Final[dict[str, Resource]] = {
    one.kind: one for one in (given.worker(phase="FAILED"), *given.every()[1:]) if row_of(one) is not None
}
CHANGES: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "LabWorker": {
        "phase": {"status": {"phase": "RUNNING"}},
        "lab_track": {"spec": {"lab_track": "other"}},
        "status": {"status": {"ec2": {"state": "stopped"}}},
        "region": {"spec": {"aws": {"region": "eu-north-1"}}},
        "instance_type": {"status": {"ec2": {"instance_type": "m5.metal"}}},
        "instance_id": {"status": {"ec2": {"instance_id": "i-1"}}},
        "pool": {"metadata": {"owner": Owner(kind="LabWorkerPool", name="p", uid="u")}},
        "capacity": {"status": {"capacity": given.machine(nodes=7)}},
        "license_status": {"status": {"cml": {"license_status": "EXPIRED"}}},
        "accepts_sessions": {"spec": {"accepts_sessions": False}},
        "ready_at": {"status": {"ready_at": NOW}},
        **{name: {"status": {"idle": IDLE}} for name in ("idle_reason", "pause_at", "snoozed_until")},
        "drain_deadline_at": {"status": {"drain_deadline_at": NOW}},
        "last_error": {"status": {"last_error": "no"}},
    },
    "LabletSession": {
        "phase": {"status": {"phase": "SCHEDULED"}},
        "lab_track": {"spec": {"lab_track": "other"}},
        "definition": {"spec": {"definition": "other:1.0.0"}},
        "owner": {"spec": {"owner": "eve"}},
        "student_email": {"spec": {"student_email": "eve@example.org"}},
        "reservation_id": {"spec": {"reservation_id": "r2"}},
        "starts_at": {"spec": {"timeslot_start": NOW}},
        "ends_at": {"status": {"ends_at": NOW}},
        "worker_id": {"status": {"worker_id": "w"}},
        "worker_name": {"status": {"worker_name": "w"}},
        "need": {"status": {"claim": given.claim()}},
        "queue_position": {"status": {"waiting": Waiting(queue_position=3, estimated_start=NOW, basis="b")}},
        "estimated_start": {"status": {"waiting": Waiting(queue_position=3, estimated_start=NOW, basis="b")}},
        **{name: {"status": {"progress": PROGRESS}} for name in ("step", "percent", "message")},
        "consoles": {"status": {"access_urls": {"r1": "telnet://r1"}}},
        "files": {"status": {"artifacts": (FILE,)}},
        "at_risk": {"status": {"conditions": (RISK,)}},
        "outcome": {"status": {"outcome": "FAILED"}},
        "last_error": {"status": {"last_error": "no"}},
    },
    "LabWorkerPool": {
        "phase": {"status": {"phase": "DELETING"}},
        "lab_track": {"spec": {"lab_track": "other"}},
        "template": {"spec": {"template": "other"}},
        "policy": {"spec": {"policy": "other"}},
        "min_workers": {"spec": {"min_workers": 77}},
        "max_workers": {"spec": {"max_workers": 77}},
        "workers": {"status": {"workers_by_phase": {"RUNNING": 77}}},
        "ready_workers": {"status": {"summary": {"ready_workers": 77}}},
        **{name: {"status": {"decisions": (DECIDED,)}} for name in ("action", "reason", "decided_at")},
        **{name: {"status": {"pause": PAUSED}} for name in ("is_paused", "paused_until")},
    },
    "LabletDefinition": {
        "phase": {"spec": {"state": "RETIRED"}},
        "lab_track": {"spec": {"lab_track": "other"}},
        "version": {"spec": {"version": "9.9.9"}},
        **{name: {"spec": {"resource_requirements": NEEDS}} for name in ("cpu_cores", "memory_gb", "storage_gb")},
        "nodes": {"spec": {"node_count": 77}},
        "max_duration_minutes": {"spec": {"max_duration_minutes": 77}},
        "observed_sessions": {"status": {"observed_sessions": 77}},
        "needs_review": {"status": {"needs_review": True}},
    },
    "Reservation": {
        "phase": {"status": {"phase": "CANCELLED"}},
        "lab_track": {"spec": {"lab_track": "other"}},
        "definition": {"spec": {"definition": "other:1.0.0"}},
        "owner": {"spec": {"owner": "eve"}},
        "count": {"spec": {"count": 77}},
        "starts_at": {"spec": {"timeslot_start": NOW}},
        "ends_at": {"status": {"ends_at": NOW}},
        "sessions_made": {"status": {"sessions_made": 77}},
        "sessions_ended": {"status": {"sessions_ended": 77}},
        "last_error": {"status": {"last_error": "no"}},
    },
    "WorkerTemplate": {
        "lab_track": {"spec": {"worker": {"lab_track": "other"}}},
        "region": {"spec": {"worker": {"aws": {"region": "eu-north-1"}}}},
        "instance_type": {"spec": {"worker": {"aws": {"instance_type": "m5.metal"}}}},
    },
}


def test_a_row_has_the_slots_without_the_time_to_start_and_to_clean_up() -> None:
    promised = given.reservation(starts_at=given.moment("08:40"), ends_at=given.moment("11:10"))
    assert row_of(promised) == row_of(given.reservation())
    soon = given.asap(claim=given.claim("09:00", "11:10"))
    assert row_of(soon).ends_at == given.moment("11:00")  # type: ignore[union-attr]  # a session has a row


@pytest.mark.parametrize("kind", BASES)
def test_every_field_of_a_row_is_tried(kind: str) -> None:
    fields = set(row_of(BASES[kind]).__struct_fields__) - FIXED  # type: ignore[union-attr]  # every kind of BASES has a row
    absent = {"lab_track", "phase"} - set(CHANGES[kind])
    assert set(CHANGES[kind]) == fields - absent
    assert not any(getattr(row_of(BASES[kind]), name) for name in absent), "a field that the kind does not have"


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in CHANGES for field in CHANGES[kind]])
def test_no_field_of_a_row_changes_without_an_event_that_has_the_new_row(kind: str, field: str) -> None:
    before = BASES[kind]
    after = given.changed(before, CHANGES[kind][field])
    assert getattr(row_of(after), field) != getattr(row_of(before), field)
    events = derive_events(before, after, now=NOW)
    assert events, f"{field} changed, and nobody is told"
    rows = [msgspec.json.decode(event.row) for event in events]
    shown = msgspec.to_builtins(row_of(after))
    assert all(row.get(field) == shown.get(field) for row in rows)
