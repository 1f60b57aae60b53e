"""A worker's hypervisor, as controllers see it: the `LabHost` protocol, and `Hosts`, which finds it for a worker.

`cml.host` calls a CML controller, `sim` its engine without a network; one conformance suite tests both. One object
serves one worker. Effects are idempotent.

A lab is found again by its title, because importing twice would make two labs. CML does not keep titles unique, and
names of sessions are used again, in other namespaces and at other times. So the title that a controller gives carries
the session's UID (36 of the 64 characters that CML allows): whatever has this title is ours, and nobody adopts, or
removes, another's lab. Two who import at the same moment can still make two labs of one title; so whoever removes a
session's lab repeats `find` and `remove` until `find` returns None.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Later, Refused, Stuck
from lcm.model.base.resource import Part
from lcm.model.kinds.worker import LabWorker

UNLICENSED_NODES: Final = 5
INCLUDED_NODES: Final[Mapping[str, int]] = {"CML_Personal": 20, "CML_Personal40": 40, "CML_Enterprise": 20}
"""How many nodes a product runs before expansion. A product not named here runs as many as Enterprise."""


class CmlApiError(Refused):
    """CML refused a request as it is."""


class CmlAuthenticationError(Stuck):
    """CML refused our user name and password, or this user may not do what was asked."""


class CmlCertificateError(Stuck):
    """The answering machine does not hold the certificate that is pinned for this worker."""


class CmlAnswerError(Stuck):
    """CML answered in an unknown form; the message says what was expected."""


class CmlLicensingError(Stuck):
    """CML refused a licence operation for good."""


class CmlLabCreationError(CmlApiError):
    """CML refused to import a lab."""


class NotReady(Later):
    """The machine answers but CML does not yet (502), or nothing listens yet."""


class System(Part):
    """What CML says about itself without a sign-in."""

    version: str
    ready: bool


class HostHealth(Part):
    """CML's own view of its parts; `reasons` names what is wrong."""

    healthy: bool
    licensed: bool | None
    reasons: tuple[str, ...] = ()


class Stats(Part):
    """What the machine has and uses. CPU is what it has, never derived from its usage."""

    cpu_count: int
    cpu_percent: float
    memory_total_mb: int
    memory_used_mb: int
    disk_total_mb: int
    disk_used_mb: int
    running_nodes: int
    total_nodes: int
    allocated_cpus: float
    allocated_memory_mb: int


class LabState(StrEnum):
    """CML's states of a lab; whether its nodes have booted is `converged`."""

    DEFINED = "DEFINED_ON_CORE"
    STOPPED = "STOPPED"
    STARTED = "STARTED"


class LabSummary(Part):
    """One lab on the host, ours or another user's."""

    lab_id: str
    title: str
    state: LabState
    node_count: int
    owner: str = ""
    created_at: datetime | None = None
    modified_at: datetime | None = None


class InterfaceFacts(Part):
    """An interface and the addresses CML has seen on it."""

    interface_id: str
    label: str
    slot: int | None
    state: str
    mac_address: str | None = None
    ip4: tuple[str, ...] = ()


class NodeFacts(Part):
    """A node with what it really got (`operational`), not what its file left unset.

    Before its first start it has what the file says, None where that is unset. `cpu_limit` is a percentage of `cpus`;
    `disk_gb` is boot disk and data volume together.
    """

    node_id: str
    label: str
    node_definition: str
    state: str
    tags: tuple[str, ...] = ()
    cpus: float | None = None
    cpu_limit: int | None = None
    ram_mb: int | None = None
    disk_gb: float | None = None
    interfaces: tuple[InterfaceFacts, ...] = ()


class Elements(Part):
    """The states of all elements of a lab by id."""

    nodes: Mapping[str, str]
    links: Mapping[str, str]
    interfaces: Mapping[str, str]


class NodeUse(Part):
    """What a running node uses, in CML's units, and how long it has been in each state."""

    cpu_usage: float | None = None
    ram_usage: float | None = None
    disk_usage: float | None = None
    cpus: float | None = None
    ram_mb: int | None = None
    seconds_in_state: Mapping[str, float] = {}


class LinkUse(Part):
    """What went over a link."""

    read_bytes: int = 0
    written_bytes: int = 0


class SimulationStats(Part):
    """CML's running statistics by node and link id; what does not run may be missing."""

    nodes: Mapping[str, NodeUse]
    links: Mapping[str, LinkUse]


class Licence(Part):
    """CML's licence as it is now."""

    registration: str
    authorization: str
    product: str
    node_limit: int
    expansion_nodes: int = 0
    failure: str = ""

    @property
    def is_registered(self) -> bool:
        """Whether the licence server knows this CML."""
        return self.registration == "COMPLETED"

    @property
    def in_compliance(self) -> bool:
        """Whether the licence may be used."""
        return self.is_registered and self.authorization == "IN_COMPLIANCE"


def node_limit(product: str, *, in_compliance: bool, expansion_nodes: int) -> int:
    """Return how many nodes may run: the product's and its expansion, or five without a licence."""
    if not in_compliance:
        return UNLICENSED_NODES
    return INCLUDED_NODES.get(product, INCLUDED_NODES["CML_Enterprise"]) + expansion_nodes


class PoolUse(Part):
    """A resource pool's limit and use in whole CPUs (CML's REST counts hundredths); None is no limit."""

    pool_id: str
    label: str
    licenses: int | None
    licenses_limit: int | None
    cpus: float | None
    cpus_limit: float | None
    ram_mb: int | None
    ram_limit_mb: int | None


