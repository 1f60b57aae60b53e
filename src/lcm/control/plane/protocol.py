"""The plane: what one caller may see and do. This module holds the protocol, its value types and its contract.

Two implementations behave alike: `control.plane.local` works on the store, `control.plane.client` speaks HTTP to an
API. A controller cannot tell which one it has. A plane belongs to one caller; `under` binds its writes to a lease's
term.

Errors, everywhere: `Forbidden`, the caller's role may not; `Invalid`, with every fault; `Conflict`, another write came
first (with `wanted` 0: the object exists already); `Gone`, the object is not there, or not for this caller; `Deposed`,
the fence's term is over; `Unreachable`, the outcome is unknown. Every write may be repeated after `Unreachable`:
reading shows whether it happened, and a create or an action with a `request` answers as it did the first time.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from lcm.control.plane.booking_actions import Move, Resize, SetLearners, Skip, Swap
from lcm.control.plane.operations import PlaneOperations
from lcm.model.access.identity import Caller
from lcm.model.base.resource import (
    DEFAULT_NAMESPACE,
    Count,
    Minutes,
    Name,
    Part,
    Positive,
    SecretRef,
    SecretUse,
    ShortText,
    Status,
    Text,
)
from lcm.model.base.selector import EVERYTHING, ObjectSelector
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.saved_lab import SaveName
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, LicenseFlavour
from lcm.store.base import Fence, Lease

if TYPE_CHECKING:
    from lcm.control.plane.batch import BatchAnswer, BatchRequest

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
    """An object as one commit left it. `resource` is None when it is gone, or no longer visible to this caller.

    `before` is what a cache held of it until then. None means that nothing is known of that.
    """

    ref: Ref[Any]
    resource: Resource | None
    before: Resource | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that one commit made to the watched kinds. Never empty."""

    revision: int
    seen: Sequence[ObjectChange]


class PlaneWatch(ABC):
    """An endless reader of changes: the commits in order, each once. Close it, or use it in an async `with`."""

    passed_revision = 0
    """Up to which revision there was nothing else that concerns the reader, if that is known."""

    @abstractmethod
    async def __anext__(self) -> Changes:
        """Wait for the next commit. Raise Relist when the history is gone or the reader was too slow."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop watching. May be repeated."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Applied(Part):
    """The outcome of applying one document. `deleting` is whether the object is on its way out all the same."""

    kind: str
    namespace: Name
    name: Name
    outcome: Literal["created", "configured", "unchanged"]
    resource_version: Count
    deleting: bool = False


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

    license_token: Annotated[SecretRef, SecretUse.LICENSE_TOKEN] | None = None
    license_flavour: LicenseFlavour | None = None


class Telemetry(Part, tag_field="action", tag="telemetry"):
    """Turn the telemetry that CML sends to its vendor on or off."""

    enabled: bool


class RemoveLab(Part, tag_field="action", tag="remove-lab"):
    """Remove a lab of an unknown session that is held on a worker. It is collected once more before that."""

    lab_id: ShortText


class Extend(Part, tag_field="action", tag="extend"):
    """Make a session or a class end later, by this many minutes; of a series all that is left of it, or a part."""

    minutes: Minutes
    occurrence: Positive | None = None
    onward: bool = False


class Terminate(Part, tag_field="action", tag="terminate"):
    """End a session now. What is on a worker is collected and removed first."""

    reason: Text = ""


class ObserveResources(Part, tag_field="action", tag="observe-resources"):
    """Request an observation of what a running lab really uses.

    The session shows the answer, or that none came in time.
    """


class Save(Part, tag_field="action", tag="save"):
    """Request that a running lab is saved as it is, with the configurations of its nodes; it runs on meanwhile.

    The session shows the file, or why there is none. Without `name` saves are numbered. The newest are kept.
    """

    name: SaveName | None = None


WorkerAction = Drain | Undrain | Pause | Resume | Snooze | License | Telemetry | RemoveLab
SessionAction = Extend | Terminate | ObserveResources | Save | Move
ReservationAction = Move | Extend | Skip | Resize | SetLearners | Swap
Action = WorkerAction | SessionAction | ReservationAction


class LeaseLine(Protocol):
    """Where the holder of a lease keeps it: a plane, or a connection of its own."""

    async def renew(self, *leases: Lease) -> None:
        """Restart leases' times to live. Raises Deposed when one is over; the others are restarted all the same."""
        ...

    async def lease(self, name: str) -> Lease | None:
        """Read a lease and its holder; None means nobody holds it."""
        ...

    async def wait_until_vacant(self, name: str) -> None:
        """Wait until a lease's holder no longer has it."""
        ...


