"""What a lab declares and what was observed of it, side by side, in words. Called by `observe` and `digest`."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from math import ceil
from typing import Final

from lcm.cli.digest_worker import Line
from lcm.model.definition import LabletDefinition, PortTemplate, ResourceRequirements, Spread
from lcm.model.learning import MEASURES, Learned, Measure, compared
from lcm.model.observation import ResourceObservation, drift
from lcm.model.session import LabletSession
from lcm.model.topology_ports import observable

_MB_PER_GB: Final = 1024
_MILLIS: Final = 1000
_NAMES: Final[Mapping[Measure, str]] = {"cpu_cores": "CPU", "memory_mb": "memory", "storage_mb": "disk"}
UNKNOWN: Final = "-"


class Statistic(StrEnum):
    """By which figure of many sessions a definition's needs are to be declared."""

    P95 = "p95"
    MAX = "max"
    AVG = "avg"


def needs_said(needs: ResourceRequirements) -> str:
    """Write what a lab needs."""
    return f"{needs.cpu_cores:g} CPU, {needs.memory_gb:g} GB memory, {needs.storage_gb:g} GB disk"


def definition_lines(definition: LabletDefinition) -> Iterator[Line]:
    """Say what sessions of a definition had, against what it declares, and how to apply that."""
    status, name = definition.status, definition.metadata.name
    rows = [one for one in compared(definition) if one.observed]
    for number, one in enumerate(rows):
        yield "" if number else "Observed", _sentence(one)
    if boot := status.boot_seconds:
        yield "Boot", f"{boot.p95:.0f} s or less for 95 % of {boot.count} sessions, {boot.max:.0f} s at most"
    if status.needs_review:
        yield "Review", status.review_reason
    if rows and any(one.difference for one in rows):
        yield "To apply", f"`lcm observe definition {name} --apply {Statistic.P95}` shows before and after, and asks"


def applied_needs(definition: LabletDefinition, by: Statistic) -> ResourceRequirements | None:
    """Say what would be declared by a figure of what was observed; None while that is not known.

    Cores are rounded up to thousandths and the rest to whole MB: nobody gets less than was seen.
    """
    status, declared = definition.status, definition.spec.resource_requirements
    cores, memory = _figure(status.cpu_cores, by), _figure(status.memory_mb, by)
    if not cores or not memory:
        return None
    disk = _figure(status.storage_mb, by)
    known = declared.storage_gb if declared else 0.0
    return ResourceRequirements(
        cpu_cores=ceil(cores * _MILLIS) / _MILLIS,
        memory_gb=ceil(memory) / _MB_PER_GB,
        storage_gb=ceil(disk) / _MB_PER_GB if disk else known,
    )


def measured(declared: float | None, measure: Measure, seen: float | None) -> tuple[str, str, str, str]:
    """Write a row: what, declared, observed, and by how much that differs."""
    difference = f"{(seen - declared) / declared:+.0%}" if declared and seen is not None else UNKNOWN
    return _NAMES[measure], amount_said(measure, declared), amount_said(measure, seen), difference


def session_rows(seen: ResourceObservation, definition: LabletDefinition | None) -> Iterator[tuple[str, str, str, str]]:
    """Hold what was observed of one session against what its definition declares."""
    declared = {one.measure: one.declared for one in compared(definition)} if definition else {}
    figures = (seen.total_cpu_cores, seen.total_memory_mb, seen.total_storage_mb)
    for measure, figure in zip(MEASURES, figures, strict=True):
        yield measured(declared.get(measure), measure, figure)
    nodes = definition.spec.node_count if definition else None
    more = seen.actual_node_count - nodes if nodes is not None else None
    yield (
        "nodes",
        UNKNOWN if nodes is None else str(nodes),
        str(seen.actual_node_count),
        UNKNOWN if more is None else f"{more:+d}",
    )


def drifted(
    session: LabletSession, seen: ResourceObservation, template: PortTemplate
) -> Iterator[tuple[str, str, str]]:
    """Name the ports that are not what the session was given: name, allocated, observed."""
    given = observable(session.status.allocated_ports or {}, template)
    for name, (allocated, observed) in drift(given, seen.observed_ports).items():
        yield name, str(allocated or UNKNOWN), str(observed or UNKNOWN)


def amount_said(measure: Measure, value: float | None) -> str:
    """Write an amount of a measure with its unit."""
    if value is None:
        return UNKNOWN
    return f"{value:.4g}" if measure == "cpu_cores" else f"{value / _MB_PER_GB:.4g} GB"


def _figure(spread: Spread | None, by: Statistic) -> float | None:
    if spread is None:
        return None
    return {Statistic.P95: spread.p95, Statistic.MAX: spread.max, Statistic.AVG: spread.avg}[by]


def _sentence(one: Learned) -> str:
    observed = one.observed
    assert observed is not None, "only what was observed is told"
    figures = ", ".join(
        f"{name} {amount_said(one.measure, value)}"
        for name, value in (("p95", observed.p95), ("max", observed.max), ("avg", observed.avg))
    )
    declared = f", declared {amount_said(one.measure, one.declared)}" if one.declared else ", not declared"
    differs = f" ({one.difference:+.0%})" if one.difference is not None else ""
    return f"{_NAMES[one.measure]} {figures} of {observed.count} sessions{declared}{differs}"
