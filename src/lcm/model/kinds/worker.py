"""LabWorker: one hypervisor on EC2, its spec and its status.

Fast-changing measurements live in `WorkerTelemetry` under a key of their own, so that a measurement never conflicts
with a step. The state machine is in `model.kinds.worker_machine`.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount, read_dimensions, utilization
from lcm.model.base.resource import (
    API_VERSION,
    Count,
    Labels,
    LabelText,
    Metadata,
    Minutes,
    Moment,
    Part,
    Percent,
    Positive,
    Region,
    SecretRef,
    SecretUse,
    ShortText,
    Status,
    Text,
    Truth,
)
from lcm.model.topology.node_definitions import NodeSize

MAX_CONCURRENT_LABS: Final = 20
UNLICENSED_NODES: Final = 5
LICENSED_NODES: Final = 200
MAX_NODE_DEFINITIONS: Final = 1000


class WorkerPhase(StrEnum):
    """The phase of a worker's life."""

    PENDING = "PENDING"
    PROVISIONING_EC2 = "PROVISIONING_EC2"
    EC2_READY = "EC2_READY"
    STARTING = "STARTING"
    READY_UNLICENSED = "READY_UNLICENSED"
    LICENSING = "LICENSING"
    READY = "READY"
    ACTIVE = "ACTIVE"
    DRAINING = "DRAINING"
    UNLICENSING = "UNLICENSING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    TERMINATING_EC2 = "TERMINATING_EC2"
    TERMINATED = "TERMINATED"
    FAILED = "FAILED"


class WorkerCondition(StrEnum):
    """The conditions of a worker."""

    EC2_PROVISIONED = "EC2Provisioned"
    CML_READY = "CMLReady"
    LICENSED = "Licensed"
    ACCEPTING_LABS = "AcceptingLabs"
    CAPACITY_AVAILABLE = "CapacityAvailable"
    HEALTH_CHECK_PASSED = "HealthCheckPassed"
    REACHABLE = "Reachable"
    LIKE_TEMPLATE = "LikeTemplate"


class LabType(StrEnum):
    """What a lab consists of, and so which hosts can run it."""

    CML = "CML"
    CONTAINER = "CONTAINER"
    VM = "VM"
    HYBRID = "HYBRID"


class LicenseFlavour(StrEnum):
    """The kind of CML licence."""

    PERSONAL = "personal"
    ENTERPRISE = "enterprise"
    EVALUATION = "evaluation"


_SHORT_LIST = msgspec.Meta(max_length=32, description="a list of at most 32")


class RootVolume(Part):
    """The disk a worker boots from."""

    kind: Literal["io1", "io2", "gp3"] = "io1"
    size_gb: Positive = 250
    iops: Positive = 5000
    encrypted: bool = True


class AwsSpec(Part):
    """Where and how the instance is launched. A `spot` machine is cheaper, and may be taken away at any time."""

    region: Region = "us-east-1"
    instance_type: ShortText = "m5zn.metal"
    instance_type_alternatives: Annotated[tuple[ShortText, ...], _SHORT_LIST] = ()
    market: Literal["on_demand", "spot"] = "on_demand"
    ami_id: ShortText | None = None
    ami_name_pattern: ShortText | None = None
    vpc_id: ShortText | None = None
    subnet_ids: Annotated[tuple[ShortText, ...], _SHORT_LIST] = ()
    security_group_ids: Annotated[tuple[ShortText, ...], _SHORT_LIST] = ()
    root_volume: RootVolume = RootVolume()
    iam_instance_profile: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    key_pair: LabelText | None = None
    public_ip: bool = True
    nested_virtualization: bool = False
    tags: Labels = {}


class CmlSpec(Part):
    """How CML on the worker is used."""

    admin_username: ShortText = "admin"
    admin_password: Annotated[SecretRef, SecretUse.ADMIN_PASSWORD] = "env:CML_ADMIN_PASSWORD"  # noqa: S105 - where it is, not what it is
    license_flavour: LicenseFlavour = LicenseFlavour.ENTERPRISE
    license_token: Annotated[SecretRef, SecretUse.LICENSE_TOKEN] | None = None
    max_nodes_unlicensed: Count = UNLICENSED_NODES
    max_nodes_licensed: Count = LICENSED_NODES
    telemetry: bool = False


class IdlePolicy(Part):
    """When an idle worker is paused."""

    enabled: bool = True
    threshold_minutes: Minutes = 30
    warn_minutes: Count = 5
    snooze_minutes: Minutes = 60


