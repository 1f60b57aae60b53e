"""The plane: what one caller may see and do. This module holds the protocol, its value types and its contract.

Two implementations behave alike: `control.plane.local` works on the store, `control.plane.client` speaks HTTP to an
API. A controller cannot tell which one it has. A plane belongs to one caller; `under` binds its writes to a lease's
term.

Errors, everywhere: `Forbidden`, the caller's role may not; `Invalid`, with every fault; `Conflict`, another write came
first (with `wanted` 0: the object exists already); `Gone`, the object is not there, or not for this caller; `Deposed`,
the fence's term is over; `Unreachable`, the outcome is unknown. Every write may be repeated after `Unreachable`:
reading shows whether it happened, and a create or an action with a `request` answers as it did the first time.
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
from lcm.model.base.selector import EVERYTHING, ObjectSelector
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortRequest, PreviewRequest, SeatChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.worker import IdleVerdict, LabWorker, LicenseFlavour, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, AlertFinding
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.store.base import Fence, Lease

R = TypeVar("R", bound=Resource)
PAGE_SIZE: Final = 500
LONGEST_PAGE: Final = 1000
LONGEST_APPLY: Final = 5000
"""The most documents that one `apply` may hold."""

Document = Mapping[str, Any]
"""A JSON object as its author wrote it, before admission gives it a type."""


class Ref(NamedTuple, Generic[R]):
    """The name of one object. `name` may also be the object's uid."""

    kind: type[R]
    name: str
    namespace: str = DEFAULT_NAMESPACE

    @property
    def kind_info(self) -> Kind:
        """The registry entry of the object's kind."""
        return KINDS[self.kind.__name__]

    @property
    def key(self) -> str:
        """The key under which the store keeps the object."""
        return self.kind_info.key(self.namespace, self.name)

    def __str__(self) -> str:
        return self.key


def ref_of(resource: R) -> Ref[R]:
    """Return the reference that names an object."""
    return Ref(type(resource), resource.metadata.name, resource.metadata.namespace)


@dataclass(frozen=True, slots=True)
class Listing(Generic[R]):
    """One page of a list, true at `revision`. `next` is the cursor of the following page, None on the last."""

    items: Sequence[R]
    revision: int
    next: str | None = None


class ObjectChange(NamedTuple):
    """An object as one commit left it. `resource` is None when it is gone, or no longer visible to this caller."""

    ref: Ref[Any]
    resource: Resource | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that one commit made to the watched kinds. Never empty."""

    revision: int
    seen: Sequence[ObjectChange]


class PlaneWatch(Protocol):
    """An endless reader of changes. Close it, or use it as an async context manager."""

    def __aiter__(self) -> AsyncIterator[Changes]:
        """Iterate over commits in order, each once."""
        ...

    async def __anext__(self) -> Changes:
        """Wait for the next commit. Raise Relist when the history is gone or the reader was too slow."""
        ...

    async def aclose(self) -> None:
        """Stop watching. May be repeated."""
        ...

    async def __aenter__(self) -> Self:
        """Return the watch itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close the watch."""
        ...


class Applied(Part):
    """The outcome of applying one document."""

    kind: str
    namespace: Name
    name: Name
    outcome: Literal["created", "configured", "unchanged"]
    resource_version: Count


class Drain(Part, tag_field="action", tag="drain"):
    """Accept no new sessions on a worker; wait for the present ones until the deadline."""

    deadline_minutes: Minutes | None = None


class Undrain(Part, tag_field="action", tag="undrain"):
    """Cancel a drain."""


class Pause(Part, tag_field="action", tag="pause"):
    """Ask for the worker's machine to be stopped once no session is on it."""


class Resume(Part, tag_field="action", tag="resume"):
    """Ask for the worker's machine to run."""


class Snooze(Part, tag_field="action", tag="snooze"):
    """Postpone the pause of an idle worker. Without `minutes`, for as long as its spec says."""

    minutes: Minutes | None = None


class License(Part, tag_field="action", tag="license"):
    """Register CML again, with another token or flavour if they are given. A failed registration is retried."""

    license_token: SecretRef | None = None
    license_flavour: LicenseFlavour | None = None


