"""What machines of each instance type have, and so what a template promises before its first worker has reported.

The numbers are public facts of EC2's instance types, the same in every region. Bookings of a pool are promised by
them; a worker that reports less is what `AtRisk` is for.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from lcm.model.capacity import Amount
from lcm.model.topology_ports import OPEN_PORTS
from lcm.model.worker import LabWorkerSpec


class Hardware(NamedTuple):
    """The processors and the memory of a machine."""

    vcpus: int
    memory_gib: int


_METAL: Final[Mapping[str, Hardware]] = {
    "m5zn.metal": Hardware(48, 192),
    "z1d.metal": Hardware(48, 384),
    "c5.metal": Hardware(96, 192),
    "c5d.metal": Hardware(96, 192),
    "c5n.metal": Hardware(72, 192),
    "m5.metal": Hardware(96, 384),
    "m5d.metal": Hardware(96, 384),
    "m5n.metal": Hardware(96, 384),
    "m5dn.metal": Hardware(96, 384),
    "r5.metal": Hardware(96, 768),
    "r5d.metal": Hardware(96, 768),
    "r5b.metal": Hardware(96, 768),
    "r5n.metal": Hardware(96, 768),
    "i3.metal": Hardware(72, 512),
    "i3en.metal": Hardware(96, 768),
    "c6i.metal": Hardware(128, 256),
    "m6i.metal": Hardware(128, 512),
    "r6i.metal": Hardware(128, 1024),
    "c7i.metal-24xl": Hardware(96, 192),
    "c7i.metal-48xl": Hardware(192, 384),
    "m7i.metal-24xl": Hardware(96, 384),
    "m7i.metal-48xl": Hardware(192, 768),
    "r7i.metal-24xl": Hardware(96, 768),
    "r7i.metal-48xl": Hardware(192, 1536),
}
_NESTING: Final = {"c8i": 2, "m8i": 4, "r8i": 8}
"""GiB of memory for each vCPU in the families that can host CML without being metal."""
_SIZES: Final = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
    "24xlarge": 96,
    "32xlarge": 128,
    "48xlarge": 192,
    "96xlarge": 384,
    "metal-48xl": 192,
    "metal-96xl": 384,
}
"""vCPUs by size."""

HARDWARE: Final[Mapping[str, Hardware]] = {
    **_METAL,
    **{
        f"{family}.{size}": Hardware(vcpus, vcpus * gib)
        for family, gib in _NESTING.items()
        for size, vcpus in _SIZES.items()
    },
}


def declared_capacity(spec: LabWorkerSpec) -> Amount | None:
    """Say what a licensed worker of this spec will hold; None if any instance type it may get is not known.

    A worker may come up as any of its allowed types: only what the smallest of them has can be promised.
    """
    types = (spec.aws.instance_type, *spec.aws.instance_type_alternatives)
    found = [HARDWARE[one] for one in types if one in HARDWARE]
    if len(found) < len(types):
        return None
    return Amount(
        cpu_millis=1000 * min(one.vcpus for one in found),
        memory_mb=1024 * min(one.memory_gib for one in found),
        storage_mb=1024 * spec.aws.root_volume.size_gb,
        nodes=spec.cml.max_nodes_licensed,
        ports=len(OPEN_PORTS),
        labs=spec.max_concurrent_labs,
    )
