"""One example of each body and answer, for the OpenAPI document; the tests send every one of them.

The documents are those of one small site: a worker, its pool and template, a lab, a booking.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import parse_document
from lcm.providers.protocols.artifacts import digest_of

Json = Any
"""A JSON value, as an example shows it."""

_IMAGE: Final = {"ami_name_pattern": "CML-2.9*"}
_SLOT: Final = {"timeslot_start": "2031-11-03T09:00:00Z", "timeslot_end": "2031-11-03T11:00:00Z"}
_MOMENT: Final = "2031-11-03T08:55:00Z"
_MEASURED_AT: Final = "2025-11-03T08:55:00Z"
"""In the past: a measurement cannot be of the future."""

_LAB: Final = (
    '{"lab": {"version": "0.3.0", "title": "basics"}, "nodes": [{"id": "n0", "label": "R1", "node_definition": "iosv", '
    '"x": 0, "y": 0, "interfaces": [], "tags": ["serial:5041"]}], "links": []}'
)
"""JSON is YAML, and fits on one line."""
_DIGEST: Final = digest_of(_LAB.encode())


def _document(kind: str, name: str, **spec: Json) -> Json:
    return {"api_version": "lcm/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


DOCUMENTS: Final[Mapping[str, Json]] = {
    "WorkerTemplate": _document("WorkerTemplate", "metal", worker={"aws": _IMAGE}, price_per_hour_usd="3.9641"),
    "LabWorkerPool": _document("LabWorkerPool", "ccna", lab_track="ccna", template="metal", max_workers=4),
    "LabWorker": _document("LabWorker", "ccna-worker-1", aws=_IMAGE, lab_track="ccna"),
    "LabletDefinition": _document(
        "LabletDefinition",
        "basics:1.0.0",
        version="1.0.0",
        topology={"uri": f"artifact://{_DIGEST}"},
        lab_track="ccna",
        resource_requirements={"cpu_cores": 4, "memory_gb": 16},
        node_count=5,
        state="active",
    ),
    "LabletSession": _document("LabletSession", "ada-monday", definition="basics:1.0.0", **_SLOT),
    "Reservation": _document("Reservation", "class-7b", definition="basics:1.0.0", count=2, **_SLOT),
    "SystemSettings": _document("SystemSettings", "system", discovery={"regions": ["us-east-1"]}),
    "Sink": _document("Sink", "pager", url="https://events.example.org/v2", format="pagerduty", credential="env:PAGER"),
}
"""Documents as a user would write them, in an order in which each finds what it refers to."""

_LABELS: Final = {"metadata": {"labels": {"tier": "exam"}}}
_APPLIED_OBJECT: Final = {"kind": "LabletSession", "namespace": "default", "name": "ada-tuesday"}
_LEASE: Final = {"name": "scheduler", "holder": "scheduler-7f9c", "term": 3, "ttl_seconds": 15}
_EC2_METRICS: Final = {
    "ec2_at": _MEASURED_AT,
    "cloudwatch_at": _MEASURED_AT,
    "cpu_utilization": 41.5,
    "network_in_bytes": 73_400_320,
    "network_out_bytes": 9_437_184,
}
_CML_METRICS: Final = {
    "cml_at": _MEASURED_AT,
    "activity_at": _MEASURED_AT,
    "memory_utilization": 63.0,
    "storage_utilization": 22.5,
    "uptime_seconds": 86_400,
    "running_nodes": 9,
    "active_labs_count": 2,
    "hosted_lab_ids": ["90f84e38", "d7b1c2a4"],
    "last_activity_at": "2025-11-03T08:41:00Z",
}
_COMPLAINT: Final = {
    "alert": "HighCpu",
    "severity": "warning",
    "reason": "AboveThreshold",
    "message": "CPU at 95.0 %; the limit is 90 %",
}
_ALERT: Final = {
    **_COMPLAINT,
    "kind": "LabWorker",
    "name": "ccna-worker-1",
    "namespace": "default",
    "uid": "0b8e0f6e-7b1c-4b5e-9a37-0d2f6c1c7a10",
    "since": _MEASURED_AT,
}
_SEAT: Final = {
    "worker_id": "0b8e0f6e-7b1c-4b5e-9a37-0d2f6c1c7a10",
    "worker_name": "ccna-worker-1",
    "namespace": "default",
    "token": "9c1f0e7a55d2",
    "flavour": "enterprise",
    "state": "registered",
    "since": _MEASURED_AT,
}
_COST: Final = {"usd": "107.1235", "seconds": 86_400, "unpriced_seconds": 0}
_INTERVAL: Final = {
    "worker_id": _SEAT["worker_id"],
    "worker_name": "ccna-worker-1",
    "namespace": "default",
    "lab_track": "ccna",
    "region": "us-east-1",
    "instance_type": "m5zn.metal",
    "instance_id": "i-0a1b2c3d4e5f60718",
    "state": "running",
    "usd_hourly": "4.4635",
    "since": "2025-11-02T08:55:00Z",
    "until": _MEASURED_AT,
}
_SAMPLE: Final = {"cpu_utilization": 41.5, "memory_utilization": 63.0, "storage_utilization": 22.5}
_VERDICT: Final = {
    "idle": False,
    "reason": "1 session is on it",
    "judged_at": _MOMENT,
    "signals": [
        {"name": "sessions", "active": "True", "detail": "1 session is on it"},
        {"name": "foreign_labs", "active": "False", "detail": "no lab but ours runs on it"},
    ],
}
_EVENT: Final = {
    "id": "9f3c1a2b.41.0",
    "type": "lablet.session.created",
    "time": _MOMENT,
    "kind": "LabletSession",
    "name": "ada-monday",
    "namespace": "default",
    "owner_id": "ada@example.org",
    "data": {
        "kind": "LabletSession",
        "name": "ada-monday",
        "namespace": "default",
        "uid": "0b8e0f6e-7b1c-4b5e-9a37-0d2f6c1c7a10",
        "resource_generation": 1,
        "phase": "PENDING",
    },
}
_SINK: Final = {
    "name": "ops-chat",
    "url": "https://hooks.example.org/{credential}",
    "format": "slack",
    "event_types": ["alert.*"],
    "credential": "env:SECRET_OPS_CHAT",
}
_DEAD_LETTER: Final = {
    "attempts": 3,
    "last_error": "https://hooks.example.org answered 400",
    "at": _MOMENT,
    "replay": False,
}
_TOKEN: Final = {
    "id": "6e1f4a52-0c8b-4d1e-9a6b-2f4de2b1c001",
    "name": "ada@example.org",
    "role": "operator",
    "created_at": _MOMENT,
    "expires_at": "2031-12-03T08:55:00Z",
    "session": False,
    "made_by": "ada@example.org",
}
_AUDIT_RECORD: Final = {
    "id": "2c5e9d0a-1b7f-4c3e-8d2a-7f9b6a1c0e42",
    "at": _MOMENT,
    "who": "ada@example.org",
    "role": "operator",
    "address": "192.0.2.7",
    "request": "9b2f6c1d",
    "token": _TOKEN["id"],
    "deeds": [{"verb": "drain", "kind": "LabWorker", "name": "ccna-worker-1", "namespace": "default"}],
    "epoch": "9f3c1a2b",
    "revision": 42,
}
_PLACES: Final = [
    {
        "place": "ccna-worker-1",
        "kind": "worker",
        "pool": "ccna",
        "fits": False,
        "filter": "memory",
        "reason": "64 GB memory needed, 16 GB memory free at 2031-11-03 08:45Z",
        "remedy": "choose another time, make the lab smaller, or add a worker",
        "earliest": "2031-11-03T11:10:00Z",
    },
    {"place": "ccna/2", "kind": "seat", "pool": "ccna", "fits": True, "earliest": "2031-11-03T08:45:00Z"},
]
_EXPLANATION: Final = {
    "outcome": "promise",
    "why": "",
    "reason": "pool default/ccna would hold seat 2 from 2031-11-03 08:45Z to 2031-11-03 11:10Z",
    "slot": {"start": _SLOT["timeslot_start"], "end": _SLOT["timeslot_end"]},
    "seat": {"pool": "ccna", "number": 2},
    "places": _PLACES,
}
_BOOKING: Final = {
    "start": "2031-11-03T08:45:00Z",
    "end": "2031-11-03T11:10:00Z",
    "slot": _EXPLANATION["slot"],
    "kind": "LabletSession",
    "name": "ada-monday",
    "owner": "ada@example.org",
    "phase": "SCHEDULED",
}
_CALENDAR_ROW: Final = {
    "namespace": "default",
    "pool": "ccna",
    "seat": 2,
    "worker": "",
    "phase": "",
    "booked": [_BOOKING],
}
_TIMETABLE: Final = {
    "definitions": [{"name": "basics", "track": "ccna", "cpu": 4, "memory": 16}],
    "fleet": [{"track": "ccna", "instance_type": "m5zn.metal", "max": 2, "price": "3.9641"}],
    "sessions": [{"definition": "basics", "at": "2031-11-03T09:00", "for": "2h", "count": 3}],
}
_UID: Final = "0b8e0f6e-7b1c-4b5e-9a37-0d2f6c1c7a10"

_SPREAD: Final = {"avg": 5.3, "p50": 5, "p95": 6, "max": 6, "latest": 6, "count": 3}
_OBSERVATION: Final = {
    "observed_at": _MEASURED_AT,
    "observer": "lablet-controller",
    "total_cpu_cores": 1,
    "total_memory_mb": 512,
    "total_storage_mb": None,
    "nodes": [{"node_id": "n0", "label": "R1", "node_definition": "iosv", "state": "BOOTED", "cpus": 1, "ram_mb": 512}],
    "actual_node_count": 1,
    "node_definitions_used": ["iosv"],
    "observed_ports": {"R1_serial": 5041},
}


def _stored_example(kind: str) -> Json:
    """Return an object as the API answers it."""
    document = DOCUMENTS[kind]
    kept = {"uid": _UID, "generation": 1, "resource_version": 42, "created_at": _MOMENT}
    found = parse_document({**document, "metadata": document["metadata"] | kept})
    return msgspec.json.decode(msgspec.json.encode(found))


def _examples_of_kind(kind: str) -> dict[str, Json]:
    stored = _stored_example(kind)
    return {
        kind: DOCUMENTS[kind],
        f"{kind}Patch": _LABELS,
        f"{kind}List": {"items": [stored], "revision": 42, "next": None},
        f"{kind}StatusReport": {"resource_version": 42, "status": stored["status"], "reason": "nothing changed"},
    }


BODIES: Final[Mapping[str, Json]] = {
    **{name: example for kind in KINDS for name, example in _examples_of_kind(kind).items()},
    "ApplyBody": {"documents": [_document("LabletSession", "ada-tuesday", definition="basics:1.0.0", **_SLOT)]},
    "Results": {"results": [{**_APPLIED_OBJECT, "outcome": "created", "resource_version": 42}]},
    "DrainBody": {"deadline_minutes": 60},
    "UndrainBody": {},
    "PauseBody": {},
    "ResumeBody": {},
    "SnoozeBody": {"minutes": 30},
    "LicenseBody": {"license_token": "env:CML_LICENSE_TOKEN", "license_flavour": "enterprise"},
    "TelemetryBody": {"enabled": False},
    "ExtendBody": {"minutes": 30},
    "TerminateBody": {"reason": "finished early"},
    "ObserveResourcesBody": {},
    "WorkerTelemetry": {"collected_at": _MEASURED_AT, **_EC2_METRICS, **_CML_METRICS},
    "MetricsReport": {"collected_at": _MEASURED_AT, "ec2": _EC2_METRICS, "cml": _CML_METRICS},
    "WorkerHistory": {"items": [{"at": _MEASURED_AT, **_SAMPLE, "active_labs_count": 2, "running_nodes": 9}]},
    "IdleVerdict": _VERDICT,
    "AlertFinding": _COMPLAINT,
    "AlertList": {"items": [_ALERT]},
    "LicenceLedger": {"tokens": [{"token": _SEAT["token"], "seats": 4, "used": 1, "free": 3}], "seats": [_SEAT]},
    "CostReport": {
        "since": "2025-11-01T00:00:00Z",
        "until": "2025-12-01T00:00:00Z",
        "total": {"name": "all", **_COST},
        "by_worker": [{"name": "default/ccna-worker-1", **_COST}],
        "by_track": [{"name": "ccna", **_COST}],
        "intervals": [_INTERVAL],
    },
    "PreviewRequest": {"definition": "basics", **_SLOT},
    "Explanation": _EXPLANATION,
    "CalendarView": {"since": "2031-11-03T00:00:00Z", "until": "2031-11-10T00:00:00Z", "rows": [_CALENDAR_ROW]},
    "ScheduleRequest": {
        "resource_version": 42,
        "assignment": {"start": _BOOKING["start"], "end": _BOOKING["end"], "seat": _EXPLANATION["seat"]},
    },
    "PortRequest": {"preferred": {"PC_serial": 5041}},
    "SeatChanges": {"changes": [{"booking": "ada-monday", "after": 1}]},
    "ClaimNumbers": {"numbers": [1, 2]},
    "MadeSessions": {"items": [_stored_example("LabletSession")]},
    "ObservationAnswer": {"observation": _OBSERVATION, "request_id": None},
    "ObservationReport": {
        "definition": "basics:1.0.0",
        "namespace": "default",
        "observed_sessions": 3,
        "measures": [{"measure": "cpu_cores", "declared": 4, "observed": _SPREAD, "difference": 0.5}],
        "boot_seconds": None,
        "needs_review": True,
        "review_reason": "cpu_cores: 95 % of 3 sessions had at most 6, declared are 4 (+50%)",
        "declared": {"cpu_cores": 4, "memory_gb": 16, "storage_gb": 0},
        "proposed": {"cpu_cores": 6, "memory_gb": 16, "storage_gb": 0},
        "samples": [
            {
                "session_id": _UID,
                "session_name": "ada-monday",
                "observed_at": _MEASURED_AT,
                "cpu_cores": 6,
                "memory_mb": 16_384,
            }
        ],
    },
    "PlanWish": {"timetable": _TIMETABLE, "compare": ["max=1,2"]},
    "PlanJob": {
        "id": "b2c4d9f0-53a7-4a0e-8a51-6f1d0c9e7b22",
        "state": "running",
        "by": "ada@example.org",
        "began_at": _MOMENT,
        "progress": 0.42,
        "left_seconds": 12.0,
        "kept_until": None,
        "result": None,
        "problem": None,
    },
    "PlanReport": "<!doctype html>…",
    "LabFile": _LAB,
    "TopologyReport": {
        "uri": f"artifact://{_DIGEST}",
        "digest": _DIGEST,
        "size_bytes": len(_LAB),
        "title": "basics",
        "node_count": 1,
        "link_count": 0,
        "needs": {"cpu_cores": 1, "memory_gb": 0.5, "storage_gb": 0},
        "port_template": {"R1_serial": {"kind": "serial", "node": "R1"}},
        "node_definitions": ["iosv"],
        "faults": [],
    },
    "ArtifactList": {
        "items": [{"name": "lab.yaml", "digest": _DIGEST, "size_bytes": len(_LAB), "collected_at": _MOMENT}]
    },
    "FileBytes": _LAB,
    "SessionLog": f"{_MOMENT} PENDING by ada@example.org: created\n",
    "BulkImport": {
        "discovered_instances": [{"instance_id": "i-0a1b2c3d4e5f60718", "instance_type": "m5zn.metal"}],
        "aws_region": "us-east-1",
    },
    "Imported": {"imported": ["i-0a1b2c3d4e5f60718"], "known": []},
    "Installation": {"id": "5d7c2a90-3f4e-4b8a-9c11-6a2f0e7b8d35"},
    "LeaseRequest": {"holder": _LEASE["holder"], "ttl_seconds": _LEASE["ttl_seconds"]},
    "LeaseTerm": {"term": _LEASE["term"]},
    "LeaseAnswer": {"lease": _LEASE},
    "TokenRequest": {"expires_in_seconds": 2_592_000},
    "TokenMade": {"token": "lcm_…", "info": _TOKEN},
    "TokenList": {"items": [_TOKEN]},
    "SignInLink": {"path": "/sign-in?code=lcm_…", "expires_at": _MOMENT},
    "AuditList": {"items": [_AUDIT_RECORD], "next": None},
    "Who": {"name": "ada@example.org", "role": "operator"},
    "EventPage": {"items": [_EVENT], "last": "9f3c1a2b.42.1000000", "more": False},
    "ShownSink": _SINK,
    "ShownSinks": {"items": [{**_SINK, "resource_version": 42}], "next": None},
    "DeadLetterList": {"items": [{"event": _EVENT, **_DEAD_LETTER}], "next": None},
    "ReplayRequest": {},
    "Replayed": {"count": 1},
    "Queued": {"event_id": "9f3c1a2b.43.0"},
    "ClearText": {"text": "correct horse battery staple"},
    "SealedText": {"sealed": "sealed:3f0c5a9e1b7d:q83vEjRWeJASNFZ4kBI0VniQEjRWeJASNFZ4kA"},
    "RotationRequest": {"drop_old": False},
    "Rotated": {"key": "3f0c5a9e1b7d", "new_key": True, "resealed": 12, "dropped": 0, "unopened": []},
    "Health": {"status": "ok"},
    "Readiness": {"ready": True, "at": _MOMENT, "checks": [{"name": "store", "ok": True}]},
    "WatchLine": {"revision": 43, "seen": [{**_APPLIED_OBJECT, "object": None}]},
}
"""Examples by the name of the type in the OpenAPI document."""

ANSWERS: Final[Mapping[str, Json]] = {**BODIES, **{kind: _stored_example(kind) for kind in KINDS}}