class Telemetry(Part, tag_field="action", tag="telemetry"):
    """Turn the telemetry that CML sends to its vendor on or off."""

    enabled: bool


class Extend(Part, tag_field="action", tag="extend"):
    """Make a session end later, by this many minutes."""

    minutes: Minutes


class Terminate(Part, tag_field="action", tag="terminate"):
    """End a session now. What is on a worker is collected and removed first."""

    reason: Text = ""


class ObserveResources(Part, tag_field="action", tag="observe-resources"):
    """Request an observation of what a running lab really uses.

    The session shows the answer, or that none came in time.
    """


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
    """The instances that one scan of one region found."""

    discovered_instances: tuple[DiscoveredInstance, ...]
    aws_region: Region
    source: str = "worker-controller-discovery"


class Imported(Part):
    """The outcome of an import: names of the workers made, and instances that had a record already."""

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
    """The objects that one caller may see and the operations it may perform."""

    @property
    def caller(self) -> Caller:
        """The caller this plane belongs to."""
        ...

    def under(self, fence: Fence) -> "Plane":
        """Return the same plane with every write bound to a lease's term."""
        ...

    async def get(self, ref: Ref[R]) -> R | None:
        """Read the newest state of an object, also from the archive; None means this caller has no such object."""
        ...

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: ObjectSelector = EVERYTHING,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        """Read a page of at most LONGEST_PAGE objects, ordered by namespace and name; no namespace means all.

        The archive holds only sessions; its pages are in the order in which they ended.
        Pages reached through cursors are true at the first page's revision. Raise Relist when that was compacted.
        """
        ...

    def watch(self, *kinds: type[Resource], after: int) -> PlaneWatch:
        """Follow every commit above `after` that touches these kinds, as far as this caller may see them.

        There are no gaps and no duplicates, even when connections are cut. Raise Relist as the store's watch does, and
        when `after` has not happened yet.
        """
        ...

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        """Create an object. Status and bookkeeping fields that the caller wrote are ignored.

        Repeated with the same `request`, it returns the object of the first time, even if that was changed since.
        """
        ...

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        """Replace the stored spec, labels and annotations by the document's. The rest of the document is ignored.

        `at`, or else a `resource_version` in the document, requires that revision. No difference makes no new revision.
        """
        ...

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        """Merge a document (RFC 7396) into spec, labels and annotations. The rest of it is ignored."""
        ...

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        """Request the deletion of an object, and return the object as it is then.

        An object with a lifecycle goes once its controller has ended it; until then it carries a deletion timestamp.
        Raise Refused while other objects refer to it. May be repeated; raises Gone once the object is gone.
        """
        ...

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        """Create or replace objects, in an order in which each finds what it refers to.

        All are admitted before any is written. Faults name their document: `documents[3].spec.…`. Documents beyond one
        commit's limits are written in several commits; Conflict then names the first document that was not written.
        """
        ...

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        """Perform one of an object's actions. Raise IllegalStep when its phase has no such step."""
        ...

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        """Report an observation: replace the object's status by `status`, at exactly the revision of `resource`.

        Raise Forbidden for an actor that takes no step of the kind's table; a new phase must be a step of this caller's
        actor. The plane keeps the history. An object marked for deletion is removed in the same commit as its step into
        a final phase. No difference makes no new revision.
        """
        ...

    async def report(self, ref: Ref[LabWorker], telemetry: WorkerTelemetry) -> WorkerTelemetry:
        """Store a worker's newest measurements, and return the stored ones. Older measurements than those are dropped.

        Raise Invalid when they come from the future: they would keep out all that follow.
        """
        ...

    async def telemetry(self, ref: Ref[LabWorker]) -> WorkerTelemetry | None:
        """Read a worker's newest measurements; None means it was never measured."""
        ...

    async def history(self, ref: Ref[LabWorker], *, since: datetime) -> Sequence[Sample]:
        """Read a worker's measurements minute by minute, oldest first, of at most 24 hours."""
        ...

    async def detect_idle(self, ref: Ref[LabWorker]) -> IdleVerdict:
        """Judge whether a worker is idle by everything the plane knows, store the verdict, and warn before a pause.

        May be repeated. The verdict alone pauses nothing: the worker controller pauses the worker when `pause_at` has
        come.
        """
        ...

    async def raise_alert(self, ref: Ref[R], complaint: AlertFinding) -> None:
        """Raise an alert about an object, unless it is raised already. One that becomes critical is announced again.

        May be repeated.
        """
        ...

    async def clear_alert(self, ref: Ref[R], alert: str) -> None:
        """Clear an alert about an object, if it is raised. May be repeated."""
        ...

    async def alerts(self) -> Sequence[Alert]:
        """List the alerts that are raised and not cleared, oldest first."""
        ...

    async def licences(self) -> LicenceLedger:
        """Return which licence seats are taken, by which workers, and how many are free."""
        ...

    async def free_licence(self, worker_id: str) -> None:
        """Record that a person freed an orphaned seat at the licence server. Raise Gone when there is no such seat."""
        ...

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        """List what workers cost in a span, by worker and time. Each interval is cut to the span."""
        ...

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        """Put a session where the scheduler decided, at exactly its revision: claim, ports and time at once.

        With a worker, the session becomes SCHEDULED with ports. With a seat alone, its claim is kept there, and a
        session with a slot becomes SCHEDULED too. Raise NoRoom when it does not fit by what the plane knows, and
        Conflict when another write came first: read again and decide again.
        """
        ...

    async def allocate_ports(self, ref: Ref[LabletSession], wish: PortRequest) -> LabletSession:
        """Allocate ports to a session that has a worker; ports it has already are kept. May be repeated."""
        ...

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        """Move claims that have no worker yet to other seats, all or none.

        Raise NoRoom and Conflict as `schedule` does.
        """
        ...

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        """Create the sessions that take over some of a reservation's claims, in one commit; at most FULFILLED_AT_ONCE.

        May be repeated: it returns the same sessions, except for those that are gone.
        """
        ...

    async def preview(self, wish: PreviewRequest) -> Explanation:
        """Explain what would happen to a booking, without making it."""
        ...

    async def explain(self, ref: Ref[LabletSession]) -> Explanation:
        """Explain why a session is where it is, or what it waits for, with the answer of every worker and seat."""
        ...

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        """Return seats, and workers outside of pools, over time. Bookings of others are shown without their names."""
        ...

    async def record_observation(
        self, ref: Ref[LabletSession], observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        """Record an observation of a session's lab, on the session and for its definition; return the updated session.

        May be repeated: a request that was answered already, by anyone, and an observation that is not newer than the
        one stored change nothing. Raise IllegalStep when the session has no lab to observe.
        """
        ...

    async def observations(self, ref: Ref[LabletDefinition]) -> ObservationReport:
        """Compare what the sessions of a definition used with what it declares. A person applies that by `patch`."""
        ...

    async def upload_topology(self, data: bytes) -> TopologyReport:
        """Store a lab file for definitions, and report its contents. Raise Invalid, with lines, for an unusable file.

        May be repeated. Raise Refused, as `download` does, where no files are kept.
        """
        ...

    async def artifacts(self, ref: Ref[LabletSession]) -> Sequence[Artifact]:
        """List the files that were collected from a session and have not expired."""
        ...

    async def download(self, ref: Ref[LabletSession], name: str) -> bytes:
        """Read a file that was collected from a session. Raise Gone when no file of that name is left."""
        ...

    async def logs(self, ref: Ref[LabletSession]) -> str:
        """Return a session's history, progress and the decisions about it, as lines of text."""
        ...

    async def import_workers(self, found: BulkImport) -> Imported:
        """Create a worker record for each instance that has none. May be repeated."""
        ...

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        """Acquire a lease, by the store's contract. For services only."""
        ...

    async def wait_until_vacant(self, name: str) -> None:
        """Wait until a lease's holder no longer has it.

        Whoever must have the lease still has to ask for it now and then.
        """
        ...

    async def renew(self, lease: Lease) -> None:
        """Restart a lease's time to live."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        ...

    async def lease(self, name: str) -> Lease | None:
        """Read a lease and its holder; None means nobody holds it."""
        ...


Tenure = Lease
"""A lease, under the name that controllers use: they do not import the store."""
SessionRef = Ref[LabletSession]
DefinitionRef = Ref[LabletDefinition]
WorkerRef = Ref[LabWorker]
