"""What running labs teach about their definition: samples, how they are spread, whether somebody should look.

Pure. The lablet controller makes its observations here, `control.observing` keeps what they teach, `control.learning`
shows it. One sample a session: whoever is observed often does not count for more.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, fsum
from typing import Annotated, Any, Final, Literal

import msgspec

from lcm.model.base.resource import Count, Moment, Name, Part, ShortText, Text
from lcm.model.kinds.definition import MOST_OTHER_PORTS, LabletDefinition, PortTemplate, ResourceRequirements, Spread
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.telemetry.observation import NodeObservation, NodeStats, ResourceObservation
from lcm.model.topology.ports import LONGEST_NAME, observable, ports_on, read_tag

KEPT: Final = 200
"""So many sessions of a definition are remembered."""
Measure = Literal["cpu_cores", "memory_mb", "storage_mb"]
MEASURES: Final[tuple[Measure, ...]] = ("cpu_cores", "memory_mb", "storage_mb")
_STEADY: Final = frozenset({"BOOTED", "STOPPED"})
"""States in which a node has what it was given, and is not on its way to it."""
_MB_PER_GB: Final = 1024
_SHOWN: Final = 5


class ObservedSample(Part):
    """What one session had once its lab ran, and how long the slowest of its nodes booted. Unknown is None.

    Who may not see the session is not told which it was.
    """

    session_id: str
    session_name: str
    observed_at: Moment
    cpu_cores: float
    memory_mb: Count
    storage_mb: Count | None = None
    boot_seconds: float | None = None
    other_ports: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MOST_OTHER_PORTS)] = ()


class Samples(Part):
    """The latest sessions of a definition, oldest first, and how many there were in all."""

    total: Count = 0
    items: Annotated[tuple[ObservedSample, ...], msgspec.Meta(max_length=KEPT)] = ()


class Learned(Part):
    """What a definition declares of one measure, and what was observed; `difference` is that of p95, as a fraction."""

    measure: Measure
    declared: float | None
    observed: Spread | None
    difference: float | None


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
class Review:
    """By how much, and over how many sessions, what was observed must differ from what is declared."""

    difference: float = 0.25
    sessions: int = 3

    def under(self, system: SystemSettings | None) -> "Review":
        """Put over it what the SystemSettings object says."""
        if system is None:
            return self
        said = system.spec.learning
        return Review(
            self.difference if said.review_difference is None else said.review_difference,
            said.review_sessions or self.sessions,
        )


def observation_of(
    nodes: Sequence[NodeObservation],
    template: PortTemplate,
    *,
    at: datetime,
    observer: Literal["lablet-controller", "manual"],
    stats: Mapping[str, NodeStats] | None = None,
    allocated: Collection[int] = (),
) -> ResourceObservation:
    """Add up what the nodes of a lab have, and read its ports from the tags that are on them now, whoever wrote them.

    Cores are `cpus`: `cpu_limit` is a percentage of them and takes none away. Of two ports for one name the one that
    was not `allocated` gets another name.
    """
    disks = [node.disk_gb for node in nodes if node.disk_gb is not None]
    return ResourceObservation(
        observed_at=at,
        observer=observer,
        total_cpu_cores=fsum(node.cpus or 0 for node in nodes),
        total_memory_mb=sum(node.ram_mb or 0 for node in nodes),
        total_storage_mb=ceil(fsum(disks) * _MB_PER_GB) if disks else None,
        nodes=tuple(nodes),
        actual_node_count=len(nodes),
        node_definitions_used=tuple(sorted({node.node_definition for node in nodes})),
        observed_ports=ports_on(_own_first(nodes, allocated), template),
        simulation_stats=stats,
    )


def _own_first(nodes: Sequence[NodeObservation], allocated: Collection[int]) -> Iterator[tuple[str, Sequence[str]]]:
    for own in (True, False):
        yield from ((node.label, [tag for tag in node.tags if _is_own(tag, allocated) is own]) for node in nodes)


def _is_own(text: str, allocated: Collection[int]) -> bool:
    tag = read_tag(text)
    return tag is not None and tag.outside in allocated


def is_steady(observation: ResourceObservation) -> bool:
    """Tell whether no node is still booting: what it will have is not known before. One without nodes has nothing."""
    return bool(observation.nodes) and all(node.state in _STEADY for node in observation.nodes)


def sample_of(
    session: LabletSession, observation: ResourceObservation, template: PortTemplate | None
) -> ObservedSample:
    """Take from an observation what its definition learns from it."""
    boots = [one.boot_seconds for one in (observation.simulation_stats or {}).values() if one.boot_seconds is not None]
    return ObservedSample(
        session_id=session.metadata.uid,
        session_name=session.metadata.name,
        observed_at=observation.observed_at,
        cpu_cores=observation.total_cpu_cores,
        memory_mb=observation.total_memory_mb,
        storage_mb=observation.total_storage_mb,
        boot_seconds=max(boots, default=None),
        other_ports=_other_ports(observation.observed_ports, template),
    )


def with_sample(samples: Samples, new: ObservedSample) -> Samples:
    """Add a session's sample, in place of its earlier one, and forget the oldest beyond the limit."""
    others = [one for one in samples.items if one.session_id != new.session_id]
    again = len(others) < len(samples.items)
    items = sorted([*others, new], key=lambda one: one.observed_at)
    return Samples(total=samples.total + (not again), items=tuple(items[-KEPT:]))


