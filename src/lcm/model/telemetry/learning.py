"""What running labs teach about their definition: samples, their distribution, and whether somebody should review it.

Pure. The session controller builds its observations here; `control.telemetry.observations` stores what they teach and
shows it. There is one sample per session, so a session that is observed often does not count for more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, fsum
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec

from lcm.model.base.resource import Count, Moment, Name, Part, ShortText, Text
from lcm.model.kinds.definition import (
    MAX_OTHER_PORTS,
    LabletDefinition,
    LabletDefinitionStatus,
    PortTemplate,
    ResourceRequirements,
    Spread,
)
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.telemetry.observation import NodeObservation, NodeStats, ResourceObservation, sum_use
from lcm.model.topology.ports import MAX_NAME_LENGTH, keep_observable, read_ports, read_tag

SAMPLES_KEPT: Final = 200
"""How many sessions of a definition are remembered."""
Measure = Literal["cpu_cores", "memory_mb", "storage_mb"]
MEASURES: Final[tuple[Measure, ...]] = ("cpu_cores", "memory_mb", "storage_mb")
_BOOTED: Final = "BOOTED"
_STEADY_STATES: Final = frozenset({_BOOTED, "STOPPED"})
"""States in which a node has all its resources and is not still getting them."""
_USED: Final[Mapping[Measure, tuple[str, str]]] = {
    "cpu_cores": ("used_cpu_cores", "boot_cpu_cores"),
    "memory_mb": ("used_memory_mb", "boot_memory_mb"),
}
"""The fields for the use of a measure: once booted, and while booting. CML does not tell how much disk is used."""
_USE_FIELDS: Final = tuple(name for names in _USED.values() for name in names)
_LEARNED_FIELDS: Final = (*MEASURES, "boot_seconds", *_USE_FIELDS)
"""The fields of a sample whose distribution a definition shows under the same names."""
_read_learned: Final = attrgetter(*_LEARNED_FIELDS)
_MB_PER_GB: Final = 1024
_PORTS_SHOWN: Final = 5


class ObservedSample(Part):
    """What one session's running lab had and used, and the boot time of its slowest node. None means unknown.

    `used_…` is what its nodes used of what they had once they had booted, `boot_…` the most while they booted. The
    session's id and name are empty for callers who may not see the session.
    """

    session_id: str
    session_name: str
    observed_at: Moment
    cpu_cores: float
    memory_mb: Count
    storage_mb: Count | None = None
    boot_seconds: float | None = None
    used_cpu_cores: float | None = None
    used_memory_mb: float | None = None
    boot_cpu_cores: float | None = None
    boot_memory_mb: float | None = None
    other_ports: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_OTHER_PORTS)] = ()


class ObservedSamples(Part):
    """The latest sessions of a definition, oldest first, and how many there were in all."""

    total: Count = 0
    items: Annotated[tuple[ObservedSample, ...], msgspec.Meta(max_length=SAMPLES_KEPT)] = ()


class Learned(Part):
    """The declared and the observed value of one measure; `difference` is that of p95, as a fraction.

    `observed` is what nodes were given. `used` is what they used of it once they had booted, and `boot_used` the most
    while they booted; `use_difference` is that of the larger p95 of both, None while either is not known.
    """

    measure: Measure
    declared: float | None
    observed: Spread | None
    difference: float | None
    used: Spread | None = None
    boot_used: Spread | None = None
    use_difference: float | None = None


class ObservationReport(Part):
    """What the sessions of a definition taught. `proposed` is what would be declared if somebody applied it."""

    definition: Name
    namespace: Name
    observed_sessions: Count
    measures: tuple[Learned, ...]
    boot_seconds: Spread | None
    needs_review: bool
    review_reason: Text
    declared: ResourceRequirements | None
    proposed: ResourceRequirements | None
    samples: tuple[ObservedSample, ...]


@dataclass(frozen=True, slots=True)
class ReviewPolicy:
    """By how much, and over how many sessions, observed values must differ from declared ones."""

    difference: float = 0.25
    sessions: int = 3

    def with_settings(self, system: SystemSettings | None) -> "ReviewPolicy":
        """Return the policy overridden by the SystemSettings object."""
        if system is None:
            return self
        said = system.spec.learning
        return ReviewPolicy(
            self.difference if said.review_difference is None else said.review_difference,
            said.review_sessions or self.sessions,
        )


def build_observation(
    nodes: Sequence[NodeObservation],
    template: PortTemplate,
    *,
    at: datetime,
    observer: Literal["lablet-controller", "manual"],
    stats: Mapping[str, NodeStats] | None = None,
    allocated: Collection[int] = (),
) -> ResourceObservation:
    """Sum up the resources of a lab's nodes and read its ports from their current tags, whoever wrote them.

    Cores are `cpus`: `cpu_limit` is a percentage of them and takes none away. Of two ports for one name, the
    one that was not `allocated` gets another name.
    """
    disks = [node.disk_gb for node in nodes if node.disk_gb is not None]
    own_first = [
        (node.label, [tag for tag in node.tags if _is_own(tag, allocated) is own])
        for own in (True, False)
        for node in nodes
    ]
    return ResourceObservation(
        observed_at=at,
        observer=observer,
        total_cpu_cores=fsum(node.cpus or 0 for node in nodes),
        total_memory_mb=sum(node.ram_mb or 0 for node in nodes),
        total_storage_mb=ceil(fsum(disks) * _MB_PER_GB) if disks else None,
        nodes=tuple(nodes),
        actual_node_count=len(nodes),
        node_definitions_used=tuple(sorted({node.node_definition for node in nodes})),
        observed_ports=read_ports(own_first, template),
        simulation_stats=stats,
        used=sum_use(stats[node.node_id] for node in nodes if node.state == _BOOTED and node.node_id in stats)
        if stats
        else None,
    )


def _is_own(text: str, allocated: Collection[int]) -> bool:
    tag = read_tag(text)
    return tag is not None and tag.outside in allocated


def is_steady(observation: ResourceObservation) -> bool:
    """Return True if no node is still booting: before that its resources are unknown. False without nodes."""
    return bool(observation.nodes) and all(node.state in _STEADY_STATES for node in observation.nodes)


def build_sample(
    session: LabletSession, observation: ResourceObservation, template: PortTemplate | None
) -> ObservedSample:
    """Return the part of an observation from which its definition learns."""
    boots = [one.boot_seconds for one in (observation.simulation_stats or {}).values() if one.boot_seconds is not None]
    used, boot = observation.used, session.status.boot_use
    return ObservedSample(
        session_id=session.metadata.uid,
        session_name=session.metadata.name,
        observed_at=observation.observed_at,
        cpu_cores=observation.total_cpu_cores,
        memory_mb=observation.total_memory_mb,
        storage_mb=observation.total_storage_mb,
        boot_seconds=max(boots, default=None),
        used_cpu_cores=used.cpu_cores if used else None,
        used_memory_mb=used.memory_mb if used else None,
        boot_cpu_cores=boot.cpu_cores if boot else None,
        boot_memory_mb=boot.memory_mb if boot else None,
        other_ports=_other_ports(observation.observed_ports, template),
    )


def with_sample(samples: ObservedSamples, new: ObservedSample) -> ObservedSamples:
    """Add a session's sample, replacing its earlier one, and drop the oldest beyond the limit."""
    others = [one for one in samples.items if one.session_id != new.session_id]
    again = len(others) < len(samples.items)
    items = sorted([*others, new], key=lambda one: one.observed_at)
    return ObservedSamples(total=samples.total + (not again), items=tuple(items[-SAMPLES_KEPT:]))


