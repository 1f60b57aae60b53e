"""The price book and the hardware of instance types.

Prices are by the hour and region. The shipped ones are AWS's public on-demand prices for Linux in US dollars as known
at
`SHIPPED_ON`, entered by hand: estimates to be checked against one's own bill. A site's price file overrides them, entry
by entry. A price in neither is unknown, which is not free. Used by `control.accounts.billing`; `settings.checks` reads
the file. The hardware is public EC2 data, the same in every region: it says what a template promises before its first
worker has reported. A worker that reports less puts its bookings `AtRisk`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Fault, Invalid, to_fault
from lcm.model.base.resource import Part, Region, ShortText
from lcm.model.kinds.worker import LabWorkerSpec, RootVolume
from lcm.model.money.billing import Usd
from lcm.model.topology.ports import OPEN_PORTS

SHIPPED_ON: Final = "2025-11-01"
HOURS_PER_MONTH: Final = 730
"""Disks are priced by the month; AWS counts this many hours in one."""
_DISK_PRECISION: Final = Decimal("0.000001")


class DiskPrice(Part):
    """The monthly price of a disk type: per GB, and per IOPS beyond the included ones."""

    gb_month: Usd
    iops_month: Usd = Decimal(0)
    iops_included: int = 0


class PriceFile(Part):
    """A site's own prices: dollars per hour by region and instance type, and disks by region and type."""

    hourly: Mapping[Region, Mapping[ShortText, Usd]] = {}
    disks: Mapping[Region, Mapping[ShortText, DiskPrice]] = {}


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by region and type."""

    machines: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    disks: Mapping[tuple[str, str], DiskPrice] = field(default_factory=dict)

    def hourly(self, region: str, instance_type: str) -> Decimal | None:
        """Return the hourly price of a running machine without its disk; None means unknown."""
        return self.machines.get((region, instance_type))

    def disk_hourly(self, volume: RootVolume, region: str) -> Decimal | None:
        """Return the hourly price of a disk, whether its machine runs or not; None means unknown."""
        price = self.disks.get((region, volume.kind))
        if price is None:
            return None
        extra = max(0, volume.iops - price.iops_included)
        monthly = volume.size_gb * price.gb_month + extra * price.iops_month
        return (monthly / HOURS_PER_MONTH).quantize(_DISK_PRECISION)

    def with_file(self, file: PriceFile) -> "PriceBook":
        """Return the book with a site's own prices in place of its own."""
        machines = {(region, kind): price for region, row in file.hourly.items() for kind, price in row.items()}
        disks = {(region, kind): price for region, row in file.disks.items() for kind, price in row.items()}
        return PriceBook({**self.machines, **machines}, {**self.disks, **disks})


def parse_price_file(document: Mapping[str, Any]) -> PriceFile:
    """Convert a price file to its type. Raises Invalid."""
    try:
        made = msgspec.convert(document, PriceFile, strict=False)
    except msgspec.ValidationError as error:
        remedy = 'write for example [hourly.us-east-1] and "m5zn.metal" = "3.9641" below it'
        raise Invalid(Fault("PRICE_BOOK", str(to_fault(error, "the file")), remedy)) from error
    disks = [disk for row in made.disks.values() for disk in row.values()]
    every = [price for row in made.hourly.values() for price in row.values()]
    every += [price for disk in disks for price in (disk.gb_month, disk.iops_month, Decimal(disk.iops_included))]
    if not all(price.is_finite() and price >= 0 for price in every):
        raise Invalid(Fault("PRICE_BOOK", "a price is negative or no number", "use dollars such as 3.9641"))
    return made


