"""Documents as people write them, and what they are told about them."""

import copy
from typing import Any

import pytest

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.validate import parse_document

AWS = {"ami_name_pattern": "CML-2.9*"}
SLOT = {"timeslot_start": "2026-11-02T09:00:00Z", "timeslot_end": "2026-11-02T11:00:00Z"}
MINIMAL: dict[str, dict[str, Any]] = {
    "LabWorker": {"metadata": {"name": "w1"}, "spec": {"aws": AWS}},
    "LabWorkerPool": {"metadata": {"name": "ccna"}, "spec": {"lab_track": "ccna", "template": "metal"}},
    "WorkerTemplate": {"metadata": {"name": "metal"}, "spec": {"worker": {"aws": AWS}}},
    "LabletDefinition": {
        "metadata": {"name": "basics:1.0.0"},
        "spec": {"version": "1.0.0", "topology": {"uri": "s3://labs/basics.yaml"}},
    },
    "LabletSession": {"metadata": {"name": "s1"}, "spec": {"definition": "basics:1.0.0", **SLOT}},
    "Reservation": {"metadata": {"name": "r1"}, "spec": {"definition": "basics:1.0.0", **SLOT}},
    "SystemSettings": {"metadata": {"name": "system"}},
}
SERIES = {"every": "week", "until": "2026-12-14", "time_zone": "Europe/Berlin"}


def document(kind: str, **spec: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"kind": kind, **copy.deepcopy(MINIMAL[kind])}
    if spec:
        made["spec"] = made.get("spec", {}) | spec
    return made


def faults(value: object) -> tuple[Fault, ...]:
    with pytest.raises(Invalid) as raised:
        parse_document(value)
    return raised.value.faults


def paths(value: object) -> list[str]:
    return [fault.path for fault in faults(value)]
