"""LabletDefinition: a lab that an author published, immutable per version.

Holds the kind, what one session of it needs from a worker, and the order of versions.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from math import ceil
from typing import Annotated, Final, Literal

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.resource import API_VERSION, END, Count, Metadata, Minutes, Part, ShortText, Status, Text
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.worker import LabType, LicenseFlavour

CmlVersion = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]+(\.[0-9]+){0,3}([-+.][0-9A-Za-z.-]+)?" + END, max_length=32, examples=["2.9", "2.9.1+build.7"]
    ),
]
Version = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[0-9]+(\.[0-9]+){0,3}([-.][0-9a-z.-]*[0-9a-z])?" + END,
        max_length=32,
        description="numbers and lower-case letters such as 1.0.0 or 1.1-rc1: the version is part of a name",
    ),
]
_LEADING_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_Size = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
MAX_OTHER_PORTS: Final = 20
FIXED_PER_VERSION: Final = ("version", "topology", "port_template", "lab_type")
"""Fields of a definition's spec that no update may change."""


class DefinitionState(StrEnum):
    """Whether a definition may be booked."""

    DRAFT = "draft"
    ACTIVE = "active"
    DEPRECATED = "deprecated"


class Topology(Part):
    """The lab file: its location, and the digest that it must have."""

    uri: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^((s3|file)://.+|artifact://sha256:[0-9a-f]{64})" + END,
            max_length=1024,
            description="s3://bucket/key, file:///path or artifact://sha256:…, at most 1024 characters",
        ),
    ]
    digest: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^(sha256:[0-9a-f]{64})?" + END, max_length=71, description="sha256: and 64 hexadecimal digits"
        ),
    ] = ""


class ResourceRequirements(Part):
    """What one session of this lab needs."""

    cpu_cores: _Size
    memory_gb: _Size
    storage_gb: _Size = 0.0


class PortEnd(Part):
    """One endpoint that a port leads to; a placeholder that is in no port tag leads nowhere."""

    kind: Literal["serial", "vnc", "pat", "placeholder"]
    node: Annotated[str, msgspec.Meta(max_length=256)] = ""
    line: Count | None = None
    protocol: Literal["tcp", "udp"] | None = None
    inside: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


class PortUse(PortEnd):
    """What a named port leads to.

    A placeholder in several port tags leads to all of them: `also` holds the others.
    """

    also: Annotated[tuple[PortEnd, ...], msgspec.Meta(max_length=256)] = ()

    @property
    def ends(self) -> tuple[PortEnd, ...]:
        """All endpoints that the port leads to."""
        if self.kind == "placeholder":
            return ()
        first = PortEnd(kind=self.kind, node=self.node, line=self.line, protocol=self.protocol, inside=self.inside)
        return (first, *self.also)


PortName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_.-]+" + END,
        max_length=128,
        description="letters, digits, '_', '.' and '-', at most 128",
        examples=["PC_serial"],
    ),
]
PortTemplate = Annotated[Mapping[PortName, PortUse], msgspec.Meta(max_length=6000, description="at most 6000 ports")]


class AmiRequirements(Part):
    """The CML version and the node definitions that the worker must have."""

    cml_version_min: CmlVersion | None = None
    cml_version_max: CmlVersion | None = None
    node_definitions: Annotated[
        tuple[ShortText, ...], msgspec.Meta(max_length=1000, description="a list of at most 1000")
    ] = ()


class Requirements(Part):
    """What a lab requires of its worker besides capacity.

    A booking keeps the requirements of the moment at which it was promised.
    """

    license_affinity: LicenseFlavour | None = None
    ami_requirements: AmiRequirements = AmiRequirements()


