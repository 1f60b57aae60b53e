"""The queries, bodies and answers of the plane's operations, where no model type serves already.

`control.plane.operations` names them. `api.routes.operations` reads what `control.plane.client` writes, and the other
way round: one set of structs, so that they cannot differ.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.model.access.identity import Role
from lcm.model.base.resource import (
    DEFAULT_NAMESPACE,
    END,
    Count,
    Moment,
    Name,
    Part,
    Percent,
    Region,
    ShortText,
    ZoneName,
)
from lcm.model.kinds.console import Console
from lcm.model.kinds.placement import MAX_ROWS, MAX_SESSIONS_PER_COMMIT, Assignment, SeatChange
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.worker import WorkerTelemetry
from lcm.model.money.billing import BillingInterval, CostTotal, Usd, sum_costs, sum_costs_by
from lcm.model.money.ledger import MAX_ROWS_PER_PAGE, CostGroup
from lcm.model.telemetry.alert import Alert
from lcm.model.telemetry.measurement import FIGURES, with_sources
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.node_definitions import KnownNode

_KindName = Annotated[
    str, Meta(max_length=64, examples=["LabWorker"], extra_json_schema={"enum": list(KINDS)}, description="its kind")
]
_Text = Annotated[str, Meta(max_length=128)]


class OneQuery(Part):
    """The namespace of an object."""

    namespace: Name = DEFAULT_NAMESPACE


class RehearsalQuery(OneQuery):
    """The namespace of an object, and whether to change it."""

    dry_run: Annotated[bool, Meta(description="show the outcome without writing anything")] = False


class HistoryQuery(OneQuery):
    """The start of the history to read. At most one day is kept."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET


class AlertQuery(OneQuery, kw_only=True):
    """The object that an alert is about."""

    kind: _KindName


class ClearAlertQuery(AlertQuery, kw_only=True):
    """The alert to clear, and the object that it is about."""

    alert: Annotated[ShortText, Meta(examples=["HighCpu"])]


class CostQuery(Part):
    """Which costs to report: by default all of the last thirty days."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    worker: Annotated[_Text, Meta(description="of the worker of this name or uid only")] = ""
    lab_track: Annotated[_Text, Meta(description="of workers of this track only")] | UnsetType = UNSET
    pool: Annotated[_Text, Meta(description="of workers that this pool made only")] = ""
    time_zone: Annotated[ZoneName, Meta(description="also by the days of this zone, of at most 62 days")] = ""
    with_intervals: Annotated[bool, Meta(description="false leaves the intervals out, which may be many")] = True


class LedgerQuery(Part):
    """Which costs to report by groups: of a month, or of a span, by default the last thirty days."""

    by: Annotated[CostGroup, Meta(description="what costs are grouped by; a class is a reservation")] = CostGroup.TRACK
    month: Annotated[
        str, Meta(pattern=r"^(20[0-9]{2}-(0[1-9]|1[0-2]))?" + END, description="a month", examples=["2026-11"])
    ] = ""
    since: Annotated[Moment, Meta(description="from this moment on")] | None = None
    until: Annotated[Moment, Meta(description="before this moment; what is ahead of now is a forecast")] | None = None
    time_zone: Annotated[ZoneName, Meta(description="of the month and of days; UTC if it is left out")] = ""
    owner: Annotated[_Text, Meta(description="of sessions of this owner only")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS_PER_PAGE, description="how many rows")] = 500
    cursor: Annotated[str, Meta(max_length=200, description="`next` of the page before")] = ""


class CalendarQuery(Part):
    """What to show: by default the next seven days, of all namespaces."""

    since: Annotated[Moment, Meta(description="from this moment on; now if it is left out")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment, at most 62 days later")] | UnsetType = UNSET
    namespace: Annotated[Name, Meta(description="without it, all namespaces")] | UnsetType = UNSET


class QuotaQuery(Part):
    """Whose quotas: by default one's own."""

    owner: Annotated[_Text, Meta(description="of this owner")] = ""
    role: Annotated[Role, Meta(description="as which the owner is taken; user if it is left out")] | None = None
    namespace: Annotated[_Text, Meta(description="in this namespace")] = ""
    track: Annotated[_Text, Meta(description="on this track")] | None = None
    everybody: Annotated[bool, Meta(description="all there are, page by page")] = False
    limit: Annotated[int, Meta(ge=1, le=1000, description="the most owners of a page")] = 100
    cursor: Annotated[_Text, Meta(description="`next` of the page before")] = ""