def compute_spread(values: Sequence[float]) -> Spread | None:
    """Return the distribution of values, of which the last is the latest; None without values.

    A percentile is the least value that this share of the values does not exceed.
    """
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        avg=fsum(values) / len(values),
        p50=_percentile(ordered, 0.50),
        p95=_percentile(ordered, 0.95),
        max=ordered[-1],
        latest=values[-1],
        count=len(values),
    )


def _is_known(value: float | None) -> bool:
    return value is not None


def with_learned_status(
    definition: LabletDefinition, samples: ObservedSamples, review: ReviewPolicy
) -> LabletDefinition:
    """Return a definition with its status computed from samples."""
    columns = zip(*map(_read_learned, samples.items), strict=True) if samples.items else ((),) * len(_LEARNED_FIELDS)
    spreads: dict[str, Any] = {
        name: compute_spread(list(map(float, column if None not in column else filter(_is_known, column))))
        for name, column in zip(_LEARNED_FIELDS, columns, strict=True)
    }
    status = msgspec.structs.replace(
        definition.status,
        observed_sessions=samples.total,
        other_ports=samples.items[-1].other_ports if samples.items else (),
        **spreads,
    )
    return with_review(msgspec.structs.replace(definition, status=status), review)


def with_review(definition: LabletDefinition, review: ReviewPolicy) -> LabletDefinition:
    """Return a definition that says whether and why it needs review; the same object if that is unchanged."""
    reason = "; ".join(_review_reasons(definition, review))
    status = msgspec.structs.replace(definition.status, needs_review=bool(reason), review_reason=reason)
    return definition if status == definition.status else msgspec.structs.replace(definition, status=status)


def compare_measures(definition: LabletDefinition) -> tuple[Learned, ...]:
    """Compare the observed with the declared value of every measure."""
    compared = []
    for measure in MEASURES:
        declared = _declared_value(definition, measure)
        observed: Spread | None = getattr(definition.status, measure)
        used, boot = (getattr(definition.status, name, None) for name in _USED.get(measure, ("", "")))
        peak = _peak_use(definition.status, measure)
        compared.append(
            Learned(
                measure=measure,
                declared=declared,
                observed=observed,
                difference=(observed.p95 - declared) / declared if observed and declared else None,
                used=used,
                boot_used=boot,
                use_difference=(peak - declared) / declared if peak is not None and declared else None,
            )
        )
    return tuple(compared)