class Activity(Part):
    """One telemetry event: somebody did something."""

    category: str
    at: datetime


class NodeDefinition(Part):
    """What a node of this kind gets when its file says nothing."""

    definition_id: str
    cpus: float
    ram_mb: int
    boot_disk_gb: float = 0.0
    data_volume_gb: float = 0.0
    nature: str = ""
    image_definitions: tuple[str, ...] = ()


class HostNotice(Part):
    """A notice that CML's administrator shows to everyone."""

    notice_id: str
    label: str
    content: str
    level: str = "INFO"


class Maintenance(Part):
    """Whether CML is closed for maintenance, and the notices that are on."""

    enabled: bool
    notices: tuple[HostNotice, ...] = ()


class LabHost(Protocol):
    """One hypervisor.

    Every verb may raise NotReady, Unreachable, Throttled, CmlAuthenticationError, CmlCertificateError or
    CmlAnswerError; and Invalid for an id that CML cannot have given. None and empty lists are answers. Every verb may
    be cancelled; then its effect is unknown.
    """

    async def sign_in(self) -> None:
        """Check that user name and password are accepted. The other verbs sign in by themselves."""
        ...

    async def system(self) -> System:
        """Read version and readiness; needs no sign-in. Not ready yet may also be NotReady."""
        ...

    async def health(self) -> HostHealth:
        """Read CML's own health checks."""
        ...

    async def stats(self) -> Stats:
        """Read what the machine has and uses."""
        ...

    async def maintenance(self) -> Maintenance:
        """Read whether CML is closed for maintenance."""
        ...

    async def licence(self) -> Licence:
        """Read the licence."""
        ...

    async def register(self, *, product: str, token: Secret, expansion_nodes: int = 0) -> Licence:
        """Set the product, register, and poll until in compliance. Already so is success.

        Raises CmlLicensingError when CML says that the token is not valid, Later when it takes too long.
        """
        ...

    async def deregister(self) -> Licence:
        """Return the licence and poll until it is returned. Not registered is success.

        Raises Later while nodes run. Raises CmlLicensingError when CML could not tell the licence server
        (LicenceSeatNotReturned), or when the answer that would have said so was lost (LicenceSeatUnknown). CML has
        forgotten its licence all the same, so repeating is success; but the licence seat stays taken, or may stay
        taken, until a person frees it.
        """
        ...

    async def labs(self) -> Sequence[LabSummary]:
        """List every lab of every user. Costs one call per lab: to watch a host, `all_nodes` is cheaper."""
        ...

    async def find(self, title: str) -> LabSummary | None:
        """Find a lab by its title; the oldest if there are several. None means that there is none, or none left."""
        ...

    async def look(self, lab_id: str) -> LabSummary | None:
        """Read one lab by its id; None means that it is not there."""
        ...

    async def ensure(self, title: str, topology: str) -> LabSummary:
        """Import the lab unless one of this title is there, whoever made that. Raises CmlLabCreationError.

        The title must be one that nobody else gives: it carries the session's UID. Of several callers at the same
        moment, or after one was cancelled, each may have made a lab; all of them find the oldest from then on.
        """
        ...

    async def start(self, lab_id: str) -> None:
        """Start all nodes. May be repeated. Raises Gone, or NoRoom when licence or pool do not allow it."""
        ...

    async def converged(self, lab_id: str) -> bool:
        """Return whether every node has reached the requested state. Raises Gone."""
        ...

    async def stop(self, lab_id: str) -> None:
        """Stop all nodes. May be repeated. Raises Gone."""
        ...

    async def remove(self, lab_id: str) -> None:
        """Stop, wipe and delete, waiting between. Gone already is success. Raises Later when it takes too long.

        Other labs of the same title stay: to remove all, repeat `find` and `remove` until `find` returns None.
        """
        ...

    async def elements(self, lab_id: str) -> Elements:
        """Read the states of all elements in one call. Raises Gone."""
        ...

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        """Read all nodes with interfaces and discovered addresses. Raises Gone."""
        ...

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        """Read the nodes of all labs by lab id, without interfaces: whose ports are in use. One call for all labs."""
        ...

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        """Read running statistics. Raises Gone."""
        ...

    async def topology(self, lab_id: str) -> str:
        """Extract the current configurations, then download the lab. Raises Gone."""
        ...

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        """Replace a node's tags. May be repeated. Raises Gone."""
        ...

    async def pools(self) -> Sequence[PoolUse]:
        """Read the use of all resource pools."""
        ...

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        """Read what people and machines did on the host after a moment, oldest first."""
        ...

    async def set_telemetry(self, *, enabled: bool) -> None:
        """Set whether CML sends telemetry to its maker. May be repeated."""
        ...

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        """Read what the host can run and what each node gets by default."""
        ...

    async def close(self) -> None:
        """Close connections. May be repeated."""
        ...


class Hosts(Protocol):
    """Every worker's hypervisor."""

    async def of(self, worker: LabWorker) -> LabHost:
        """Return the hypervisor of a worker whose `status.cml.api_url` is known.

        It is the same object as long as address, certificate and credentials are the same. Raises Stuck when the
        password cannot be read, NotReady or Unreachable when the machine is not there.
        """
        ...

    async def certificate(self, worker: LabWorker) -> str:
        """Fetch the certificate that the machine shows at first contact, in PEM; "" where there is none to pin."""
        ...

    async def forget(self, worker: LabWorker) -> None:
        """Release what is cached for a worker that is gone. May be repeated."""
        ...

    async def close(self) -> None:
        """Release everything. May be repeated."""
        ...
