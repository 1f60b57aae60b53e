"""CML's answers about itself, and their conversion to values of `protocols.labhost`. Used by `host` and `licence`.

Fields we do not use are ignored, so that a newer CML may add some; a missing one is an error, unless CML's own
description calls it optional.
"""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from lcm.providers.protocols.labhost import (
    Activity,
    HostHealth,
    HostNotice,
    Licence,
    NodeDefinition,
    NotReady,
    PoolUse,
    Stats,
    System,
    node_limit,
)

_MB: Final = 1024 * 1024
_KB_PER_MB: Final = 1024
_POSSIBLE_TOKEN: Final = re.compile(
    r"(?<!\S)[^\s'\"]\S*(?=['\"] is not valid)|(?<!\w)(['\"]).*?\1"
    r"|(?<![^\s'\"])[^\s'\"]++(?=['\"] is not valid)|[A-Za-z0-9+/%=-]{16,}"
)
"""What may be a token in CML's texts: something quoted, or longer than English words are."""
_EXPANSION: Final = "CML_NODE_COUNT"
_NO_FAILURE: Final = "OK"
_MAX_NUMBER: Final = 10**15
_FIRST_MOMENT: Final = datetime.min.replace(tzinfo=UTC)
_LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)

DiskGb = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
"""Bounded, because JSON has integers that no float can hold."""


class _System(Struct):
    version: str
    ready: bool

    def value(self) -> System:
        return System(version=self.version, ready=self.ready)


class _Health(Struct):
    valid: bool | None
    is_licensed: bool | None
    computes: dict[str, dict[str, Any]]
    controller: dict[str, Any]

    def value(self) -> HostHealth:
        parts = [("controller", self.controller)]
        parts += [(str(compute.get("hostname", key)), compute) for key, compute in self.computes.items()]
        reasons = [
            f"{name}: {check}"
            for name, part in parts
            for check, good in part.items()
            if good is False and check not in {"valid", "is_controller"}
        ]
        return HostHealth(healthy=self.valid is True, licensed=self.is_licensed, reasons=tuple(reasons))


class _Cpu(Struct):
    count: int
    percent: float


class _SizeStats(Struct):
    total: float
    used: float


class _Domains(Struct):
    running_nodes: int
    total_nodes: int
    allocated_cpus: float
    allocated_memory: Annotated[float, Meta(ge=0, le=_MAX_NUMBER)]


class _ComputeStats(Struct):
    dominfo: _Domains


class _Compute(Struct):
    stats: _ComputeStats


class _AllStats(Struct):
    cpu: _Cpu
    memory: _SizeStats
    disk: _SizeStats


class _Stats(Struct):
    computes: dict[str, _Compute]
    all: _AllStats

    def value(self) -> Stats:
        if not self.computes:
            raise NotReady("CML has no compute host yet")
        domains = [compute.stats.dominfo for compute in self.computes.values()]
        return Stats(
            cpu_count=self.all.cpu.count,
            cpu_percent=self.all.cpu.percent,
            memory_total_mb=int(self.all.memory.total / _MB),
            memory_used_mb=int(self.all.memory.used / _MB),
            disk_total_mb=int(self.all.disk.total / _MB),
            disk_used_mb=int(self.all.disk.used / _MB),
            running_nodes=sum(domain.running_nodes for domain in domains),
            total_nodes=sum(domain.total_nodes for domain in domains),
            allocated_cpus=sum(domain.allocated_cpus for domain in domains),
            allocated_memory_mb=int(sum(domain.allocated_memory for domain in domains) / _KB_PER_MB),
        )


class _Notice(Struct):
    id: str
    level: str
    label: str
    content: str
    enabled: bool

    def value(self) -> HostNotice:
        return HostNotice(notice_id=self.id, level=self.level, label=self.label, content=self.content)


class _Maintenance(Struct):
    maintenance_mode: bool


class _Times(Struct):
    attempted: str | None = None
    failure: str | None = None


