"""The results of a plan as values, from which reports are made."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim
from lcm.placement.pack_bound import DemandSums, total_time
from lcm.sim.plan.variant import Variant

_MICROS: Final = 1_000_000


class TrackBound(msgspec.Struct, frozen=True, kw_only=True):
    """The lower bound of one track."""

    hours: Decimal = Decimal(0)
    usd: Decimal | None = Decimal(0)
    peak: int = 0


class Bound(msgspec.Struct, frozen=True):
    """The lower bound of every track."""

    tracks: Mapping[str, TrackBound] = {}

    @property
    def hours(self) -> Decimal:
        return sum((one.hours for one in self.tracks.values()), Decimal(0))

    @property
    def usd(self) -> Decimal | None:
        costs = [one.usd for one in self.tracks.values()]
        known = [one for one in costs if one is not None]
        return sum(known, Decimal(0)) if len(known) == len(costs) else None

    @property
    def peak(self) -> int:
        """The sum over all tracks: they share no machines."""
        return sum(one.peak for one in self.tracks.values())


class PricedMachine(msgspec.Struct, frozen=True):
    """What one machine holds, and what it costs per hour."""

    capacity: Amount
    hourly_usd: Decimal | None


def bound_of(slots: Mapping[str, Iterable[Claim]], machines: Mapping[str, Sequence[PricedMachine]]) -> Bound:
    """Return the lower bound of each track's slots on the machines that it has."""
    return Bound({track: _track_bound(claims, machines.get(track, ())) for track, claims in slots.items()})


def _track_bound(claims: Iterable[Claim], machines: Sequence[PricedMachine]) -> TrackBound:
    if not machines:
        return TrackBound()
    # Of several types, each counts as the largest in every dimension and as the cheapest, so that this stays a lower
    # bound.
    largest = Amount(**{name: max(getattr(one.capacity, name) for one in machines) for name in DIMENSIONS})
    sums = DemandSums(largest)
    for one in claims:
        sums.add(one)
    counts = sums.count_machines()
    seconds = total_time(counts, 0) // _MICROS
    peak = max((one.machines for one in counts), default=0)
    hours = Decimal(seconds) / 3600
    prices = [one.hourly_usd for one in machines]
    known = [one for one in prices if one is not None]
    usd = hours * min(known) if len(known) == len(prices) else None
    return TrackBound(hours=hours, usd=usd, peak=peak)


class RefusedSessions(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of one slot that were not promised, for one reason."""

    definition: str
    track: str
    start: datetime | None
    count: int
    why: str
    message: str


class LateStart(msgspec.Struct, frozen=True, kw_only=True):
    """A promised session that was not running when its slot began."""

    name: str
    definition: str
    track: str
    start: datetime
    late_seconds: float | None
    """None when it never ran."""
    why: str


class MachineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and the time for which it was paid. `track` is its pool's name where several pools serve a track."""

    track: str
    instance_type: str
    machine: str
    since: datetime
    until: datetime
    hourly_usd: Decimal | None

    @property
    def hours(self) -> Decimal:
        """The duration in hours, to the second, because that is how it is billed."""
        return Decimal((self.until - self.since) // timedelta(seconds=1)) / 3600


class SessionSeatUse(msgspec.Struct, frozen=True, kw_only=True):
    """A session on its seat, from the beginning of its claim until nothing of it is there any more.

    `track` is its pool's name where several pools serve a track.
    """

    name: str
    definition: str
    track: str
    pool: str
    seat: int
    since: datetime
    until: datetime
    need: Amount


class DayCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one track cost on one day."""

    day: str
    track: str
    hours: Decimal
    usd: Decimal | None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a timetable under one set of choices."""

    variant: Variant
    begins: datetime
    ends: datetime
    zone: str
    wanted: int
    promised: int
    session_hours: Decimal
    """Slot hours of the promised sessions."""
    refused: tuple[RefusedSessions, ...] = ()
    late: tuple[LateStart, ...] = ()
    interrupted: int = 0
    """How many sessions ran, were lost, and were started again."""
    unextended: int = 0
    """How many extensions found no room."""
    waits_seconds: tuple[float, ...] = ()
    """How long sessions without a slot waited until they ran."""
    unserved: int = 0
    """How many sessions without a slot never ran."""
    runs: tuple[MachineRun, ...] = ()
    uses: tuple[SessionSeatUse, ...] = ()
    capacity: Mapping[str, Amount] = {}
    """What one worker holds, by pool."""
    spent: tuple[DayCost, ...] = ()
    bound: Bound = msgspec.field(default_factory=Bound)
    played_seconds: float = 0.0

    @property
    def refusals(self) -> int:
        return sum(one.count for one in self.refused)

    @property
    def hours(self) -> Decimal:
        """Machine-hours that are paid for."""
        return sum((one.hours for one in self.runs), Decimal(0))

    @property
    def usd(self) -> Decimal | None:
        """The cost of all machines; None where a price is not known."""
        costs = [cost_of(one) for one in self.runs]
        known = [one for one in costs if one is not None]
        return sum(known, Decimal(0)) if len(known) == len(costs) else None

    @property
    def peak(self) -> int:
        """The most machines at once."""
        steps = sorted((at, by) for one in self.runs for at, by in ((one.since, 1), (one.until, -1)))
        level = most = 0
        for _, by in steps:
            level += by
            most = max(most, level)
        return most

    @property
    def keeps_everything(self) -> bool:
        """Whether everything that was wanted was promised, and started in time."""
        return not self.refused and not self.late and not self.unserved


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Trials side by side; `smallest` names the cheapest that keeps everything, if that was searched."""

    title: str
    trials: tuple[Trial, ...]
    smallest: str | None = None
    searched: bool = False


def cost_of(run: MachineRun) -> Decimal | None:
    """Return what a machine's run costs; None where its price is not known."""
    return None if run.hourly_usd is None else run.hours * run.hourly_usd