class LabWorkerSpec(Part):
    """The desired state of a worker.

    `accepts_sessions` is False for a machine that was found and imported, until a person says otherwise.
    """

    aws: AwsSpec = AwsSpec()
    cml: CmlSpec = CmlSpec()
    host_kind: Literal["cml", "container"] = "cml"
    lab_types: Annotated[tuple[LabType, ...], _SHORT_LIST] = (LabType.CML,)
    lab_track: ShortText = ""
    wanted_state: Literal["running", "stopped"] = "running"
    max_concurrent_labs: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONCURRENT_LABS)] = MAX_CONCURRENT_LABS
    idle: IdlePolicy = IdlePolicy()
    drain_deadline_minutes: Minutes = 240
    auto_remediate: bool = True
    accepts_sessions: bool = True


class Ec2Facts(Part):
    """What EC2 reported about the instance, and what we requested.

    `client_token` is set before the launch is requested and stays until the outcome of the launch is known.
    `reclaim_at` is when the cloud takes a spot machine away, once it has given notice.
    `state_since` is when the instance came into its state, None where EC2 did not say.
    """

    client_token: str = ""
    launch_attempt: Count = 0
    instance_id: str = ""
    instance_type: str = ""
    state: str = ""
    availability_zone: str = ""
    private_ip: str | None = None
    public_ip: str | None = None
    system_status: str = ""
    instance_status: str = ""
    image_id: str = ""
    launched_at: Moment | None = None
    state_since: Moment | None = None
    gone_at: Moment | None = None
    reclaim_at: Moment | None = None


class CmlFacts(Part):
    """What CML reported about itself. `certificate` is the pinned one, in PEM.

    `licensed` is False for a machine that we launched and unknown for an adopted one, until CML reports it.
    `telemetry` is whether CML was told to send telemetry to its maker, None before it was told. `node_definitions`
    are the kinds of nodes that it can run, None before it listed them; `node_sizes` are the sizes of those that it
    sizes in another way than a CML as shipped.
    """

    version: str = ""
    api_url: str = ""
    certificate: str = ""
    ready: bool | None = None
    license_status: str = ""
    licensed: bool | None = None
    telemetry: bool | None = None
    uptime_seconds: Count | None = None
    healthy: bool | None = None
    node_definitions: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_NODE_DEFINITIONS)] | None = None
    node_sizes: Annotated[Mapping[str, NodeSize], msgspec.Meta(max_length=MAX_NODE_DEFINITIONS)] = {}


class IdleSignal(Part):
    """One fact that decides whether a worker is idle; an unknown fact counts as activity."""

    name: str
    active: Truth
    detail: Text


class IdleVerdict(Part):
    """Whether a worker is idle, why, and when it will be paused.

    The countdown begins with the warning. From then on `idle_since` and `pause_at` are set.
    """

    idle: bool
    reason: Text
    judged_at: Moment
    signals: tuple[IdleSignal, ...] = ()
    idle_since: Moment | None = None
    warned_at: Moment | None = None
    pause_at: Moment | None = None
    snoozed_until: Moment | None = None


class Remedy(StrEnum):
    """The repair in progress, or the last one made, for an unhealthy worker."""

    NONE = ""
    REBOOT = "reboot"
    REPLACE = "replace"


class CapacityUsage(Part):
    """How much of a worker is claimed now, by the sessions on it and by labs that no session made, and what is left.

    `percent` is the claimed part of each dimension.
    """

    claimed: Amount
    available: Amount
    percent: Mapping[str, Count]


def compute_usage(capacity: Amount, claims: Iterable[Amount]) -> CapacityUsage:
    """Return how much of a capacity is claimed and left. What is claimed beyond it leaves nothing."""
    claimed = sum(claims, ZERO_AMOUNT)
    pairs = zip(DIMENSIONS, read_dimensions(capacity), read_dimensions(claimed), strict=True)
    left = {name: max(0, whole - part) for name, whole, part in pairs}
    percent = {name: round(part * 100) for name, part in utilization(claimed, capacity).items()}
    return CapacityUsage(claimed=claimed, available=Amount(**left), percent=percent)


class LabWorkerStatus(Status):
    """The observed state of a worker.

    `foreign` is what labs use that no session made; `usage` is None while the capacity is not known.
    `failure` names the last failure in one word, `last_error` in a sentence; the next attempt is at `retry_at`. A
    `remedy` without `remedied_at` is still to be done. `remedies` counts those since the worker was last healthy
    for a while: a reboot and a replacement in turn.
    """

    phase: WorkerPhase = WorkerPhase.PENDING
    ec2: Ec2Facts = Ec2Facts()
    cml: CmlFacts = CmlFacts()
    capacity: Amount | None = None
    foreign_ports: tuple[int, ...] = ()
    foreign: Amount = Amount()
    usage: CapacityUsage | None = None
    idle: IdleVerdict | None = None
    drain_deadline_at: Moment | None = None
    unhealthy_since: Moment | None = None
    remedy: Remedy = Remedy.NONE
    remedied_at: Moment | None = None
    remedies: Count = 0
    failure: str = ""
    retry_count: Count = 0
    retry_at: Moment | None = None
    pause_count: Count = 0
    resume_count: Count = 0
    ready_at: Moment | None = None
    last_error: Text = ""


