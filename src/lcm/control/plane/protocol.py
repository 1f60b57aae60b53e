"""The plane: what one caller may see and do. The protocol, its values and its contract.

Two implementations behave alike: `control.local` works on the store, `control.client` speaks HTTP to an API. A
controller cannot tell which it has. A plane belongs to one caller; `under` binds its writes to a lease's term.

Errors, everywhere: `Forbidden` the caller's role may not; `Invalid` with every fault; `Conflict` somebody was faster
(with `wanted` 0: it exists already); `Gone` it is not there, or not for this caller; `Deposed` the fence fell;
`Unreachable` the outcome is unknown. Every write may be repeated after `Unreachable`: reading tells whether it
happened, and a create or an action that carried a `request` answers as it did the first time.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from lcm.model.access.identity import Caller
from lcm.model.base.resource import (
    DEFAULT_NAMESPACE,
    Count,
    Minutes,
    Moment,
    Name,
    Part,
    Percent,
    Region,
    SecretRef,
    Status,
    Text,
)
from lcm.model.base.selector import EVERYTHING, Where
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortWish, SeatChange, Wish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.worker import IdleVerdict, LabWorker, LicenseFlavour, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, Complaint
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.store.base import Fence, Lease

R = TypeVar("R", bound=Resource)
PAGE: Final = 500
LONGEST_PAGE: Final = 1000
LONGEST_APPLY: Final = 5000
"""Documents that one `apply` may hold."""

Document = Mapping[str, Any]
"""A JSON object as somebody wrote it, before admission has given it a type."""


class Ref(NamedTuple, Generic[R]):
    """Names one object. `name` may also be the object's uid."""

    kind: type[R]
    name: str
    namespace: str = DEFAULT_NAMESPACE

    @property
    def known(self) -> Kind:
        """What is known about its kind."""
        return KINDS[self.kind.__name__]

    @property
    def key(self) -> str:
        """Where the store keeps it."""
        return self.known.key(self.namespace, self.name)

    def __str__(self) -> str:
        return self.key


def ref_of(resource: R) -> Ref[R]:
    """Name an object that one has."""
    return Ref(type(resource), resource.metadata.name, resource.metadata.namespace)


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """Part of a list, true at `revision`; `next` is where the following page begins, None on the last."""

    items: Sequence[R]
    revision: int
    next: str | None = None


class Seen(NamedTuple):
    """An object as one commit left it; `resource` None: it is gone, or gone for this caller."""

    ref: Ref[Any]
    resource: Resource | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What one commit changed of what is watched; never empty."""

    revision: int
    seen: Sequence[Seen]


class Watch(Protocol):
    """An endless reader of changes. Close it, or use it as an async context manager."""

    def __aiter__(self) -> AsyncIterator[Changes]:
        """Iterate over commits in order, each once."""
        ...

    async def __anext__(self) -> Changes:
        """Wait for the next commit. Raises Relist when history is gone or the reader was too slow."""
        ...

    async def aclose(self) -> None:
        """Stop watching. May be repeated."""
        ...

    async def __aenter__(self) -> Self:
        """Return the watch itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...


class Applied(Part):
    """What became of one document."""

    kind: str
    namespace: Name
    name: Name
    outcome: Literal["created", "configured", "unchanged"]
    resource_version: Count


class Drain(Part, tag_field="action", tag="drain"):
    """Take no new sessions; wait for the present ones until the deadline."""

    deadline_minutes: Minutes | None = None


class Undrain(Part, tag_field="action", tag="undrain"):
    """Cancel a drain."""


class Pause(Part, tag_field="action", tag="pause"):
    """Want the machine stopped, once nothing is on it."""


class Resume(Part, tag_field="action", tag="resume"):
    """Want the machine running."""


class Snooze(Part, tag_field="action", tag="snooze"):
    """Put off pausing an idle worker; without minutes, for as long as its spec says."""

    minutes: Minutes | None = None


class License(Part, tag_field="action", tag="license"):
    """Register CML anew, with another token or as another flavour if they are given; what failed is tried again."""

    license_token: SecretRef | None = None
    license_flavour: LicenseFlavour | None = None


class Telemetry(Part, tag_field="action", tag="telemetry"):
    """Let CML send its makers telemetry, or not."""

    enabled: bool


