"""What a document must hold beyond the types of its fields: every rule is broken here at least once."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from harness import documents
from harness.documents import AWS, SERIES, SLOT, document, faults
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.rules import RULES
from lcm.model.kinds.validate import parse_document


def annotated(kind: str, **annotations: str) -> dict[str, Any]:
    """Return a document with annotations of ours."""
    made = document(kind)
    return made | {
        "metadata": made["metadata"] | {"annotations": {f"lcm/{name}": text for name, text in annotations.items()}}
    }


RULE_CASES: dict[str, list[tuple[dict[str, Any], list[str]]]] = {
    "_worker_can_launch": [
        (document("LabWorker", aws={}), ["spec.aws"]),
        (document("LabWorker", aws=AWS | {"nested_virtualization": True}), ["spec.aws.nested_virtualization"]),
        (document("LabWorker", aws=AWS | {"vpc_id": "vpc-1"}), ["spec.aws.subnet_ids"]),
        (document("LabWorker", aws=AWS | {"root_volume": {"size_gb": 10}}), ["spec.aws.root_volume.iops"]),
    ],
    "_worker_can_serve": [
        (document("LabWorker", lab_types=[]), ["spec.lab_types"]),
        (document("LabWorker", idle={"warn_minutes": 30}), ["spec.idle.warn_minutes"]),
        (document("LabWorker", host_kind="container"), ["spec.lab_types"]),
    ],
    "_template_can_launch": [(document("WorkerTemplate", worker={}), ["spec.worker.aws"])],
    "_template_can_serve": [
        (document("WorkerTemplate", worker={"aws": AWS, "lab_types": []}), ["spec.worker.lab_types"]),
        (
            document("WorkerTemplate", worker={"aws": AWS, "idle": {"threshold_minutes": 5}}),
            ["spec.worker.idle.warn_minutes"],
        ),
    ],
    "_template_price": [
        (document("WorkerTemplate", price_per_hour_usd=price), ["spec.price_per_hour_usd"])
        for price in ("-0.01", "NaN", "sNaN", "Infinity", "1e999999")
    ],
    "_template_smaller_types": [
        (document("WorkerTemplate", smaller_types=[name]), ["spec.smaller_types"])
        for name in ("unheard.of", "m8i.4xlarge")
    ],
    "_pool_bounds": [(document("LabWorkerPool", min_workers=11), ["spec.min_workers"])],
    "_pool_thresholds": [
        (
            document(
                "LabWorkerPool",
                thresholds={"cpu_scale_down": 0.75, "memory_scale_up": 0.1, "min_labs_per_worker": 16},
            ),
            [
                "spec.thresholds.cpu_scale_down",
                "spec.thresholds.memory_scale_down",
                "spec.thresholds.min_labs_per_worker",
            ],
        )
    ],
    "_pool_hours": [
        (document("LabWorkerPool", allowed_hours={"start_hour": start, "end_hour": end}), ["spec.allowed_hours"])
        for start, end in ((8, 8), (0, 0), (24, 24), (24, 0))
    ]
    + [
        (document("LabWorkerPool", allowed_hours={"time_zone": zone}), ["spec.allowed_hours.time_zone"])
        for zone in ("", "Mars/Base", "Europe", "../etc/passwd", "a\0b", "x" * 64, "\ud800")
    ],
    "_pool_budget": [
        (
            document("LabWorkerPool", budget={"hourly_usd": "-1", "monthly_usd": "Infinity"}),
            ["spec.budget.hourly_usd", "spec.budget.monthly_usd"],
        )
    ],
    "_definition_name": [
        (document("LabletDefinition", version="1.0.1"), ["metadata.name"]),
        (document("LabletDefinition") | {"metadata": {"name": "basics"}}, ["metadata.name"]),
        (document("LabletDefinition") | {"metadata": {"name": "a:b:1.0.0"}}, ["metadata.name"]),
    ],
    "_definition_versions": [
        (
            document("LabletDefinition", ami_requirements={"cml_version_min": low, "cml_version_max": high}),
            ["spec.ami_requirements.cml_version_min"],
        )
        for low, high in (("2.10", "2.7"), ("2.9.1", "2.9.0"), ("3", "2.9"))
    ],
    "_definition_needs": [
        (
            document("LabletDefinition", resource_requirements={"cpu_cores": 0, "memory_gb": 0}),
            ["spec.resource_requirements.cpu_cores", "spec.resource_requirements.memory_gb"],
        )
    ],
    "_definition_limits": [
        (document("LabletDefinition", resource_limits={"cpu": "2"}), ["spec.resource_limits.memory"]),
    ],
    "_session_time": [
        (document("LabletSession", timeslot_start=None), ["spec.timeslot_start"]),
        (document("LabletSession", timeslot_end=None), ["spec.timeslot_end"]),
        (document("LabletSession", timeslot_start=None, timeslot_end=None), ["spec.duration_minutes"]),
        (document("LabletSession", timeslot_end=SLOT["timeslot_start"]), ["spec.timeslot_end"]),
        (document("LabletSession", timeslot_end="2028-11-02T09:00:00Z"), ["spec.timeslot_end"]),
        (
            document("LabletSession", timeslot_start="2200-11-02T09:00:00Z", timeslot_end="2200-11-02T11:00:00Z"),
            ["spec.timeslot_start"],
        ),
        (
            document("LabletSession", duration_minutes=60, give_up_at=SLOT["timeslot_end"]),
            ["spec.duration_minutes", "spec.give_up_at"],
        ),
    ],
    "_session_market": [(document("LabletSession", allow_spot=True), ["spec.allow_spot"])],
    "_session_limits": [
        (
            document("LabletSession", resource_limits={"cpu": "0", "memory": "512", "gpu": "1"}),
            ["spec.resource_limits.cpu", "spec.resource_limits.memory", "spec.resource_limits.gpu"],
        ),
        (
            document("LabletSession", resource_limits={}),
            ["spec.resource_limits.cpu", "spec.resource_limits.memory"],
        ),
    ],
    "_reservation_time": [(document("Reservation", timeslot_end=SLOT["timeslot_start"]), ["spec.timeslot_end"])],
    "_pool_notices": [(annotated("LabWorkerPool", notices="none"), ["metadata.annotations.lcm/notices"])],
    "_session_notices": [(annotated("LabletSession", notices=""), ["metadata.annotations.lcm/notices"])],
    "_reservation_notices": [(annotated("Reservation", notices="Off"), ["metadata.annotations.lcm/notices"])],
    "_reservation_people": [
        (document("Reservation", count=3, student_emails=["a@b.c"]), ["spec.student_emails"]),
    ],
    "_reservation_series": [
        (document("Reservation", recurrence=SERIES | {"time_zone": "Mars/Base"}), ["spec.recurrence.time_zone"]),
        (document("Reservation", recurrence=SERIES | {"until": "2026-11-01"}), ["spec.recurrence.until"]),
        (document("Reservation", recurrence=SERIES | {"every": "day"}, count=30), ["spec.recurrence"]),
        (document("Reservation", recurrence=SERIES | {"until": "9999-12-31"}), ["spec.recurrence"]),
        (
            document("Reservation", recurrence=SERIES | {"until": "2150-01-01", "interval": 52}),
            ["spec.recurrence.until"],
        ),
        (
            document("Reservation", recurrence=SERIES | {"until": "2026-11-03", "weekdays": ["fri"]}),
            ["spec.recurrence"],
        ),
        (
            document("Reservation", recurrence=SERIES | {"every": "day"}, timeslot_end="2026-11-04T09:00:00Z"),
            ["spec.timeslot_end"],
        ),
        (
            document(
                "Reservation",
                recurrence=SERIES | {"until": "2026-11-02", "time_zone": "Asia/Tokyo"},
                timeslot_start="2026-11-02T20:00:00Z",
                timeslot_end="2026-11-02T21:00:00Z",
            ),
            ["spec.recurrence.until"],
        ),
    ],
    "_reservation_name": [(document("Reservation") | {"metadata": {"name": 60 * "r"}}, ["metadata.name"])],
    "_reservation_weekdays": [
        (
            document("Reservation", recurrence=SERIES | {"every": "day", "weekdays": ["mon"]}),
            ["spec.recurrence.weekdays"],
        ),
        (document("Reservation", recurrence=SERIES | {"weekdays": ["mon", "mon"]}), ["spec.recurrence.weekdays"]),
    ],
    "_settings_name": [(document("SystemSettings") | {"metadata": {"name": "mine"}}, ["metadata.name"])],
    "_settings_quotas": [
        (document("SystemSettings", quotas={"rules": [rule]}), [path])
        for rule, path in (
            ({"sessions": 3}, "spec.quotas.rules[0]"),
            ({"owner": "ada"}, "spec.quotas.rules[0]"),
            ({"track": "ccna", "horizon_days": 3}, "spec.quotas.rules[0].horizon_days"),
        )
    ]
    + [
        (
            document("SystemSettings", quotas={"rules": 2 * [{"owner": "ada", "sessions": 3}]}),
            ["spec.quotas.rules[1]"],
        )
    ],
    "_track_budgets": [
        (
            document("SystemSettings", budgets={"tracks": 2 * [{"lab_track": "ccna", "monthly_usd": "-1"}]}),
            [
                "spec.budgets.tracks[0].monthly_usd",
                "spec.budgets.tracks[1].monthly_usd",
                "spec.budgets.tracks[1].lab_track",
            ],
        )
    ],
    "_settings_discovery": [
        (document("SystemSettings", discovery={"regions": []}), ["spec.discovery.regions"]),
        (document("SystemSettings", discovery={"enabled": True, "regions": []}), ["spec.discovery.regions"]),
    ],
    "_settings_workers": [
        (document("SystemSettings", scaling={"min_workers": 3}), ["spec.scaling.max_workers"]),
        (document("SystemSettings", scaling={"min_workers": 3, "max_workers": 2}), ["spec.scaling.min_workers"]),
    ],
    "_settings_thresholds": [
        (
            document("SystemSettings", scaling={"scale_up_threshold_cpu": 0.5}),
            ["spec.scaling.scale_down_threshold_cpu"],
        ),
        (
            document("SystemSettings", scaling={"scale_up_threshold_cpu": 0.5, "scale_down_threshold_cpu": 0.5}),
            ["spec.scaling.scale_down_threshold_cpu"],
        ),
    ],
}


@pytest.mark.parametrize(
    ("rule", "wrong", "want"), [(rule, *case) for rule, cases in RULE_CASES.items() for case in cases]
)
def test_a_broken_rule_is_reported_with_its_remedy(rule: str, wrong: dict[str, Any], want: list[str]) -> None:
    found = faults(wrong)
    assert [fault.path for fault in found] == want, rule
    assert all(fault.problem and fault.remedy for fault in found)


@pytest.mark.parametrize(
    "right",
    [
        document("LabletSession", timeslot_start=None, timeslot_end=None, duration_minutes=120),
        document(
            "LabletSession",
            **dict.fromkeys(SLOT),
            duration_minutes=120,
            give_up_at="2026-11-02T12:00:00Z",
            resource_limits={"cpu": "500m", "memory": "1G"},
        ),
        document("LabletSession", duration_minutes=120),
        document("LabletDefinition", ami_requirements={"cml_version_min": "2.9.1", "cml_version_max": "2.9"}),
        document("LabletDefinition", ami_requirements={"cml_version_max": "2.9.1+build.7"}),
        document("LabletDefinition", resource_requirements={"cpu_cores": 0.5, "memory_gb": 1}),
        document("LabWorkerPool", allowed_hours={"start_hour": 20, "end_hour": 6, "time_zone": "Europe/Berlin"}),
        document("LabWorkerPool", allowed_hours={}, min_workers=0, budget={"hourly_usd": "0", "monthly_usd": 100}),
        document("LabWorker", aws=AWS | {"instance_type": "m8i.8xlarge", "nested_virtualization": True}),
        document("Reservation", recurrence=SERIES | {"weekdays": ["mon", "thu"]}, count=20),
        document("Reservation", count=2, student_emails=["a@b.c", "d@e.f"]),
        document("SystemSettings", discovery={"enabled": False, "regions": []}),
        document("SystemSettings", discovery={"enabled": True}, scaling={"min_workers": 0, "max_workers": 3}),
        document("SystemSettings", scheduler={"strategy": "LeastLabs"}, idle={"threshold_minutes": 5}),
    ],
)
def test_what_no_rule_forbids_is_read(right: dict[str, Any]) -> None:
    parse_document(right)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.broken.__name__)
def test_every_rule_is_broken_by_a_case_of_its_own_kind(rule: Any) -> None:
    cases = RULE_CASES[rule.broken.__name__]
    assert cases
    for wrong, _ in cases:
        typed = msgspec.convert(wrong, KINDS[wrong["kind"]].struct)
        assert type(typed) is rule.kind
        assert list(rule.broken(typed))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.broken.__name__)
def test_what_a_rule_is_about_exists(rule: Any) -> None:
    full = documents.filled_document(rule.kind)
    for about in rule.about:
        value: Any = full
        for name in about.split("."):
            value = value[name]


def struct_fields(struct: msgspec.Struct, path: str = "") -> Iterator[str]:
    for name in struct.__struct_fields__:
        yield path + name
        if isinstance(inner := getattr(struct, name), msgspec.Struct):
            yield from struct_fields(inner, f"{path}{name}.")


def spoiled(struct: Any, path: str) -> Any:
    """Put something unusable in a field."""
    name, _, rest = path.partition(".")
    new = spoiled(getattr(struct, name), rest) if rest else object()
    return msgspec.structs.replace(struct, **{name: new})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.broken.__name__)
def test_a_rule_looks_only_at_what_it_is_about(rule: Any) -> None:
    resource = msgspec.convert(documents.filled_document(rule.kind), rule.kind)
    elsewhere = [
        path
        for path in struct_fields(resource)
        if not any(f"{about}.".startswith(f"{path}.") or f"{path}.".startswith(f"{about}.") for about in rule.about)
    ]
    assert elsewhere
    for path in elsewhere:
        list(rule.broken(spoiled(resource, path)))
