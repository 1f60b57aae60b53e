"""Machines in a cloud, as controllers see them: the `Compute` protocol.

`aws.ec2` and `aws.cloudwatch` call AWS, `sim.compute` simulates a cloud; one conformance suite tests both. Every verb
names a region, and one client serves one region. Effects are idempotent: repeating one after a crash does nothing
new.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from lcm.model.base.errors import Later, NoRoom, Stuck
from lcm.model.base.resource import Part
from lcm.model.kinds.worker import AwsSpec

OWNER_TAG: Final = "lcm:owner"
WORKER_TAG: Final = "lcm:worker-uid"
RECLAIM_NOTICE: Final = timedelta(minutes=2)
"""How long after its notice the cloud takes a spot machine away."""
VISIBLE_WITHIN: Final = timedelta(minutes=5)
"""How long a cloud may take to list an instance that it has launched."""


class NoCapacity(NoRoom):
    """The cloud has no such machine free there now: try another zone, subnet or type."""


class QuotaExceeded(Stuck):
    """The account's quota is used up; `quota` names the one to raise."""

    def __init__(self, message: str, *, quota: str) -> None:
        super().__init__("QuotaExceeded", message)
        self.quota = quota


class Unauthorized(Stuck):
    """Our credentials are not accepted, or lack a permission; `action` names what they lack."""

    def __init__(self, message: str, *, action: str) -> None:
        super().__init__("Unauthorized", message)
        self.action = action


class InstanceState(StrEnum):
    """The cloud's states of a machine."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SHUTTING_DOWN = "shutting-down"
    TERMINATED = "terminated"


ENDING: Final = frozenset({InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED})
"""States from which no machine comes back."""


class Launch(Part):
    """All parameters of a launch. `token` is made of the worker's uid and the attempt, and was persisted before.

    A new attempt may only follow an answer: a refusal, or the end of the instance that this one launched. After
    Unreachable the same token is used again, or two machines may come of it.
    """

    worker_uid: str
    worker_name: str
    token: str
    aws: AwsSpec
    instance_type: str
    subnet_id: str | None = None


class Instance(Part):
    """What the cloud said about a machine. `reason` is the cloud's own text on why it is in its state, if any.

    `state_since` is when it came into its state, where the cloud says so; a stop or an end counts from when it was
    asked for.
    """

    instance_id: str
    region: str
    state: InstanceState
    instance_type: str
    image_id: str
    launched_at: datetime
    zone: str = ""
    private_ip: str | None = None
    public_ip: str | None = None
    tags: Mapping[str, str] = {}
    reason: str = ""
    spot: bool = False
    state_since: datetime | None = None


class MachineType(Part):
    """What a type of machine has. CML runs on one that is `metal`, or that has `nested` virtualisation."""

    instance_type: str
    vcpus: int
    memory_mb: int
    metal: bool = False
    nested: bool = False


class StatusCheckResult(StrEnum):
    """The result of one status check."""

    OK = "ok"
    IMPAIRED = "impaired"
    INITIALIZING = "initializing"
    UNKNOWN = "unknown"


class StatusChecks(Part):
    """The cloud's two status checks of a machine."""

    system: StatusCheckResult
    instance: StatusCheckResult


class MachineMetrics(Part):
    """Metrics of a machine. Percentages are averages, bytes are sums over the window; None: nothing was published."""

    cpu_percent: float | None = None
    memory_percent: float | None = None
    disk_percent: float | None = None
    network_in_bytes: int | None = None
    network_out_bytes: int | None = None
    measured_at: datetime | None = None


class Image(Part):
    """A machine image."""

    image_id: str
    name: str
    created_at: datetime