class _Registration(Struct):
    status: str
    register_time: _Times = field(default_factory=_Times)


class _Authorization(Struct):
    status: str


class _Feature(Struct):
    id: str
    in_use: int


class _Product(Struct):
    active: str


class LicenceAnswer(Struct):
    """CML's licence, with what only licensing itself needs to know."""

    registration: _Registration
    authorization: _Authorization
    features: list[_Feature]
    product_license: _Product

    @property
    def expansion(self) -> _Feature | None:
        """The feature that counts nodes beyond the included ones; not every product has it."""
        return next((feature for feature in self.features if _EXPANSION in feature.id), None)

    @property
    def attempt(self) -> tuple[str, str | None]:
        """A value that differs between one attempt to register and the next."""
        return self.registration.status, self.registration.register_time.attempted

    def value(self) -> Licence:
        """Return it as controllers see it. CML quotes a token that it refuses, so whatever may be one is hidden."""
        failure = self.registration.register_time.failure or _NO_FAILURE
        licence = Licence(
            registration=self.registration.status,
            authorization=self.authorization.status,
            product=self.product_license.active,
            node_limit=0,
            expansion_nodes=self.expansion.in_use if self.expansion else 0,
        )
        limit = node_limit(
            licence.product, in_compliance=licence.in_compliance, expansion_nodes=licence.expansion_nodes
        )
        return replace(
            licence, node_limit=limit, failure="" if failure == _NO_FAILURE else _POSSIBLE_TOKEN.sub("***", failure)
        )


class _PoolAmount(Struct):
    licenses: int | None = None
    ram: int | None = None
    cpus: float | None = None


class _Pool(Struct):
    id: str
    label: str
    limit: _PoolAmount
    usage: _PoolAmount

    def value(self) -> PoolUse:
        return PoolUse(
            pool_id=self.id,
            label=self.label,
            licenses=self.usage.licenses,
            licenses_limit=self.limit.licenses,
            cpus=_from_hundredths(self.usage.cpus),
            cpus_limit=_from_hundredths(self.limit.cpus),
            ram_mb=self.usage.ram,
            ram_limit_mb=self.limit.ram,
        )


class _Event(Struct):
    category: str
    timestamp: datetime

    def value(self) -> Activity:
        return Activity(category=self.category, at=to_utc(self.timestamp))


class _General(Struct):
    nature: str


class _Defaults(Struct):
    """The resources of a kind of node. One that simulates nothing, such as an external connector, has none."""

    cpus: float | None = None
    ram: int | None = None
    boot_disk_size: DiskGb | None = None
    data_volume: DiskGb | None = None


class _Definition(Struct):
    id: str
    general: _General
    sim: _Defaults
    image_definitions: list[str] = []

    def value(self) -> NodeDefinition:
        return NodeDefinition(
            definition_id=self.id,
            cpus=self.sim.cpus or 0.0,
            ram_mb=self.sim.ram or 0,
            boot_disk_gb=float(self.sim.boot_disk_size or 0),
            data_volume_gb=float(self.sim.data_volume or 0),
            nature=self.general.nature,
            image_definitions=tuple(self.image_definitions),
        )


def to_utc(moment: datetime) -> datetime:
    """Convert a time of CML's to UTC. One without a zone is UTC; one out of range becomes the first or last moment."""
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return _FIRST_MOMENT if moment.year == _FIRST_MOMENT.year else _LAST_MOMENT


def _from_hundredths(hundredths: float | None) -> float | None:
    return None if hundredths is None else hundredths / 100


SYSTEM: Final = Decoder(_System)
HEALTH: Final = Decoder(_Health)
STATS: Final = Decoder(_Stats)
MAINTENANCE: Final = Decoder(_Maintenance)
NOTICES: Final = Decoder(list[_Notice])
LICENCE: Final = Decoder(LicenceAnswer)
POOLS: Final = Decoder(list[_Pool])
EVENTS: Final = Decoder(list[_Event])
DEFINITIONS: Final = Decoder(list[_Definition])
