"""The simulated cloud's bill, against which our own accounting is checked; made from the machines' own intervals."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from lcm.providers.protocols.compute import InstanceState
from lcm.sim.cloud.machines import RUNNING, STOPPED, STOPPING, SimMachine

MINIMUM_BILLED: Final = timedelta(seconds=60)
"""The least time that every start is billed for."""
_SECOND: Final = timedelta(seconds=1)
_SECONDS_PER_HOUR: Final = Decimal(3600)


@dataclass(frozen=True)
class SimPrices:
    """USD per hour by region and type, disk included while it runs; USD per GB and hour of a stopped machine's disk."""

    hourly: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    disk_gb_hourly: Mapping[str, Decimal] = field(default_factory=dict)
    other_hourly: Decimal = Decimal("3.9641")
    other_disk_gb_hourly: Decimal = Decimal("0.00017")

    def of_machine(self, machine: SimMachine) -> Decimal:
        return self.hourly.get((machine.region, machine.instance_type), self.other_hourly)

    def of_disk(self, machine: SimMachine) -> Decimal:
        return machine.disk_gb * self.disk_gb_hourly.get(machine.region, self.other_disk_gb_hourly)


class BilledInterval(NamedTuple):
    """A time span that costs money: the machine while it runs, its disk while it is stopped."""

    state: InstanceState
    since: datetime
    until: datetime
    billed: timedelta
    usd: Decimal


class BillLine(NamedTuple):
    """What one machine costs."""

    instance_id: str
    intervals: tuple[BilledInterval, ...]

    @property
    def usd(self) -> Decimal:
        return sum((one.usd for one in self.intervals), Decimal(0))


class Bill(NamedTuple):
    """What all machines cost until a moment, by instance id."""

    lines: Mapping[str, BillLine]

    @property
    def usd(self) -> Decimal:
        return sum((line.usd for line in self.lines.values()), Decimal(0))


def make_bill(machines: Iterable[SimMachine], prices: SimPrices, until: datetime) -> Bill:
    """Add up all costs before a moment."""
    lines = (BillLine(one.instance_id, tuple(_intervals(one, prices, until))) for one in machines)
    return Bill({line.instance_id: line for line in lines})


def _intervals(machine: SimMachine, prices: SimPrices, until: datetime) -> Iterator[BilledInterval]:
    for state, since, end in machine.spans(until):
        if state is RUNNING:
            whole_seconds = -(-(end - since) // _SECOND) * _SECOND
            billed = max(MINIMUM_BILLED, whole_seconds)
            yield BilledInterval(state, since, end, billed, _usd(prices.of_machine(machine), billed))
        elif state in {STOPPING, STOPPED}:
            yield BilledInterval(state, since, end, end - since, _usd(prices.of_disk(machine), end - since))


def _usd(hourly: Decimal, span: timedelta) -> Decimal:
    seconds = Decimal(span // timedelta(microseconds=1)) / 1_000_000
    return hourly * seconds / _SECONDS_PER_HOUR
