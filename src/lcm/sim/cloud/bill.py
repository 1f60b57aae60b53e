"""The simulated cloud's bill, against which our own accounting is checked, and faults between it and its callers.

The bill is made from the machines' own intervals. Faults are set by tests and scenarios and raised by SimCloud.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from lcm.model.base.errors import Throttled, Unreachable
from lcm.providers.protocols.compute import Compute, InstanceState
from lcm.sim.cloud.machines import RUNNING, STOPPED, STOPPING, SimMachine
from lcm.sim.time.faults import ActiveFaults, PlannedFailures

MINIMUM_BILLED: Final = timedelta(seconds=60)
"""The least time that every start is billed for."""

_RATE_WINDOW: Final = timedelta(seconds=1)
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
            whole_seconds = -(-(end - since) // _RATE_WINDOW) * _RATE_WINDOW
            billed = max(MINIMUM_BILLED, whole_seconds)
            yield BilledInterval(state, since, end, billed, _usd(prices.of_machine(machine), billed))
        elif state in {STOPPING, STOPPED}:
            yield BilledInterval(state, since, end, end - since, _usd(prices.of_disk(machine), end - since))


def _usd(hourly: Decimal, span: timedelta) -> Decimal:
    seconds = Decimal(span // timedelta(microseconds=1)) / 1_000_000
    return hourly * seconds / _SECONDS_PER_HOUR


EVERYWHERE: Final = ""


class CloudFaults:
    """Planned failures, lost answers, and throttling."""

    def __init__(self, *, calls_per_second: int | None = None) -> None:
        self.calls_per_second = calls_per_second
        self.spells = ActiveFaults()
        self._failures = PlannedFailures(Compute, self.spells)
        self.fail_next = self._failures.fail_next
        self._throttled: dict[str, datetime] = {}
        self._calls: defaultdict[str, deque[datetime]] = defaultdict(deque)

    def lose_answer_next(self, verb: str, times: int = 1) -> None:
        """Make the next calls of a verb take effect, but lose their answers."""
        self.fail_next(verb, Unreachable(f"{verb}: no answer came"), times=times, after_effect=True)

    def throttle(self, until: datetime, region: str = EVERYWHERE) -> None:
        """Refuse all calls until a moment."""
        self._throttled[region] = until

    async def delay_call(self, verb: str) -> None:
        """Delay a call that hangs or is slow, and pause a caller."""
        await self.spells.delay_call(verb)

    def raise_before_effect(self, verb: str, region: str, now: datetime) -> None:
        """Raise what prevents a call's effect."""
        self._failures.raise_before_effect(verb)
        until = max((self._throttled[one] for one in (EVERYWHERE, region) if one in self._throttled), default=now)
        if until > now or self._exceeds_rate(region, now):
            raise Throttled(f"{verb}: too many calls in {region}", after=max(until - now, _RATE_WINDOW))

    def raise_after_effect(self, verb: str) -> None:
        """Raise what happens between an effect and its caller."""
        self._failures.raise_after_effect(verb)

    def _exceeds_rate(self, region: str, now: datetime) -> bool:
        if self.calls_per_second is None:
            return False
        calls = self._calls[region]
        while calls and calls[0] <= now - _RATE_WINDOW:
            calls.popleft()
        if len(calls) >= self.calls_per_second:
            return True
        calls.append(now)
        return False