def spread(values: Sequence[float]) -> Spread | None:
    """Say how values, the latest last, are distributed; a percentile is the least value that so many do not exceed."""
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


def learned(definition: LabletDefinition, samples: Samples, review: Review) -> LabletDefinition:
    """Put what samples say into a definition's status."""
    spreads: dict[str, Any] = {name: spread(_known(samples, name)) for name in (*MEASURES, "boot_seconds")}
    status = msgspec.structs.replace(
        definition.status,
        observed_sessions=samples.total,
        other_ports=samples.items[-1].other_ports if samples.items else (),
        **spreads,
    )
    return reviewed(msgspec.structs.replace(definition, status=status), review)


def reviewed(definition: LabletDefinition, review: Review) -> LabletDefinition:
    """Say whether somebody should look at what a definition declares, and why; the very same if that is said."""
    reason = "; ".join(_doubts(definition, review))
    status = msgspec.structs.replace(definition.status, needs_review=bool(reason), review_reason=reason)
    return definition if status == definition.status else msgspec.structs.replace(definition, status=status)


def compared(definition: LabletDefinition) -> tuple[Learned, ...]:
    """Hold what was observed against what is declared, measure by measure."""
    return tuple(_compared(definition, measure) for measure in MEASURES)


def proposed(definition: LabletDefinition) -> ResourceRequirements | None:
    """Say what would be declared if the 95th percentile were; None while that is not known."""
    status, declared = definition.status, definition.spec.resource_requirements
    if not (status.cpu_cores and status.memory_mb and status.cpu_cores.p95 and status.memory_mb.p95):
        return None
    known = declared.storage_gb if declared else 0.0
    return ResourceRequirements(
        cpu_cores=status.cpu_cores.p95,
        memory_gb=status.memory_mb.p95 / _MB_PER_GB,
        storage_gb=status.storage_mb.p95 / _MB_PER_GB if status.storage_mb else known,
    )


def report_on(definition: LabletDefinition, samples: Samples, *, named: bool) -> ObservationReport:
    """Tell what the sessions of a definition taught; their names only to those who may see them."""
    hidden = {} if named else {"session_id": "", "session_name": ""}
    return ObservationReport(
        definition=definition.metadata.name,
        namespace=definition.metadata.namespace,
        observed_sessions=definition.status.observed_sessions,
        measures=compared(definition),
        boot_seconds=definition.status.boot_seconds,
        needs_review=definition.status.needs_review,
        review_reason=definition.status.review_reason,
        declared=definition.spec.resource_requirements,
        proposed=proposed(definition),
        samples=tuple(msgspec.structs.replace(one, **hidden) for one in samples.items),
    )


def _other_ports(observed: Mapping[str, int], template: PortTemplate | None) -> tuple[str, ...]:
    """Name the ports that only the template or only the lab has; a template that is not known says nothing."""
    if template is None:
        return ()
    expected = observable(dict.fromkeys(template, 0), template)
    names = {name[:LONGEST_NAME] for name in expected.keys() ^ observed.keys()}
    return tuple(sorted(names)[:MOST_OTHER_PORTS])


def _known(samples: Samples, name: str) -> list[float]:
    values = (getattr(one, name) for one in samples.items)
    return [float(value) for value in values if value is not None]


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[ceil(len(ordered) * share) - 1]


def _declared(definition: LabletDefinition, measure: Measure) -> float | None:
    """Say what is declared of a measure; nothing of what is zero, which stands for not said."""
    needs = definition.spec.resource_requirements
    if needs is None:
        return None
    gigabytes = {"memory_mb": needs.memory_gb, "storage_mb": needs.storage_gb}
    return (gigabytes[measure] * _MB_PER_GB if measure in gigabytes else needs.cpu_cores) or None


def _compared(definition: LabletDefinition, measure: Measure) -> Learned:
    declared = _declared(definition, measure)
    observed: Spread | None = getattr(definition.status, measure)
    difference = (observed.p95 - declared) / declared if observed and declared else None
    return Learned(measure=measure, declared=declared, observed=observed, difference=difference)


def _doubts(definition: LabletDefinition, review: Review) -> Iterator[str]:
    for one in compared(definition):
        if one.observed is None or one.difference is None or one.observed.count < review.sessions:
            continue
        if abs(one.difference) >= review.difference:
            told = f"95 % of {one.observed.count} sessions had at most {one.observed.p95:g}"
            yield f"{one.measure}: {told}, declared are {one.declared:g} ({one.difference:+.0%})"
    if other := definition.status.other_ports:
        rest = f" and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
        yield f"ports that only the template or only the lab has: {', '.join(other[:_SHOWN])}{rest}"
