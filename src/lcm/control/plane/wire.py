"""The bodies that the plane's HTTP face and its client exchange where no model type says it already.

`api` reads what `control.client` writes, and the other way round: one set of structs, so that they cannot differ.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final, get_args

import msgspec

from lcm.control.access.audit import AuditRecord
from lcm.control.plane.problems import Problem
from lcm.control.plane.protocol import Action, Applied, Document, Sample, SessionAction, WorkerAction
from lcm.model.access.identity import AccessToken, Role, Subject
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Count, Moment, Part, Percent, Positive, ShortText, Text
from lcm.model.kinds.placement import FULFILLED_AT_ONCE, LONGEST_LIST, Assignment, SeatChange
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.sink import Sink, SinkStatus
from lcm.model.kinds.worker import WorkerTelemetry
from lcm.model.money.billing import BillingInterval, CostTotal, total, totals
from lcm.model.telemetry.alert import Alert
from lcm.model.telemetry.observation import ResourceObservation
from lcm.store.base import Lease

ACTOR: Final = "Lcm-Actor"
FENCE: Final = "Lcm-Fence"
EPOCH: Final = "Lcm-Epoch"
"""On a watch's answer: the history its revisions belong to."""
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
REQUEST_PATTERN: Final = "[!-~]{1,200}"
"""What an idempotency key looks like."""
ACTIONS: Final[Mapping[str, tuple[type[Action], ...]]] = {
    "LabWorker": get_args(WorkerAction),
    "LabletSession": get_args(SessionAction),
}
"""By kind; each is a sub-path of its object."""
NDJSON: Final = "application/x-ndjson"
"""What a watch is answered in."""
LIFE_SECONDS: Final = 5.0
"""A watch on which nothing happens says so this often."""
DEAD_SECONDS: Final = 15.0
"""A watch that has said nothing for so long is dead."""

EventId = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=128, description="EPOCH.REVISION.N", examples=["9f3c1a2b.42.0"]),
]


class Items(msgspec.Struct, frozen=True):
    """A page of a list; its items have the type that was asked for."""

    items: list[msgspec.Raw]
    revision: int
    next: str | None = None


class Documents(Part):
    """What is to be applied."""

    documents: Sequence[Document]


class Results(msgspec.Struct, frozen=True):
    """What became of what was applied, in its order."""

    results: tuple[Applied, ...]


class StatusReport(Part):
    """What was seen of an object at exactly this revision; the status has its kind's type."""

    resource_version: Count
    status: msgspec.Raw
    reason: Text = ""


class Ec2Metrics(Part):
    """What EC2 and CloudWatch said of a machine, and when each of them last answered."""

    ec2_at: Moment | None = None
    cloudwatch_at: Moment | None = None
    cpu_utilization: Percent | None = None
    network_in_bytes: Count | None = None
    network_out_bytes: Count | None = None


class CmlMetrics(Part):
    """What CML said of itself and of what people did, and when it last answered each. CloudWatch's CPU comes first."""

    cml_at: Moment | None = None
    activity_at: Moment | None = None
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    uptime_seconds: Count | None = None
    running_nodes: Count | None = None
    active_labs_count: Count | None = None
    hosted_lab_ids: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    last_activity_at: Moment | None = None


class MetricsReport(Part):
    """A worker's measurements by their source. What comes without an age is as old as the report.

    Without `activity_at` it is not known whether somebody works on it, and it is never idle.
    """

    collected_at: Moment
    ec2: Ec2Metrics = Ec2Metrics()
    cml: CmlMetrics = CmlMetrics()


class WorkerHistory(msgspec.Struct, frozen=True):
    """A worker's measurements minute by minute, oldest first."""

    items: tuple[Sample, ...]


class AlertList(msgspec.Struct, frozen=True):
    """What is raised and not cleared, oldest first."""

    items: tuple[Alert, ...]


class LeaseWish(Part):
    """Who wants a lease, and for how long after each renewal."""

    holder: str
    ttl_seconds: Positive


class LeaseTerm(Part):
    """Which term of a lease is meant."""

    term: Count


class LeaseAnswer(msgspec.Struct, frozen=True):
    """The lease, or that there is none."""

    lease: Lease | None


class Who(msgspec.Struct, frozen=True):
    """Who the caller is."""

    name: Subject
    role: Role


class ShownSink(Sink):
    """A sink as it is shown, and as it may be sent back: what is bookkeeping is then ignored.

    `built_in` ones are made by the settings. A URL that ends in *** is not shown in full; sent back, it stays as it is.
    """

    resource_version: Count = 0
    built_in: bool = False
    status: SinkStatus | None = None


class ReplayWish(Part):
    """Which dead letters to send once more: those of these events, or without any, all."""

    event_ids: Annotated[tuple[EventId, ...], msgspec.Meta(max_length=1000)] = ()


class Replayed(msgspec.Struct, frozen=True):
    """How many dead letters will be sent once more that were not waiting for it already."""

    count: Count


class Queued(msgspec.Struct, frozen=True):
    """An event that will be sent."""

    event_id: EventId


class ToldEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is listed."""

    id: EventId
    type: str
    time: Moment
    kind: str
    name: str
    namespace: str
    data: msgspec.Raw
    owner_id: str | None = None
    session_id: str | None = None
    worker_id: str | None = None
    definition_id: str | None = None


class ToldEvents(msgspec.Struct, frozen=True):
    """Events in the order in which they happened. `last` is where to go on, and `more` says that there is something."""

    items: tuple[ToldEvent, ...]
    last: EventId
    more: bool = False


class ToldLetter(msgspec.Struct, frozen=True):
    """A dead letter as it is listed."""

    event: ToldEvent
    attempts: int
    last_error: str
    at: Moment
    replay: bool = False


class ToldLetters(msgspec.Struct, frozen=True):
    """A page of dead letters."""

    items: tuple[ToldLetter, ...]
    next: str | None = None


class ToldSinks(msgspec.Struct, frozen=True):
    """All sinks."""

    items: tuple[ShownSink, ...]


class Sight(msgspec.Struct, frozen=True):
    """An object in a line of a watch; null when it is gone."""

    kind: str
    namespace: str
    name: str
    object: msgspec.Raw


class Line(msgspec.Struct, frozen=True):
    """A line of a watch: a commit, or without anything seen a sign of life, or a problem that ends it."""

    revision: int = 0
    seen: tuple[Sight, ...] = ()
    problem: Problem | None = None


def check_request(given: str) -> None:
    """Refuse what cannot be the key of a request."""
    if not re.fullmatch(REQUEST_PATTERN, given):
        remedy = "use 1 to 200 visible ASCII characters without spaces"
        raise Invalid(Fault(IDEMPOTENCY_KEY, f"{given[:80]!r} is no key", remedy))


def report_of(telemetry: WorkerTelemetry) -> MetricsReport:
    """Sort measurements by their source."""
    flat = msgspec.structs.asdict(telemetry)
    return MetricsReport(
        collected_at=telemetry.collected_at,
        ec2=Ec2Metrics(**{name: flat[name] for name in Ec2Metrics.__struct_fields__}),
        cml=CmlMetrics(**{name: flat[name] for name in CmlMetrics.__struct_fields__ if name != "cpu_utilization"}),
    )


def telemetry_of(report: MetricsReport) -> WorkerTelemetry:
    """Undo `report_of`."""
    cpu = report.ec2.cpu_utilization
    flat = msgspec.structs.asdict(report.cml) | msgspec.structs.asdict(report.ec2)
    flat["cpu_utilization"] = report.cml.cpu_utilization if cpu is None else cpu
    return WorkerTelemetry(collected_at=report.collected_at, **flat)


LONGEST_LIFE_SECONDS: Final = 90 * 86_400
"""For tokens that people make for themselves."""
USUAL_LIFE_SECONDS: Final = 30 * 86_400
_MOST_SECONDS: Final = 100 * 365 * 86_400


class TokenWish(Part):
    """A token to be made: by default for the caller, with the caller's role, for thirty days.

    Only administrators make tokens for others, or any that last for more than ninety days; 0 is for ever.
    """

    name: Subject | None = None
    role: Role | None = None
    expires_in_seconds: Annotated[int, msgspec.Meta(ge=0, le=_MOST_SECONDS, examples=[2_592_000])] | None = None


class TokenInfo(Part):
    """A token as it may be shown: neither its text nor its hash. A session is a browser's."""

    id: str
    name: Subject
    role: Role
    created_at: Moment
    expires_at: Moment | None
    session: bool
    made_by: str


class TokenMade(Part):
    """A new token. Its text is not kept and never shown again."""

    token: str
    info: TokenInfo


class TokenList(Part):
    """Tokens, oldest first."""

    items: tuple[TokenInfo, ...]


class SignInLink(Part):
    """Where a browser signs in, once; below the API's address."""

    path: str
    expires_at: Moment


class AuditList(Part):
    """A page of the audit, newest last; `next` is null on the last page."""

    items: tuple[AuditRecord, ...]
    next: str | None


def shown(token: AccessToken) -> TokenInfo:
    """Show a token without what is nobody's business."""
    return TokenInfo(
        id=token.id,
        name=token.name,
        role=token.role,
        created_at=token.created_at,
        expires_at=token.expires_at,
        session=token.session,
        made_by=token.made_by,
    )


class CostReport(Part):
    """What workers cost in a span: every interval, cut to it, and what they add up to."""

    since: Moment
    until: Moment
    total: CostTotal
    by_worker: tuple[CostTotal, ...]
    by_track: tuple[CostTotal, ...]
    intervals: tuple[BillingInterval, ...]


def report(intervals: Sequence[BillingInterval], *, since: datetime, until: datetime, now: datetime) -> CostReport:
    """Add up what workers cost."""
    return CostReport(
        since=since,
        until=until,
        total=total("all", intervals, now),
        by_worker=tuple(totals(intervals, lambda one: f"{one.namespace}/{one.worker_name}", now)),
        by_track=tuple(totals(intervals, lambda one: one.lab_track, now)),
        intervals=tuple(intervals),
    )


class ObservationAnswer(Part):
    """What was observed of a running lab; `request_id` names the request that it answers, if any."""

    observation: ResourceObservation
    request_id: ShortText | None = None


class ArtifactList(msgspec.Struct, frozen=True):
    """The files that were collected from a session."""

    items: tuple[Artifact, ...]


class ScheduleWish(Part):
    """Where the scheduler wants a session that it saw at exactly this revision."""

    resource_version: Count
    assignment: Assignment


class SeatChanges(Part):
    """Claims that are to change their seats, all or none."""

    changes: Annotated[tuple[SeatChange, ...], msgspec.Meta(max_length=LONGEST_LIST)]


class ClaimNumbers(Part):
    """Which of a reservation's claims are meant."""

    numbers: Annotated[tuple[Count, ...], msgspec.Meta(max_length=FULFILLED_AT_ONCE)]


class MadeSessions(msgspec.Struct, frozen=True):
    """The sessions that took over claims of a reservation."""

    items: tuple[LabletSession, ...]