class Compute(Protocol):
    """The machines of one account, in any region.

    Every verb may raise Throttled, Unreachable or Unauthorized. An empty list or None is an answer of the
    cloud, never the absence of one. Gone says that the cloud does not know the instance now, or has terminated
    it. For one launched a moment ago only `find`, given the launch time, can tell "gone" from "not listed yet".
    """

    async def ensure(self, launch: Launch) -> Instance:
        """Adopt the live instance tagged with this worker, else launch one with the token and the tags.

        Tags are set by the launch itself. Repeating it, also from another process, returns the same instance, even
        when a newer image has appeared. It is a terminated one when what the token launched has ended: only a new
        attempt launches another. Raises NoCapacity, QuotaExceeded, or Stuck when the image or another part of the
        request does not exist.
        """
        ...

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        """Read one instance; None means gone. One launched a moment ago that is not listed yet raises Later."""
        ...

    async def list_owned(self, region: str) -> Sequence[Instance]:
        """List every instance with our owner tag, including the terminated ones that the cloud still shows."""
        ...

    async def list_by_image(self, region: str, name_pattern: str) -> Sequence[Instance]:
        """List every instance, also others', whose image name matches. Instances of removed images are not found."""
        ...

    async def newest_image(self, region: str, name_pattern: str) -> Image | None:
        """Find the matching image created last, among those whose owners we trust; None means none matches."""
        ...

    async def list_reclaimed(self, region: str) -> Mapping[str, datetime]:
        """List the spot machines that the cloud has given notice of taking away, and when it does so.

        Those of others may be among them. What was taken away is no longer listed.
        """
        ...

    async def machine_types(self, region: str, names: Sequence[str]) -> Mapping[str, MachineType]:
        """Describe types of machines; one that is missing from the answer is not offered in the region."""
        ...

    async def vcpu_quota(self, region: str, instance_type: str, *, spot: bool) -> int | None:
        """Read how many virtual CPUs such machines may have together; None: nobody says, or we may not ask."""
        ...

    async def start(self, region: str, instance_id: str) -> None:
        """Start a stopped instance; a running one stays so. Raises Gone, NoCapacity, and Later while it is stopping."""
        ...

    async def stop(self, region: str, instance_id: str) -> None:
        """Stop an instance; a stopped one stays so. Raises Gone, and Later while it does not run yet.

        A spot machine cannot be stopped: Stuck.
        """
        ...

    async def reboot(self, region: str, instance_id: str) -> None:
        """Reboot a running instance. Raises Gone, or Later when it does not run."""
        ...

    async def remove(self, region: str, instance_id: str) -> None:
        """Request termination. Gone already is success; whether it is gone is for `find` to say. Raises Stuck."""
        ...

    async def tag(self, region: str, instance_id: str, tags: Mapping[str, str]) -> None:
        """Set tags, leaving others. Raises Gone."""
        ...

    async def console(self, region: str, instance_id: str) -> str:
        """Read the newest console output, possibly empty. Raises Gone."""
        ...

    async def checks(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, StatusChecks]:
        """Read status checks of many at once; an id that is missing from the answer is unknown."""
        ...

    async def metrics(
        self, region: str, instance_ids: Sequence[str], *, since: datetime, until: datetime
    ) -> Mapping[str, MachineMetrics]:
        """Read metrics of many at once; every id is in the answer."""
        ...

    async def close(self) -> None:
        """Close connections. May be repeated."""
        ...


def oldest_live(instances: Iterable[Instance]) -> Instance | None:
    """Return the instance to adopt. Of several for one worker every caller must choose the same."""
    live = (instance for instance in instances if instance.state not in ENDING)
    return min(live, key=lambda one: (one.launched_at, one.instance_id), default=None)


def ownership_tags(launch: Launch, owner: str) -> dict[str, str]:
    """Return the tags of a launch. A user's own tags never replace those by which we know our machines."""
    return {**launch.aws.tags, "Name": launch.worker_name, OWNER_TAG: owner, WORKER_TAG: launch.worker_uid}


def subnet_of(launch: Launch) -> str | None:
    """Return the subnet of a launch.

    Without any, the cloud takes its default network. Raise Stuck when a VPC is named without a subnet: the
    default network is not what was meant.
    """
    subnet = launch.subnet_id or next(iter(launch.aws.subnet_ids), None)
    if subnet is None and launch.aws.vpc_id:
        text = f"{launch.worker_name} cannot be launched: it names {launch.aws.vpc_id} and no subnet of it"
        raise Stuck("SubnetMissing", text)
    return subnet


def not_listed_yet(instance_id: str, *, launched_at: datetime | None, now: datetime) -> Later | None:
    """Return Later when "no such instance" only means "not yet", because it was launched a moment ago."""
    if launched_at is None or now - launched_at >= VISIBLE_WITHIN:
        return None
    return Later(f"{instance_id} was launched a moment ago and is not listed yet", after=timedelta(seconds=5))


def image_missing(launch: Launch) -> Stuck:
    """Return the error for a launch whose image does not exist."""
    wanted = launch.aws.ami_id or launch.aws.ami_name_pattern
    text = f"no image {wanted!r} in {launch.aws.region}, or not of an owner we trust" if wanted else "it names no image"
    return Stuck("ImageMissing", f"{launch.worker_name} cannot be launched: {text}")