class LabFile(str):
    """A lab file, as CML exports it."""

    __slots__ = ()


class FileBytes(str):
    """The bytes of a file."""

    __slots__ = ()


class SessionLog(str):
    """Lines of text, oldest first."""

    __slots__ = ()


MEDIA: Final[Mapping[type, tuple[bytes, ...]]] = {
    LabFile: (b"text/yaml", b"application/yaml", b"application/x-yaml"),
    FileBytes: (b"application/octet-stream",),
    SessionLog: (b"text/plain; charset=utf-8",),
}
"""The media types of bodies and answers that are not JSON. The first of them is sent, all are accepted."""


class DiscoveredInstance(Part):
    """A machine that discovery found in the cloud."""

    instance_id: str
    instance_type: str = ""
    state: str = ""
    name: str = ""
    ami_id: str = ""
    ami_name: str = ""
    availability_zone: str = ""
    private_ip: str | None = None
    public_ip: str | None = None
    launched_at: Moment | None = None
    tags: Mapping[str, str] = {}
    spot: bool = False


class BulkImport(Part):
    """The instances that one scan of one region found."""

    discovered_instances: tuple[DiscoveredInstance, ...]
    aws_region: Region
    source: str = "worker-controller-discovery"


class Imported(Part):
    """The outcome of an import: names of the workers made, and instances that had a record already."""

    imported: tuple[Name, ...]
    known: tuple[str, ...]


class Ec2Metrics(Part):
    """Measurements of a machine by EC2 and CloudWatch, and when each of them last answered.

    CloudWatch has memory and disk if its agent runs on the machine.
    """

    ec2_at: Moment | None = None
    cloudwatch_at: Moment | None = None
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    network_in_bytes: Count | None = None
    network_out_bytes: Count | None = None


class CmlMetrics(Part):
    """Measurements by CML of itself and of user activity, and when it last answered each."""

    cml_at: Moment | None = None
    activity_at: Moment | None = None
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    uptime_seconds: Count | None = None
    running_nodes: Count | None = None
    active_labs_count: Count | None = None
    hosted_lab_ids: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()
    last_activity_at: Moment | None = None


class MetricsReport(Part):
    """A worker's measurements by source. A measurement without an age is as old as the report.

    Without `activity_at` it is unknown whether somebody works on the worker, and it never counts as idle.
    """

    collected_at: Moment
    ec2: Ec2Metrics = Ec2Metrics()
    cml: CmlMetrics = CmlMetrics()


def metrics_report_of(telemetry: WorkerTelemetry) -> MetricsReport:
    """Return measurements sorted by their source."""
    flat = msgspec.structs.asdict(with_sources(telemetry))
    return MetricsReport(
        collected_at=telemetry.collected_at,
        ec2=Ec2Metrics(**{name: flat[_field_of("cloudwatch", name)] for name in Ec2Metrics.__struct_fields__}),
        cml=CmlMetrics(**{name: flat[_field_of("cml", name)] for name in CmlMetrics.__struct_fields__}),
    )


def telemetry_of(report: MetricsReport) -> WorkerTelemetry:
    """Return the measurements of a report: the reverse of `metrics_report_of`."""
    by_cloud = {_field_of("cloudwatch", name): value for name, value in msgspec.structs.asdict(report.ec2).items()}
    by_cml = {_field_of("cml", name): value for name, value in msgspec.structs.asdict(report.cml).items()}
    return with_sources(WorkerTelemetry(collected_at=report.collected_at, **by_cloud, **by_cml))