_US_REGIONS: Final = ("us-east-1", "us-east-2", "us-west-2")
_PRICE_FACTORS: Final = {
    "xlarge": 2,
    "2xlarge": 4,
    "4xlarge": 8,
    "8xlarge": 16,
    "12xlarge": 24,
    "16xlarge": 32,
    "24xlarge": 48,
}
_LARGE_PRICES: Final = {"c8i.": "0.09371", "m8i.": "0.10584", "r8i.": "0.13892"}
"""The prices of the `large` size; `_PRICE_FACTORS` gives the others."""
_METAL_PRICES: Final = {
    "m5zn.metal": "3.9641",
    "c5.metal": "4.08",
    "c5n.metal": "3.888",
    "m5.metal": "4.608",
    "r5.metal": "6.048",
    "z1d.metal": "4.464",
    "i3.metal": "4.992",
    "c6i.metal": "5.44",
    "m6i.metal": "6.144",
    "r6i.metal": "8.064",
    "c7i.metal-24xl": "4.284",
    "m7i.metal-24xl": "4.8384",
    "r7i.metal-24xl": "6.3504",
}
_EU_PRICES: Final = {
    ("eu-west-1", "c5.metal"): "4.608",
    ("eu-west-1", "m5.metal"): "5.136",
    ("eu-west-1", "r5.metal"): "6.768",
    ("eu-central-1", "c5.metal"): "4.656",
    ("eu-central-1", "m5.metal"): "5.52",
    ("eu-central-1", "r5.metal"): "7.296",
}
_DISK_PRICES: Final = {
    **dict.fromkeys(_US_REGIONS, ("0.125", "0.065", "0.08", "0.005")),
    "eu-west-1": ("0.138", "0.072", "0.088", "0.0055"),
    "eu-central-1": ("0.149", "0.078", "0.0952", "0.006"),
}
"""By region: io1 and io2 per GB and month, io1 and io2 per IOPS and month, then the same two for gp3."""
_GP3_IOPS_INCLUDED: Final = 3000


def _shipped_machines() -> dict[tuple[str, str], Decimal]:
    sizes = {
        family + size: Decimal(large) * times
        for family, large in _LARGE_PRICES.items()
        for size, times in _PRICE_FACTORS.items()
    }
    american = {kind: Decimal(price) for kind, price in _METAL_PRICES.items()} | sizes
    european = {place: Decimal(price) for place, price in _EU_PRICES.items()}
    return {(region, kind): price for region in _US_REGIONS for kind, price in american.items()} | european


def _shipped_disks() -> dict[tuple[str, str], DiskPrice]:
    made: dict[tuple[str, str], DiskPrice] = {}
    for region, (io_gb, io_iops, gp_gb, gp_iops) in _DISK_PRICES.items():
        fast = DiskPrice(gb_month=Decimal(io_gb), iops_month=Decimal(io_iops))
        made |= {(region, "io1"): fast, (region, "io2"): fast}
        made[region, "gp3"] = DiskPrice(
            gb_month=Decimal(gp_gb), iops_month=Decimal(gp_iops), iops_included=_GP3_IOPS_INCLUDED
        )
    return made


SHIPPED_PRICES: Final = PriceBook(_shipped_machines(), _shipped_disks())


class Hardware(NamedTuple):
    """The vCPUs and the memory of a machine."""

    vcpus: int
    memory_gib: int


_METAL_HARDWARE: Final[Mapping[str, Hardware]] = {
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
_GIB_PER_VCPU: Final = {"c8i": 2, "m8i": 4, "r8i": 8}
"""GiB of memory per vCPU in the families that can host CML without being metal."""
_VCPUS_BY_SIZE: Final = {
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
    **_METAL_HARDWARE,
    **{
        f"{family}.{size}": Hardware(vcpus, vcpus * gib)
        for family, gib in _GIB_PER_VCPU.items()
        for size, vcpus in _VCPUS_BY_SIZE.items()
    },
}


def declared_capacity(spec: LabWorkerSpec) -> Amount | None:
    """Return what a licensed worker of this spec will hold; None if any of its instance types is unknown.

    A worker may be launched as any of its allowed types, so only what the smallest of them has can be
    promised.
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
