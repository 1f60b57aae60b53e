"""The simulated cloud's bill, from its own intervals: what our accounting is held against. Made by `compute`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from lcm.providers.compute import InstanceState
from lcm.sim.compute_machines import RUNNING, STOPPED, STOPPING, Machine

MINIMUM: Final = timedelta(seconds=60)
"""What every start costs at least."""

_SECOND: Final = timedelta(seconds=1)
_HOUR: Final = Decimal(3600)


@dataclass(frozen=True)
class Prices:
    """Dollars an hour by region and type, disk included while it runs, and dollars a GB and hour of a stopped disk."""

    hourly: Mapping[tuple[str, str], Decimal] = field(default_factory=dict)
    disk_gb_hourly: Mapping[str, Decimal] = field(default_factory=dict)
    other_hourly: Decimal = Decimal("3.9641")
    other_disk_gb_hourly: Decimal = Decimal("0.00017")

    def of_machine(self, machine: Machine) -> Decimal:
        return self.hourly.get((machine.region, machine.instance_type), self.other_hourly)

    def of_disk(self, machine: Machine) -> Decimal:
        return machine.disk_gb * self.disk_gb_hourly.get(machine.region, self.other_disk_gb_hourly)


class Interval(NamedTuple):
    """A stretch that costs: the machine while it runs, its disk while it is stopped."""

    state: InstanceState
    since: datetime
    until: datetime
    billed: timedelta
    usd: Decimal


class Line(NamedTuple):
    """What one machine costs."""

    instance_id: str
    intervals: tuple[Interval, ...]

    @property
    def usd(self) -> Decimal:
        return sum((one.usd for one in self.intervals), Decimal(0))


class Bill(NamedTuple):
    """What all machines cost until a moment, by instance id."""

    lines: Mapping[str, Line]

    @property
    def usd(self) -> Decimal:
        return sum((line.usd for line in self.lines.values()), Decimal(0))


def bill(machines: Iterable[Machine], prices: Prices, until: datetime) -> Bill:
    """Add up everything before a moment."""
    lines = (Line(one.instance_id, tuple(_intervals(one, prices, until))) for one in machines)
    return Bill({line.instance_id: line for line in lines})


def _intervals(machine: Machine, prices: Prices, until: datetime) -> Iterator[Interval]:
    for state, since, end in machine.spans(until):
        if state is RUNNING:
            whole_seconds = -(-(end - since) // _SECOND) * _SECOND
            billed = max(MINIMUM, whole_seconds)
            yield Interval(state, since, end, billed, _usd(prices.of_machine(machine), billed))
        elif state in {STOPPING, STOPPED}:
            yield Interval(state, since, end, end - since, _usd(prices.of_disk(machine), end - since))


def _usd(hourly: Decimal, span: timedelta) -> Decimal:
    seconds = Decimal(span // timedelta(microseconds=1)) / 1_000_000
    return hourly * seconds / _HOUR