class LabWorker(Part):
    """A CML hypervisor (or container host) on EC2."""

    metadata: Metadata
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["LabWorker"] = "LabWorker"
    spec: LabWorkerSpec = LabWorkerSpec()
    status: LabWorkerStatus = LabWorkerStatus()


class WorkerTelemetry(Part):
    """The latest measurements of a worker. Any may be missing; `collected_at` is the time of the last report.

    Each source has the time of its last answer: EC2, CloudWatch, CML, and CML's record of user activity. A
    value that a report leaves out is kept, with its age, from the report before. CloudWatch and CML each keep
    their own CPU, memory and disk; CloudWatch has memory and disk if its agent runs on the machine. The figures
    without a source in their name are CML's, and CloudWatch's while CML is silent.
    """

    collected_at: Moment
    ec2_at: Moment | None = None
    cloudwatch_at: Moment | None = None
    cml_at: Moment | None = None
    activity_at: Moment | None = None
    cpu_utilization: Percent | None = None
    memory_utilization: Percent | None = None
    storage_utilization: Percent | None = None
    cml_cpu_utilization: Percent | None = None
    cml_memory_utilization: Percent | None = None
    cml_storage_utilization: Percent | None = None
    cloudwatch_cpu_utilization: Percent | None = None
    cloudwatch_memory_utilization: Percent | None = None
    cloudwatch_storage_utilization: Percent | None = None
    network_in_bytes: Count | None = None
    network_out_bytes: Count | None = None
    uptime_seconds: Count | None = None
    running_nodes: Count | None = None
    active_labs_count: Count | None = None
    hosted_lab_ids: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    last_activity_at: Moment | None = None


COARSE_STATUS: Final[Mapping[WorkerPhase, str]] = {
    WorkerPhase.PENDING: "PENDING",
    WorkerPhase.PROVISIONING_EC2: "PROVISIONING",
    WorkerPhase.EC2_READY: "PROVISIONING",
    WorkerPhase.STARTING: "PROVISIONING",
    WorkerPhase.READY_UNLICENSED: "RUNNING",
    WorkerPhase.LICENSING: "RUNNING",
    WorkerPhase.READY: "RUNNING",
    WorkerPhase.ACTIVE: "RUNNING",
    WorkerPhase.DRAINING: "RUNNING",
    WorkerPhase.UNLICENSING: "STOPPING",
    WorkerPhase.STOPPING: "STOPPING",
    WorkerPhase.STOPPED: "STOPPED",
    WorkerPhase.TERMINATING_EC2: "STOPPING",
    WorkerPhase.TERMINATED: "TERMINATED",
}
"""The six-valued status of older clients, by phase. FAILED is not listed: see `coarse_status`."""

SATISFIED_AFFINITIES: Final[Mapping[LicenseFlavour, frozenset[LicenseFlavour]]] = {
    LicenseFlavour.PERSONAL: frozenset({LicenseFlavour.PERSONAL}),
    LicenseFlavour.ENTERPRISE: frozenset({LicenseFlavour.ENTERPRISE, LicenseFlavour.PERSONAL}),
    LicenseFlavour.EVALUATION: frozenset({LicenseFlavour.EVALUATION}),
}
"""The licence affinities that a worker with this licence satisfies."""

HOSTING_PHASES: Final = frozenset({WorkerPhase.READY_UNLICENSED, WorkerPhase.READY, WorkerPhase.ACTIVE})
"""Phases in which a worker may be given a session."""


NOT_ADMITTED: Final = "nobody has said that it takes sessions: set spec.accepts_sessions to true, and its lab_track"
"""Why a worker that was imported takes no sessions."""


def coarse_status(status: LabWorkerStatus) -> str:
    """Return the six-valued status. That of a failed worker follows the state of its instance."""
    of_instance = {"running": "RUNNING", "stopping": "STOPPING", "stopped": "STOPPED"}
    return COARSE_STATUS.get(status.phase) or of_instance.get(status.ec2.state, "PENDING")


def address_of(worker: LabWorker) -> str:
    """Return the address of a worker's ports; "" while it has none."""
    machine = worker.status.ec2
    return (machine.public_ip if worker.spec.aws.public_ip else machine.private_ip) or ""


def worker_ref(worker: LabWorker) -> str:
    """Return the reference by which sessions name a worker: "namespace/name"."""
    return f"{worker.metadata.namespace}/{worker.metadata.name}"


def is_spot(worker: LabWorker) -> bool:
    """Return whether a worker's machine is only lent: the cloud may take it away, and it cannot be stopped."""
    return worker.spec.aws.market == "spot"


def satisfies_affinity(licence: LicenseFlavour, affinity: LicenseFlavour | None) -> bool:
    """Return True if a worker with this licence may host a definition with that affinity."""
    return affinity is None or affinity in SATISFIED_AFFINITIES[licence]