def _field_of(source: str, name: str) -> str:
    return f"{source}_{name}" if name in FIGURES else name


class Sample(Part):
    """A worker's measurements in one minute, for plots."""

    at: Moment
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    active_labs_count: Count | None = None
    running_nodes: Count | None = None


class WorkerHistory(msgspec.Struct, frozen=True):
    """A worker's measurements minute by minute, oldest first."""

    items: tuple[Sample, ...]


class NodeDefinitionList(msgspec.Struct, frozen=True):
    """The node definitions that are known, by their ids."""

    items: tuple[KnownNode, ...]


class AlertList(msgspec.Struct, frozen=True):
    """The alerts that are raised and not cleared, oldest first."""

    items: tuple[Alert, ...]


class CostReport(Part):
    """What workers cost in a span: every interval, cut to the span, and the totals."""

    since: Moment
    until: Moment
    total: CostTotal
    by_worker: tuple[CostTotal, ...]
    by_track: tuple[CostTotal, ...]
    intervals: tuple[BillingInterval, ...]
    by_day: tuple[CostTotal, ...] = ()
    """By the days of the zone that was asked for, by their dates."""


def cost_report(intervals: Sequence[BillingInterval], *, since: datetime, until: datetime, now: datetime) -> CostReport:
    """Add up what workers cost in a span."""
    return CostReport(
        since=since,
        until=until,
        total=sum_costs("all", intervals, now),
        by_worker=tuple(sum_costs_by(intervals, lambda one: f"{one.namespace}/{one.worker_name}", now)),
        by_track=tuple(sum_costs_by(intervals, lambda one: one.lab_track, now)),
        intervals=tuple(intervals),
    )


class BudgetLine(Part):
    """The budget of a pool or a track for this month: its limit, what is spent, and what the month will cost in all.

    `month_usd` counts the machines for everything that is promised. From `warn_usd` on people are warned.
    """

    kind: Literal["pool", "track"]
    namespace: Name
    name: ShortText
    limit_usd: Usd
    spent_usd: Usd
    month_usd: Usd
    warn_usd: Usd


class BudgetList(msgspec.Struct, frozen=True):
    """All monthly budgets of pools and tracks, pools first. Owners have theirs in their quotas."""

    items: tuple[BudgetLine, ...]


class ClassCost(Part):
    """What the sessions of a reservation cost: those that left their workers, and those that have claims.

    `unpriced` counts claims of which no price is known.
    """

    spent_usd: Usd
    booked_usd: Usd
    sessions_ended: Count
    sessions_ahead: Count
    unpriced: Count = 0


class ScheduleRequest(Part):
    """Where the scheduler puts a session that it read at exactly this revision."""

    resource_version: Count
    assignment: Assignment


class SeatChanges(Part):
    """Claims that are to change their seats, all or none."""

    changes: Annotated[tuple[SeatChange, ...], Meta(max_length=MAX_ROWS)]


class ClaimNumbers(Part):
    """The numbers of the reservation's claims that a request is about."""

    numbers: Annotated[tuple[Count, ...], Meta(max_length=MAX_SESSIONS_PER_COMMIT)]


class MadeSessions(msgspec.Struct, frozen=True):
    """The sessions that took over claims of a reservation."""

    items: tuple[LabletSession, ...]


class ObservationAnswer(Part):
    """An observation of a running lab. `request_id` names the request that it answers, if any."""

    observation: ResourceObservation
    request_id: ShortText | None = None


class ConsoleList(msgspec.Struct, frozen=True):
    """The consoles of a session."""

    items: tuple[Console, ...]


class ArtifactList(msgspec.Struct, frozen=True):
    """The files that were collected from a session."""

    items: tuple[Artifact, ...]
