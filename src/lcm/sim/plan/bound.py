"""The lower bound: machine-hours that no schedule can do without, and the machines that are needed at once.

At each moment the running sessions need, in every dimension, at least the sum of their needs, and machines come whole.
So many of the track's largest machines are needed at that moment, however sessions are placed. Boots, clean-ups and the
minimum of a pool come on top of it. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import msgspec

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim, Profile


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
    profile = Profile.of(claims)
    # Of several types, each counts as the largest in every dimension and as the cheapest, so that this stays a lower
    # bound.
    largest = Amount(**{name: max(getattr(one.capacity, name) for one in machines) for name in DIMENSIONS})
    seconds, peak = 0, 0
    for (since, until), level in zip(pairwise(profile.moments), profile.levels, strict=False):
        count = machines_needed(level, largest)
        seconds += count * _whole_seconds(since, until)
        peak = max(peak, count)
    hours = Decimal(seconds) / 3600
    prices = [one.hourly_usd for one in machines]
    known = [one for one in prices if one is not None]
    usd = hours * min(known) if len(known) == len(prices) else None
    return TrackBound(hours=hours, usd=usd, peak=peak)


def machines_needed(load: Amount, capacity: Amount) -> int:
    """Return how many machines a load needs at least, as if it could be split anywhere."""
    counts = [-(-getattr(load, name) // getattr(capacity, name)) for name in DIMENSIONS if getattr(capacity, name) > 0]
    return max(counts, default=0)


def _whole_seconds(since: datetime, until: datetime) -> int:
    return (until - since) // timedelta(seconds=1)
