"""What clients may send to a simulated CML: the types of request bodies and of topology files.

CML refuses unknown keys at every level except in `parameters` and in smart annotations.
"""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from lcm.model.base.resource import END

Json = dict[str, Any]
Coordinate = Annotated[int, Meta(ge=-15_000, le=15_000)]
Label = Annotated[str, Meta(min_length=1, max_length=128)]
LocalId = Annotated[str, Meta(min_length=1, max_length=64)]
DefinitionId = Annotated[str, Meta(min_length=1, max_length=250)]
Tag = Annotated[str, Meta(max_length=64)]
Ram = Annotated[int, Meta(ge=1, le=1_048_576)]
Cpus = Annotated[int, Meta(ge=1, le=128)]
CpuLimit = Annotated[int, Meta(ge=20, le=100)]
Disk = Annotated[int, Meta(ge=0, le=4096)]
Title = Annotated[str, Meta(min_length=1, max_length=64)]
Description = Annotated[str, Meta(max_length=4096)]
Notes = Annotated[str, Meta(max_length=32_768)]
Mac = Annotated[str, Meta(pattern=r"^[a-fA-F\d]{2}(:[a-fA-F\d]{2}){5}" + END)]
Slot = Annotated[int, Meta(ge=0, le=128)]
Limit = Annotated[int, Meta(ge=0)]
SIZES: Final = ("ram", "cpus", "cpu_limit", "data_volume", "boot_disk_size")
"""What a node may have more or less of."""


class CmlDocument(Struct, forbid_unknown_fields=True):
    """A document sent to CML."""

    def given(self) -> Json:
        """Return the fields that were sent."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


class ConfigurationFile(CmlDocument):
    """One named configuration file of a node."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | None = None


Configuration = str | None | ConfigurationFile | list[ConfigurationFile]


class NodeSpec(CmlDocument):
    """A node as requested; None means inherited from its definition."""

    x: Coordinate
    y: Coordinate
    label: Label
    node_definition: DefinitionId
    image_definition: DefinitionId | None = None
    ram: Ram | None = None
    cpus: Cpus | None = None
    cpu_limit: CpuLimit | None = None
    data_volume: Disk | None = None
    boot_disk_size: Disk | None = None
    hide_links: bool | None = False
    tags: list[Tag] = []
    parameters: Json = {}
    configuration: Configuration = None


class NodeUpdate(CmlDocument):
    """What may change on a node."""

    x: Coordinate | UnsetType = UNSET
    y: Coordinate | UnsetType = UNSET
    label: Label | UnsetType = UNSET
    image_definition: DefinitionId | UnsetType | None = UNSET
    ram: Ram | UnsetType | None = UNSET
    cpus: Cpus | UnsetType | None = UNSET
    cpu_limit: CpuLimit | UnsetType | None = UNSET
    data_volume: Disk | UnsetType | None = UNSET
    boot_disk_size: Disk | UnsetType | None = UNSET
    hide_links: bool | UnsetType | None = UNSET
    tags: list[Tag] | UnsetType = UNSET
    parameters: Json | UnsetType = UNSET
    configuration: str | ConfigurationFile | list[ConfigurationFile] | UnsetType | None = UNSET
    pinned_compute_id: str | UnsetType | None = UNSET


class InterfaceFile(CmlDocument):
    """An interface in a topology file; its id is unique within its node only."""

    id: LocalId
    type: Annotated[str, Meta(pattern="^(physical|loopback)" + END)]
    label: Label | None = None
    node: LocalId | None = None
    slot: Slot | None = None
    mac_address: Mac | None = None


class NodeFile(NodeSpec, kw_only=True):
    """A node in a topology file."""

    id: LocalId
    interfaces: list[InterfaceFile] = []


class LinkFile(CmlDocument):
    """A link in a topology file."""

    id: LocalId
    n1: LocalId
    i1: LocalId
    n2: LocalId
    i2: LocalId
    label: Label | None = None
    conditioning: Json = {}


class LabHeading(CmlDocument):
    """The heading of a topology file; `timestamp` is a remnant of the oldest schemas."""

    version: Annotated[str, Meta(pattern=r"^0\.(0\.[1-5]|1\.0|2\.[0-2]|3\.0)" + END)]
    title: Title | None = None
    description: Description = ""
    notes: Notes = ""
    timestamp: float | None = None


class TopologyFile(CmlDocument):
    """A whole topology file."""

    lab: LabHeading
    nodes: list[NodeFile]
    links: list[LinkFile]
    annotations: list[Json] = []
    smart_annotations: list[Json] = []


class Association(CmlDocument):
    """What a user or group may do with a lab."""

    id: str
    permissions: list[Annotated[str, Meta(pattern="^lab_(view|exec|edit|admin)" + END)]]


class Associations(CmlDocument):
    """What users other than the owner may do with a lab."""

    groups: list[Association] = []
    users: list[Association] = []


