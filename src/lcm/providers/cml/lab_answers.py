"""CML's answers about labs, and their conversion to values of `protocols.labhost`. Used by `host` and `labs`."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct
from msgspec.json import Decoder

from lcm.providers.cml.answers import DiskGb, to_utc
from lcm.providers.protocols.labhost import (
    Elements,
    InterfaceFacts,
    LabState,
    LabSummary,
    LinkUse,
    NodeFacts,
    NodeUse,
    SimulationStats,
)

T = TypeVar("T")

ID_PATTERN: Final = r"^[A-Za-z0-9_-]+\Z"
"""The form of an id. Ids become parts of paths, so one of any other form could lead elsewhere."""
_Id = Annotated[str, Meta(pattern=ID_PATTERN)]


class _Lab(Struct):
    id: _Id
    lab_title: str
    state: LabState
    node_count: int
    created: datetime | None = None
    modified: datetime | None = None
    owner_username: str = ""

    def value(self) -> LabSummary:
        return LabSummary(
            lab_id=self.id,
            title=self.lab_title,
            state=self.state,
            node_count=self.node_count,
            owner=self.owner_username,
            created_at=to_utc(self.created) if self.created else None,
            modified_at=to_utc(self.modified) if self.modified else None,
        )


class _ImportedLab(Struct):
    id: _Id
    warnings: list[str] | None = None


class _Elements(Struct):
    nodes: dict[str, str]
    links: dict[str, str]
    interfaces: dict[str, str]

    def value(self) -> Elements:
        return Elements(nodes=self.nodes, links=self.links, interfaces=self.interfaces)


class _NodeSize(Struct):
    cpus: float | None = None
    cpu_limit: int | None = None
    ram: int | None = None
    boot_disk_size: DiskGb | None = None
    data_volume: DiskGb | None = None


class NodeAnswer(_NodeSize, kw_only=True):
    """A node. What its file left unset stands in `operational` once it has started."""

    id: _Id
    lab_id: _Id
    label: str
    node_definition: str
    state: str
    tags: list[str] | None
    operational: _NodeSize | None = None

    def value(self, interfaces: Iterable[InterfaceFacts] = ()) -> NodeFacts:
        """Return it as controllers see it."""
        real = self.operational or _NodeSize()
        boot, data = (
            _first_known(real.boot_disk_size, self.boot_disk_size),
            _first_known(real.data_volume, self.data_volume),
        )
        return NodeFacts(
            node_id=self.id,
            label=self.label,
            node_definition=self.node_definition,
            state=self.state,
            tags=tuple(self.tags or ()),
            cpus=_first_known(real.cpus, self.cpus),
            cpu_limit=_first_known(real.cpu_limit, self.cpu_limit),
            ram_mb=_first_known(real.ram, self.ram),
            disk_gb=None if boot is None and data is None else float((boot or 0) + (data or 0)),
            interfaces=tuple(interfaces),
        )


class _Mac(Struct):
    mac_address: str | None = None


class InterfaceAnswer(Struct):
    """An interface. Unless the file sets a MAC address, its own stands in `operational`."""

    id: str
    label: str
    state: str
    slot: int | None = None
    mac_address: str | None = None
    operational: _Mac | None = None

    def value(self, ip4: Iterable[str]) -> InterfaceFacts:
        """Return it as controllers see it."""
        return InterfaceFacts(
            interface_id=self.id,
            label=self.label,
            slot=self.slot,
            state=self.state,
            mac_address=_first_known(self.operational.mac_address if self.operational else None, self.mac_address),
            ip4=tuple(ip4),
        )


class _Addresses(Struct):
    id: str
    ip4: list[str]


class _NodeAddresses(Struct):
    interfaces: dict[str, _Addresses]


class _NodeStats(Struct):
    """Statistics of a node. One that does not run has next to none of these."""

    cpu_usage: float | None = None
    ram_usage: float | None = None
    disk_usage: float | None = None
    cpus: float | None = None
    ram: int | None = None
    times: dict[str, float] = {}


class _LinkStats(Struct):
    readbytes: int = 0
    writebytes: int = 0


class _SimulationStats(Struct):
    nodes: dict[str, _NodeStats]
    links: dict[str, _LinkStats]

    def value(self) -> SimulationStats:
        return SimulationStats(
            nodes={
                key: NodeUse(
                    cpu_usage=node.cpu_usage,
                    ram_usage=node.ram_usage,
                    disk_usage=node.disk_usage,
                    cpus=node.cpus,
                    ram_mb=node.ram,
                    seconds_in_state=node.times,
                )
                for key, node in self.nodes.items()
            },
            links={
                key: LinkUse(read_bytes=link.readbytes, written_bytes=link.writebytes)
                for key, link in self.links.items()
            },
        )


def _first_known(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


IDS: Final = Decoder(list[_Id])
LAB: Final = Decoder(_Lab)
STATE: Final = Decoder(LabState)
CONVERGED: Final = Decoder(bool)
IMPORTED: Final = Decoder(_ImportedLab)
ELEMENTS: Final = Decoder(_Elements)
NODES: Final = Decoder(list[NodeAnswer])
INTERFACES: Final = Decoder(list[InterfaceAnswer])
ADDRESSES: Final = Decoder(dict[str, _NodeAddresses])
SIMULATION: Final = Decoder(_SimulationStats)
