"""The price book and the hardware of instance types.

Prices are by the hour and region. The shipped ones, in `model/data/prices.json`, are AWS's public on-demand prices for
Linux in US dollars as known at `SHIPPED_ON`, entered by hand: estimates to be checked against one's own bill. A site's
price files override them, entry by entry, each from its own date on, so that what was paid before keeps its price. A
price in none of them is unknown, which is not free. Used by `control.accounts.costs`; `settings.checks` reads the
files. The hardware, in `model/data/instance_types.json`, is
public EC2 data, the same in every region: it says what a template promises before its first worker has reported. A
worker that reports less puts its bookings `AtRisk`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from lcm.model.base.capacity import Amount
from lcm.model.base.data_files import read_data_file
from lcm.model.base.errors import Fault, Invalid, to_fault
from lcm.model.base.resource import Part, Region, ShortText
from lcm.model.kinds.worker import LabWorkerSpec, RootVolume
from lcm.model.money.billing import Usd
from lcm.model.topology.ports import OPEN_PORTS

P = TypeVar("P")
HOURS_PER_MONTH: Final = 730
"""Disks are priced by the month; AWS counts this many hours in one."""
_DISK_PRECISION: Final = Decimal("0.000001")


class DiskPrice(Part):
    """The monthly price of a disk type: per GB, and per IOPS beyond the included ones."""

    gb_month: Usd
    iops_month: Usd = Decimal(0)
    iops_included: int = 0


class PriceFile(Part):
    """A site's own prices: dollars per hour by region and instance type, and disks by region and type.

    `spot` are those of spot machines. They are valid from the day `as_of` on, and always if there is none.
    """

    as_of: date | None = None
    hourly: Mapping[Region, Mapping[ShortText, Usd]] = {}
    spot: Mapping[Region, Mapping[ShortText, Usd]] = {}
    disks: Mapping[Region, Mapping[ShortText, DiskPrice]] = {}


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by region and type: the newest ones, and in `at` those of a moment.

    `as_of` is the day from which on they are valid; None if nobody says. `earlier` are the books that they replaced,
    oldest first.
    """

    machines: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    disks: Mapping[tuple[str, str], DiskPrice] = field(default_factory=dict)
    spot: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    as_of: date | None = None
    earlier: tuple["PriceBook", ...] = ()

    def at(self, moment: datetime) -> "PriceBook":
        """Return the prices that were valid at a moment; before the first day of all, the first ones."""
        day = moment.astimezone(UTC).date()
        valid = (one for one in (self, *reversed(self.earlier)) if one.as_of is None or one.as_of <= day)
        return next(valid, self.earlier[0] if self.earlier else self)

    def hourly(self, region: str, instance_type: str) -> Decimal | None:
        """Return the hourly price of a running machine without its disk; None means unknown."""
        return self.machines.get((region, instance_type))

    def spot_hourly(self, region: str, instance_type: str) -> Decimal | None:
        """Return the hourly price of a running spot machine without its disk; None means unknown."""
        return self.spot.get((region, instance_type))

    def disk_hourly(self, volume: RootVolume, region: str) -> Decimal | None:
        """Return the hourly price of a disk, whether its machine runs or not; None means unknown."""
        price = self.disks.get((region, volume.kind))
        if price is None:
            return None
        extra = max(0, volume.iops - price.iops_included)
        monthly = volume.size_gb * price.gb_month + extra * price.iops_month
        return (monthly / HOURS_PER_MONTH).quantize(_DISK_PRECISION)

    def with_file(self, file: PriceFile) -> "PriceBook":
        """Return the book with a site's own prices in place of its own, from the file's day on."""
        return PriceBook(
            {**self.machines, **_flatten(file.hourly)},
            {**self.disks, **_flatten(file.disks)},
            {**self.spot, **_flatten(file.spot)},
            file.as_of or self.as_of,
            () if file.as_of is None else (*self.earlier, replace(self, earlier=())),
        )


def _flatten(table: Mapping[str, Mapping[str, P]]) -> dict[tuple[str, str], P]:
    return {(region, kind): price for region, row in table.items() for kind, price in row.items()}


def parse_price_file(document: Mapping[str, Any]) -> PriceFile:
    """Convert a price file to its type. Raises Invalid."""
    try:
        made = msgspec.convert(document, PriceFile, strict=False)
    except msgspec.ValidationError as error:
        remedy = 'write for example [hourly.us-east-1] and "m5zn.metal" = "3.9641" below it'
        raise Invalid(Fault("PRICE_BOOK", str(to_fault(error, "the file")), remedy)) from error
    disks = [disk for row in made.disks.values() for disk in row.values()]
    every = [price for table in (made.hourly, made.spot) for row in table.values() for price in row.values()]
    every += [price for disk in disks for price in (disk.gb_month, disk.iops_month, Decimal(disk.iops_included))]
    if not all(price.is_finite() and price >= 0 for price in every):
        raise Invalid(Fault("PRICE_BOOK", "a price is negative or no number", "use dollars such as 3.9641"))
    return made


_SHIPPED: Final = read_data_file("lcm.model", "prices.json", PriceFile)
SHIPPED_ON: Final = _SHIPPED.as_of
SHIPPED_PRICES: Final = replace(PriceBook().with_file(_SHIPPED), earlier=())


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