def propose_requirements(definition: LabletDefinition) -> ResourceRequirements | None:
    """Return requirements made of the 95th percentiles: of the use where it is known, else of what nodes were given.

    None while those are unknown.
    """
    status = definition.status
    found = {measure: _peak_use(status, measure) or _p95(getattr(status, measure)) for measure in MEASURES}
    if not (found["cpu_cores"] and found["memory_mb"]):
        return None
    declared = definition.spec.resource_requirements
    return ResourceRequirements(
        cpu_cores=found["cpu_cores"],
        memory_gb=found["memory_mb"] / _MB_PER_GB,
        storage_gb=found["storage_mb"] / _MB_PER_GB or (declared.storage_gb if declared else 0.0),
    )


def build_report(definition: LabletDefinition, samples: ObservedSamples, *, named: bool) -> ObservationReport:
    """Return what the sessions of a definition taught. `named` includes the sessions' ids and names."""
    hidden = {} if named else {"session_id": "", "session_name": ""}
    return ObservationReport(
        definition=definition.metadata.name,
        namespace=definition.metadata.namespace,
        observed_sessions=definition.status.observed_sessions,
        measures=compare_measures(definition),
        boot_seconds=definition.status.boot_seconds,
        needs_review=definition.status.needs_review,
        review_reason=definition.status.review_reason,
        declared=definition.spec.resource_requirements,
        proposed=propose_requirements(definition),
        samples=tuple(msgspec.structs.replace(one, **hidden) for one in samples.items),
    )


def _other_ports(observed: Mapping[str, int], template: PortTemplate | None) -> tuple[str, ...]:
    """Return the ports that only the template or only the lab has; none while the template is unknown."""
    if template is None:
        return ()
    expected = keep_observable(dict.fromkeys(template, 0), template)
    names = {name[:MAX_NAME_LENGTH] for name in expected.keys() ^ observed.keys()}
    return tuple(sorted(names)[:MAX_OTHER_PORTS])


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[ceil(len(ordered) * share) - 1]


def _peak_use(status: LabletDefinitionStatus, measure: Measure) -> float | None:
    """Return the larger p95 of the use while booting and afterwards; None while either is unknown."""
    used, boot = (getattr(status, name, None) for name in _USED.get(measure, ("", "")))
    return max(used.p95, boot.p95) if used and boot else None


def _p95(spread: Spread | None) -> float:
    return spread.p95 if spread else 0


def _declared_value(definition: LabletDefinition, measure: Measure) -> float | None:
    """Return the declared value of a measure; None for zero, which means not declared."""
    needs = definition.spec.resource_requirements
    if needs is None:
        return None
    gigabytes = {"memory_mb": needs.memory_gb, "storage_mb": needs.storage_gb}
    return (gigabytes[measure] * _MB_PER_GB if measure in gigabytes else needs.cpu_cores) or None


def _review_reasons(definition: LabletDefinition, review: ReviewPolicy) -> Iterator[str]:
    for one in compare_measures(definition):
        if reason := _grant_reason(one, review) or _use_reason(one, review):
            yield reason
    if other := definition.status.other_ports:
        rest = f" and {len(other) - _PORTS_SHOWN} more" if len(other) > _PORTS_SHOWN else ""
        yield f"ports that only the template or only the lab has: {', '.join(other[:_PORTS_SHOWN])}{rest}"


def _grant_reason(one: Learned, review: ReviewPolicy) -> str:
    """Return why what nodes were given wants a review, unless less was declared on purpose and is all that they use."""
    if one.observed is None or one.difference is None or one.observed.count < review.sessions:
        return ""
    suffices = one.difference > 0 and _is_use_known(one, review) and (one.use_difference or 0) <= 0
    if abs(one.difference) < review.difference or suffices:
        return ""
    told = f"95 % of {one.observed.count} sessions had at most {one.observed.p95:g}"
    return f"{one.measure}: {told}, declared are {one.declared:g} ({one.difference:+.0%})"


def _use_reason(one: Learned, review: ReviewPolicy) -> str:
    """Return why what nodes used wants a review: more than was declared, or much less."""
    if not _is_use_known(one, review) or one.use_difference is None or abs(one.use_difference) < review.difference:
        return ""
    assert one.used is not None
    assert one.boot_used is not None
    most = f"used at most {one.used.p95:.4g}, and {one.boot_used.p95:.4g} while booting"
    told = f"95 % of {one.used.count} sessions {most}"
    verdict = "too little is declared" if one.use_difference > 0 else "more is declared than is used"
    return f"{one.measure}: {told}, declared are {one.declared:g} ({one.use_difference:+.0%}): {verdict}"


def _is_use_known(one: Learned, review: ReviewPolicy) -> bool:
    counts = (one.used.count if one.used else 0, one.boot_used.count if one.boot_used else 0)
    return one.use_difference is not None and min(counts) >= review.sessions
