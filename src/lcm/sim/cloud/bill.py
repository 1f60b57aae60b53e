"""The simulated cloud's bill, from its own intervals: what our accounting is held against. Made by `compute`."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from lcm.model.base.errors import Throttled, Unreachable
from lcm.providers.protocols.compute import Compute, InstanceState
from lcm.sim.cloud.machines import RUNNING, STOPPED, STOPPING, Machine
from lcm.sim.time.faults import Failures, Spells

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


EVERYWHERE: Final = ""


class Faults:
    """Planned failures, lost answers, and a cloud that wants fewer calls."""

    def __init__(self, *, calls_per_second: int | None = None) -> None:
        self.calls_per_second = calls_per_second
        self.spells = Spells()
        self._failures = Failures(Compute, self.spells)
        self.fail_next = self._failures.fail_next
        self._throttled: dict[str, datetime] = {}
        self._calls: defaultdict[str, deque[datetime]] = defaultdict(deque)

    def lose_answer_next(self, verb: str, times: int = 1) -> None:
        """Let the next calls of a verb have their effect, and their caller hear nothing of it."""
        self.fail_next(verb, Unreachable(f"{verb}: no answer came"), times=times, after_effect=True)

    def throttle(self, until: datetime, region: str = EVERYWHERE) -> None:
        """Refuse all calls until a moment."""
        self._throttled[region] = until

    async def linger(self, verb: str) -> None:
        """Hold up a call that hangs or is slow, and a caller who stands still."""
        await self.spells.linger(verb)

    def before(self, verb: str, region: str, now: datetime) -> None:
        """Raise what stands between a call and its effect."""
        self._failures.before(verb)
        until = max((self._throttled[one] for one in (EVERYWHERE, region) if one in self._throttled), default=now)
        if until > now or self._too_many(region, now):
            raise Throttled(f"{verb}: too many calls in {region}", after=max(until - now, _SECOND))

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        self._failures.after(verb)

    def _too_many(self, region: str, now: datetime) -> bool:
        if self.calls_per_second is None:
            return False
        calls = self._calls[region]
        while calls and calls[0] <= now - _SECOND:
            calls.popleft()
        if len(calls) >= self.calls_per_second:
            return True
        calls.append(now)
        return False