class LabUpdate(CmlDocument):
    """A lab to create, or what to change on one."""

    title: Title | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    notes: Notes | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    groups: list[Json] | UnsetType = UNSET
    associations: Associations | UnsetType = UNSET


class InterfaceCreate(CmlDocument):
    """An interface to add; with a slot, all slots up to it."""

    node: str
    slot: Slot | None = None
    mac_address: Mac | None = None


class InterfaceUpdate(CmlDocument):
    """What may change on an interface."""

    mac_address: Mac | None


class LinkCreate(CmlDocument):
    """Two interfaces to connect."""

    src_int: str
    dst_int: str


class Credentials(CmlDocument):
    """A user name and a password."""

    username: Annotated[str, Meta(min_length=1, max_length=32)]
    password: str


class PasswordChange(CmlDocument):
    """A new password, with the old one unless an administrator sets it for somebody else."""

    new_password: str
    old_password: str = ""


class UserCreate(CmlDocument):
    """A user to create."""

    username: Annotated[str, Meta(min_length=1, max_length=32)]
    password: str
    fullname: Annotated[str, Meta(max_length=128)] = ""
    description: Description = ""
    email: Annotated[str, Meta(max_length=128)] = ""
    admin: bool = False
    groups: list[str] = []
    associations: list[Association] = []
    resource_pool: str | None = None
    opt_in: bool | None = None
    tour_version: str = ""
    pubkey: str = ""


class UserUpdate(CmlDocument):
    """What may change on a user."""

    username: Annotated[str, Meta(min_length=1, max_length=32)] | UnsetType = UNSET
    password: PasswordChange | UnsetType = UNSET
    fullname: Annotated[str, Meta(max_length=128)] | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    email: Annotated[str, Meta(max_length=128)] | UnsetType = UNSET
    admin: bool | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET
    associations: list[Association] | UnsetType = UNSET
    resource_pool: str | UnsetType | None = UNSET
    opt_in: bool | UnsetType | None = UNSET
    tour_version: str | UnsetType = UNSET
    pubkey: str | UnsetType = UNSET


class GroupCreate(CmlDocument):
    """A group to create."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: Description = ""
    members: list[str] = []
    associations: list[Association] = []


class GroupUpdate(CmlDocument):
    """What may change on a group."""

    name: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    members: list[str] | UnsetType = UNSET
    associations: list[Association] | UnsetType = UNSET


class PoolLimits(CmlDocument):
    """What the users of a resource pool may use together; None means no limit."""

    licenses: Limit | None = None
    ram: Limit | None = None
    cpus: Limit | None = None
    disk_space: Limit | None = None
    external_connectors: list[str] | None = None


class PoolCreate(PoolLimits, kw_only=True):
    """A resource pool to create; not shared means one for each user."""

    label: Label
    description: Description = ""
    template: str | None = None
    users: list[str] = []
    shared: bool = True


class PoolUpdate(CmlDocument):
    """What may change on a resource pool."""

    label: Label | UnsetType = UNSET
    description: Description | UnsetType = UNSET
    licenses: Limit | UnsetType | None = UNSET
    ram: Limit | UnsetType | None = UNSET
    cpus: Limit | UnsetType | None = UNSET
    disk_space: Limit | UnsetType | None = UNSET
    external_connectors: list[str] | UnsetType | None = UNSET
    users: list[str] | UnsetType = UNSET


class Registration(CmlDocument):
    """A licence token."""

    token: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9+/%=-]{1,256}" + END)]
    reregister: bool = False


class FeatureCount(CmlDocument):
    """How many of a licensed feature are wanted."""

    id: str
    count: Limit


class Proxy(CmlDocument):
    """A proxy on the way to the licence server."""

    server: str | None = None
    port: int | None = None


class LicenceTransport(CmlDocument):
    """How the licence server is reached; None means the default."""

    ssms: str | None = None
    proxy: Proxy | None = None


class NoticeCreate(CmlDocument):
    """A notice to show."""

    level: Annotated[str, Meta(pattern="^(INFO|SUCCESS|WARNING|ERROR)" + END)]
    label: Label
    content: Annotated[str, Meta(max_length=8192)] = ""
    enabled: bool = False
    groups: list[str] = []


class NoticeUpdate(CmlDocument):
    """What may change on a notice."""

    level: Annotated[str, Meta(pattern="^(INFO|SUCCESS|WARNING|ERROR)" + END)] | UnsetType = UNSET
    label: Label | UnsetType = UNSET
    content: Annotated[str, Meta(max_length=8192)] | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    groups: list[str] | UnsetType = UNSET
    acknowledged: dict[str, bool] | UnsetType = UNSET


class MaintenanceUpdate(CmlDocument):
    """Whether CML is in maintenance mode, and which notice says why."""

    maintenance_mode: bool | UnsetType = UNSET
    notice: str | UnsetType | None = UNSET


class OptIn(CmlDocument):
    """Whether telemetry may be sent."""

    opt_in: bool | None