class LabletDefinitionSpec(Part):
    """What an author published.

    `other_tracks` and `resource_limits` say what a session may choose instead of the lab's own track, and how much more
    than it requires; staff may choose anything. `prebuilt` says how many labs are kept started for those who want one
    at once.
    """

    version: Version
    topology: Topology
    description: Text = ""
    lab_type: LabType = LabType.CML
    lab_track: ShortText = ""
    other_tracks: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=64, description="a list of at most 64")] = ()
    resource_requirements: ResourceRequirements | None = None
    resource_limits: Annotated[Mapping[ShortText, ShortText], msgspec.Meta(max_length=16)] | None = None
    node_count: Count | None = None
    port_template: PortTemplate | None = None
    license_affinity: LicenseFlavour | None = None
    ami_requirements: AmiRequirements = AmiRequirements()
    max_duration_minutes: Minutes = 480
    state: DefinitionState = DefinitionState.DRAFT
    prebuilt: PrebuiltPolicy | None = None


class Spread(Part):
    """The distribution of a measured value over the sessions of a definition."""

    avg: float
    p50: float
    p95: float
    max: float
    latest: float
    count: Count = 0


class LabletDefinitionStatus(Status):
    """What was learned from the sessions of a definition: the resources of running labs and their boot times.

    `cpu_cores`, `memory_mb` and `storage_mb` are what nodes were given, `used_…` what they used of it once they had
    booted, `boot_…` the most while they booted.
    `other_ports` are the names by which the ports of the last session differ from the template.
    """

    observed_sessions: Count = 0
    cpu_cores: Spread | None = None
    memory_mb: Spread | None = None
    storage_mb: Spread | None = None
    boot_seconds: Spread | None = None
    used_cpu_cores: Spread | None = None
    used_memory_mb: Spread | None = None
    boot_cpu_cores: Spread | None = None
    boot_memory_mb: Spread | None = None
    other_ports: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_OTHER_PORTS)] = ()
    needs_review: bool = False
    review_reason: Text = ""


class LabletDefinition(Part):
    """A published lab: name and version, e.g. `ccna-basics:1.0.0`."""

    metadata: Metadata
    spec: LabletDefinitionSpec
    api_version: Literal["lcm/v1"] = API_VERSION
    kind: Literal["LabletDefinition"] = "LabletDefinition"
    status: LabletDefinitionStatus = LabletDefinitionStatus()


def get_requirements(spec: LabletDefinitionSpec) -> Requirements:
    """Return what a lab requires of its worker besides capacity."""
    return Requirements(license_affinity=spec.license_affinity, ami_requirements=spec.ami_requirements)


def compute_amount(spec: LabletDefinitionSpec) -> Amount | None:
    """Return how much of a worker one session of this definition takes; None while its needs are unknown."""
    needs = spec.resource_requirements
    if needs is None or spec.node_count is None:
        return None
    return Amount(
        cpu_millis=ceil(needs.cpu_cores * 1000),
        memory_mb=ceil(needs.memory_gb * 1024),
        storage_mb=ceil(needs.storage_gb * 1024),
        nodes=spec.node_count,
        ports=len(spec.port_template or {}),
        labs=1,
    )


def version_key(version: str) -> tuple[tuple[int, ...], bool, str]:
    """Return a sort key for versions: 2.10 is newer than 2.7, 2.7.0 equals 2.7, and 2.7-rc1 comes before both."""
    numbers, rest = _split_numbers(version)
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers = numbers[:-1]
    return numbers, not rest.startswith("-"), rest


def is_version_allowed(version: str, requirements: AmiRequirements) -> bool:
    """Return True if a CML version is within the bounds.

    The upper bound includes all versions that agree with it in as many numbers as it has.
    """
    low, high = requirements.cml_version_min, requirements.cml_version_max
    if low is None and high is None:
        return True
    found, _ = _split_numbers(version)
    if not found:
        return False  # an unknown version is not allowed
    if low is not None and version_key(version)[0] < version_key(low)[0]:
        return False
    most = _split_numbers(high)[0] if high is not None else found
    return found[: len(most)] <= most


def _split_numbers(version: str) -> tuple[tuple[int, ...], str]:
    found = _LEADING_NUMBERS.match(version)
    return (tuple(map(int, found[0].split("."))), version[found.end() :]) if found else ((), version)
