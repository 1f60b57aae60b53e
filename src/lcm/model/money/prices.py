"""The price book and the hardware of instance types.

Prices are by the hour and region. The shipped ones, in `model/data/prices.json`, are AWS's public on-demand prices for
Linux in US dollars as known at `SHIPPED_ON`, entered by hand: estimates to be checked against one's own bill. A site's
price file overrides them, entry by entry. A price in neither is unknown, which is not free. Used by
`control.accounts.costs`; `settings.checks` reads the file. The hardware, in `model/data/instance_types.json`, is
public EC2 data, the same in every region: it says what a template promises before its first worker has reported. A
worker that reports less puts its bookings `AtRisk`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.data_files import read_data_file
from lcm.model.base.errors import Fault, Invalid, to_fault
from lcm.model.base.resource import Part, Region, ShortText
from lcm.model.kinds.worker import LabWorkerSpec, RootVolume
from lcm.model.money.billing import Usd
from lcm.model.topology.ports import OPEN_PORTS

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


class ShippedPriceFile(PriceFile, kw_only=True):
    """The prices that ship with the package, as they were known at a day."""

    as_of: ShortText


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


_SHIPPED: Final = read_data_file("lcm.model", "prices.json", ShippedPriceFile)
SHIPPED_ON: Final = _SHIPPED.as_of
SHIPPED_PRICES: Final = PriceBook().with_file(_SHIPPED)


class Hardware(NamedTuple):
    """The vCPUs and the memory of a machine."""

    vcpus: int
    memory_gib: int


HARDWARE: Final[Mapping[str, Hardware]] = read_data_file("lcm.model", "instance_types.json", dict[str, Hardware])


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