class Extend(Part, tag_field="action", tag="extend"):
    """Make a session end later: by so many minutes."""

    minutes: Minutes


class Terminate(Part, tag_field="action", tag="terminate"):
    """End a session now; what is on a worker is collected and removed first."""

    reason: Text = ""


class ObserveResources(Part, tag_field="action", tag="observe-resources"):
    """Have it observed what a running lab really uses; the session shows the answer, or that none came in time."""


WorkerAction = Drain | Undrain | Pause | Resume | Snooze | License | Telemetry
SessionAction = Extend | Terminate | ObserveResources
Action = WorkerAction | SessionAction


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


class BulkImport(Part):
    """What one scan of one region found."""

    discovered_instances: tuple[DiscoveredInstance, ...]
    aws_region: Region
    source: str = "worker-controller-discovery"


class Imported(Part):
    """What became of a scan: names of workers made, instances that had a record already."""

    imported: tuple[Name, ...]
    known: tuple[str, ...]


class Sample(Part):
    """A worker's measurements in one minute, for plots."""

    at: Moment
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    active_labs_count: Count | None = None
    running_nodes: Count | None = None


class Plane(Protocol):
    """What one caller may see and do."""

    @property
    def caller(self) -> Caller:
        """Who that is."""
        ...

    def under(self, fence: Fence) -> "Plane":
        """Give the same plane with every write bound to a lease's term."""
        ...

    async def get(self, ref: Ref[R]) -> R | None:
        """Read the newest state, also from the archive; None means that there is no such object for this caller."""
        ...

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: Where = EVERYTHING,
        limit: int = PAGE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        """Read a page, at most LONGEST_PAGE objects, in the order of namespace and name; no namespace means all.

        Of the archive, in which only sessions are, in the order in which they ended.
        Pages reached through cursors are true at the first one's revision; Relist when that was compacted.
        """
        ...

    def watch(self, *kinds: type[Resource], after: int) -> Watch:
        """Follow every commit above `after` that touches these kinds, for what this caller may see.

        No gap and no duplicate, across cut connections; Relist as the store's watch says, and when `after` has not
        happened.
        """
        ...

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        """Make an object; what the caller wrote of status and bookkeeping is ignored.

        Repeated with the same `request` it answers with the object of the first time, also after that was changed.
        """
        ...

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        """Put the document's spec, labels and annotations in place of the stored ones; the rest of it is ignored.

        `at`, else a `resource_version` in the document, demands that revision. No difference spends no revision.
        """
        ...

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        """Merge a document (RFC 7396) into spec, labels and annotations; the rest of it is ignored."""
        ...

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        """Ask for an object to go, and return it as it is then.

        What has a life of its own goes when its controller has ended it: until then it carries a deletion timestamp.
        Refused while others refer to it. May be repeated; Gone once it is.
        """
        ...

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        """Create or replace objects, in an order in which each finds what it refers to.

        All are admitted before any is written; faults name their document: `documents[3].spec.…`. Documents beyond one
        commit's limits are written in several; Conflict then says which was the first not written.
        """
        ...

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        """Do one of the actions of an object; IllegalStep when its phase has no such step."""
        ...

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        """Report what was seen: put `status` in place of the object's, at exactly the revision of `resource`.

        Forbidden for an actor that takes no step of the kind's table; another phase must be a step of this caller's
        actor. History is kept by the plane. An object that is to be deleted goes in the same commit as its step into a
        final phase. No difference spends no revision.
        """
        ...

    async def report(self, ref: Ref[LabWorker], telemetry: WorkerTelemetry) -> WorkerTelemetry:
        """Keep a worker's newest measurements, and return those kept: what is older than they are is dropped.

        Invalid when they come from the future, which would keep out all that follow.
        """
        ...

    async def telemetry(self, ref: Ref[LabWorker]) -> WorkerTelemetry | None:
        """Read a worker's newest measurements; None means never measured."""
        ...

    async def history(self, ref: Ref[LabWorker], *, since: datetime) -> Sequence[Sample]:
        """Read a worker's measurements minute by minute, oldest first, at most 24 hours of them."""
        ...

    async def detect_idle(self, ref: Ref[LabWorker]) -> IdleVerdict:
        """Judge whether a worker is idle by all that the plane knows, keep the verdict, warn before a pause.

        May be repeated. The verdict alone pauses nothing: the worker controller does when `pause_at` has come.
        """
        ...

    async def complain(self, ref: Ref[R], complaint: Complaint) -> None:
        """Raise an alert about an object, unless it is raised already; one that becomes critical is told once more.

        May be repeated.
        """
        ...

    async def settle(self, ref: Ref[R], alert: str) -> None:
        """Clear an alert about an object, if it is raised. May be repeated."""
        ...

    async def alerts(self) -> Sequence[Alert]:
        """List what is raised and not cleared, oldest first."""
        ...

    async def licences(self) -> LicenceLedger:
        """Tell which licence seats are taken, by which workers, and how many are free."""
        ...

    async def free_licence(self, worker_id: str) -> None:
        """Take note that a person freed an orphaned seat at the licence server. Gone when there is no such seat."""
        ...

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        """List what workers cost in a span, each interval cut to it, by worker and time."""
        ...

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        """Put a session where the scheduler decided, at exactly its revision: claim, ports and time at once.

        With a worker it becomes SCHEDULED with ports; with a seat alone its claim is kept there, and a session with a
        slot becomes SCHEDULED too. NoRoom when it does not fit by what the plane knows, Conflict when somebody was
        faster: look again, decide again.
        """
        ...

    async def allocate_ports(self, ref: Ref[LabletSession], wish: PortWish) -> LabletSession:
        """Give a session that has a worker its ports; one that has them keeps them. May be repeated."""
        ...

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        """Let claims that have no worker yet change their seats, all or none; NoRoom, Conflict as `schedule`."""
        ...

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        """Make the sessions that take over some of a reservation's claims, in one commit; at most FULFILLED_AT_ONCE.

        May be repeated: it answers with the same, but for those that are gone.
        """
        ...

    async def preview(self, wish: Wish) -> Explanation:
        """Tell what would become of a booking, without making it."""
        ...

    async def explain(self, ref: Ref[LabletSession]) -> Explanation:
        """Tell why a session is where it is, or what it waits for, with every worker's and seat's answer to it."""
        ...

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        """Show seats, and workers outside of pools, against time; what others booked without its name."""
        ...

    async def record_observation(
        self, ref: Ref[LabletSession], observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        """Keep what was observed of a session's lab, on it and in what its definition learns; give it as it is then.

        May be repeated: a request that is answered already, by whomever, and an observation that is not newer than the
        one kept, change nothing. IllegalStep when there is no lab of it to observe.
        """
        ...

    async def observations(self, ref: Ref[LabletDefinition]) -> ObservationReport:
        """Tell what the sessions of a definition taught, against what it declares. A person applies that by `patch`."""
        ...

    async def upload_topology(self, data: bytes) -> TopologyReport:
        """Store a lab file for definitions, and tell what is in it; Invalid, with lines, for one of no use.

        May be repeated. Refused, as `download`, where no files are kept.
        """
        ...

    async def artifacts(self, ref: Ref[LabletSession]) -> Sequence[Artifact]:
        """List the files that were collected from a session and have not expired."""
        ...

    async def download(self, ref: Ref[LabletSession], name: str) -> bytes:
        """Read one of the files that were collected from a session; Gone when there is none of that name any more."""
        ...

    async def logs(self, ref: Ref[LabletSession]) -> str:
        """Tell a session's story, its progress and the decisions about it, line by line."""
        ...

    async def import_workers(self, found: BulkImport) -> Imported:
        """Make a record for each instance that has none. May be repeated."""
        ...

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        """Take a lease, as the store's contract says; services only."""
        ...

    async def vacated(self, name: str) -> None:
        """Wait until a lease's holder has it no longer. Whoever must have it asks for it now and then all the same."""
        ...

    async def renew(self, lease: Lease) -> None:
        """Start a lease's time anew."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        ...

    async def lease(self, name: str) -> Lease | None:
        """Tell who holds a lease."""
        ...


Tenure = Lease
"""A lease as controllers know it, who import no store."""
SessionRef = Ref[LabletSession]
DefinitionRef = Ref[LabletDefinition]
WorkerRef = Ref[LabWorker]