class Plane(PlaneOperations, ABC):
    """The objects that one caller may see and the operations it may perform."""

    @property
    @abstractmethod
    def caller(self) -> Caller:
        """The caller this plane belongs to."""

    @abstractmethod
    def under(self, fence: Fence) -> "Plane":
        """Return the same plane with every write bound to a lease's term."""

    @abstractmethod
    async def get(self, ref: Ref[R]) -> R | None:
        """Read the newest state of an object, also from the archive; None means this caller has no such object."""

    @abstractmethod
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

    @abstractmethod
    def watch(self, *kinds: type[Resource], after: int) -> PlaneWatch:
        """Follow every commit above `after` that touches these kinds, as far as this caller may see them.

        There are no gaps and no duplicates, even when connections are cut. Raise Relist as the store's watch does, and
        when `after` has not happened yet.
        """

    @abstractmethod
    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        """Create an object. Status and bookkeeping fields that the caller wrote are ignored.

        Repeated with the same `request`, it returns the object of the first time, even if that was changed since.
        """

    @abstractmethod
    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        """Replace the stored spec, labels and annotations by the document's. The rest of the document is ignored.

        `at`, or else a `resource_version` in the document, requires that revision. No difference makes no new revision.
        """

    @abstractmethod
    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        """Merge a document (RFC 7396) into spec, labels and annotations. The rest of it is ignored."""

    @abstractmethod
    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        """Request the deletion of an object, and return the object as it is then.

        An object with a lifecycle goes once its controller has ended it; until then it carries a deletion timestamp.
        Raise Refused while other objects refer to it. May be repeated; raises Gone once the object is gone.
        """

    @abstractmethod
    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        """Create or replace objects, in an order in which each finds what it refers to.

        All are admitted before any is written. Faults name their document: `documents[3].spec.…`. Documents beyond one
        commit's limits are written in several commits; Conflict then names the first document that was not written.
        """

    @abstractmethod
    async def batch(self, asked: "BatchRequest", *, dry_run: bool = False, request: str | None = None) -> "BatchAnswer":
        """Do many things in one call, and answer for each; nothing raises that concerns one item only.

        In mode `each` the items are done one after another. In mode `all` they are one commit: if one of them may not
        be done, none is. Raise Invalid for what one commit cannot do, TooLarge for more than it holds, before anything
        is done. Repeated with the same `request`, what was done is not done again.
        """

    @abstractmethod
    async def act(
        self, ref: Ref[R], action: Action, *, at: int | None = None, dry_run: bool = False, request: str | None = None
    ) -> R:
        """Perform one of an object's actions. Raise IllegalStep when its phase has no such step.

        `at` requires that revision. Moves, extensions and more seats are promised as bookings are, or refused.
        """

    @abstractmethod
    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        """Report an observation: replace the object's status by `status`, at exactly the revision of `resource`.

        Raise Forbidden for an actor that takes no step of the kind's table; a new phase must be a step of this caller's
        actor. The plane keeps the history. An object marked for deletion is removed in the same commit as its step into
        a final phase. No difference makes no new revision.
        """

    @abstractmethod
    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        """Acquire a lease, by the store's contract. For services only."""

    @abstractmethod
    async def wait_until_vacant(self, name: str) -> None:
        """Wait until a lease's holder no longer has it.

        Whoever must have the lease still has to ask for it now and then.
        """

    @abstractmethod
    async def renew(self, *leases: Lease) -> None:
        """Restart leases' times to live, by the store's contract."""

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Give a lease back."""

    @abstractmethod
    async def lease(self, name: str) -> Lease | None:
        """Read a lease and its holder; None means nobody holds it."""


Tenure = Lease
"""A lease, under the name that controllers use: they do not import the store."""
SessionRef = Ref[LabletSession]
DefinitionRef = Ref[LabletDefinition]
WorkerRef = Ref[LabWorker]
