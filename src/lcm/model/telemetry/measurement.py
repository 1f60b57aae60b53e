"""Measurements of a worker by their source, the figures that stand for all sources, and how much is too much.

CloudWatch (with its agent on the machine) and CML measure the same machine from two sides, so each keeps its own CPU,
memory and disk. `cpu_utilization`, `memory_utilization` and `storage_utilization` are CML's, and CloudWatch's while CML
is silent. Used by whoever reports, stores or judges measurements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import WorkerTelemetry

CPU: Final = "cpu_utilization"
MEMORY: Final = "memory_utilization"
DISK: Final = "storage_utilization"
FIGURES: Final = (CPU, MEMORY, DISK)
FIELDS_BY_SOURCE: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2_at": (),
    "cloudwatch_at": (*(f"cloudwatch_{name}" for name in FIGURES), "network_in_bytes", "network_out_bytes"),
    "cml_at": (
        *(f"cml_{name}" for name in FIGURES),
        "uptime_seconds",
        "running_nodes",
        "active_labs_count",
        "hosted_lab_ids",
    ),
    "activity_at": (),
}
"""The fields that each source reports, by the field that holds the time of its answer."""
DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: field.default for field in msgspec.structs.fields(WorkerTelemetry) if not field.required
}
_HYSTERESIS: Final = 10.0


def with_sources(report: WorkerTelemetry) -> WorkerTelemetry:
    """Assign figures without a source to one, and date each source that reported values without a time.

    Memory and disk are taken for CML's; CPU too if CML reported anything, else it is CloudWatch's. What people did is
    not dated: "no activity known" must not be mistaken for "known that there was no activity".
    """
    bare = {
        name: getattr(report, name)
        for name in FIGURES
        if getattr(report, f"cml_{name}") is None and getattr(report, f"cloudwatch_{name}") is None
    }
    cpu = bare.pop(CPU, None)
    report = _with_times(msgspec.structs.replace(report, **{f"cml_{name}": value for name, value in bare.items()}))
    if cpu is not None:
        source = "cml" if report.cml_at is not None else "cloudwatch"
        report = _with_times(msgspec.structs.replace(report, **{f"{source}_{CPU}": cpu}))
    return with_figures(report)


def with_figures(report: WorkerTelemetry) -> WorkerTelemetry:
    """Set the figures that stand for all sources: CML's, else CloudWatch's."""
    values = {name: (getattr(report, f"cml_{name}"), getattr(report, f"cloudwatch_{name}")) for name in FIGURES}
    return msgspec.structs.replace(
        report, **{name: cloud if cml is None else cml for name, (cml, cloud) in values.items()}
    )


def _with_times(report: WorkerTelemetry) -> WorkerTelemetry:
    missing = {
        source: report.collected_at
        for source, fields in FIELDS_BY_SOURCE.items()
        if getattr(report, source) is None and any(getattr(report, name) != DEFAULTS[name] for name in fields)
    }
    return msgspec.structs.replace(report, **missing)


@dataclass(frozen=True, slots=True)
class UsageThresholds:
    """From how many percent on usage is too high, unless the SystemSettings object says otherwise."""

    cpu: float = 90.0
    memory: float = 90.0
    disk: float = 90.0

    def with_settings(self, system: SystemSettings | None) -> "UsageThresholds":
        """Return the thresholds with the SystemSettings object's over them."""
        if system is None:
            return self
        own = system.spec.monitoring
        return replace(
            self,
            cpu=own.cpu_alert_percent or self.cpu,
            memory=own.memory_alert_percent or self.memory,
            disk=own.disk_alert_percent or self.disk,
        )

    def of(self, figure: str) -> float:
        """Return the threshold of a figure, by its name."""
        return {CPU: self.cpu, MEMORY: self.memory, DISK: self.disk}[figure]


def calm_percent(threshold: float) -> float:
    """Return below which value usage is no longer too high: between the two, nothing changes."""
    return threshold - min(_HYSTERESIS, threshold / 2)
