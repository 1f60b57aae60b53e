"""The lower bound: machine-hours that no schedule can do with less of, and the machines that are needed at once.

At each moment the sessions that run need, in every dimension, at least the sum of their needs; machines come whole. So
many of the largest that the track has are needed at that moment, however cleverly sessions are put on them. Boots,
clean-ups and the least size of a pool come on top of it. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import msgspec

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim, Profile


class TrackBound(msgspec.Struct, frozen=True, kw_only=True):
    """The bound of one track."""

    hours: Decimal = Decimal(0)
    usd: Decimal | None = Decimal(0)
    peak: int = 0


class Bound(msgspec.Struct, frozen=True):
    """What no schedule can beat, by track."""

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
        """Of the tracks added up: they share no machines."""
        return sum(one.peak for one in self.tracks.values())


class Machine(msgspec.Struct, frozen=True):
    """What one machine holds, and what it costs by the hour."""

    capacity: Amount
    hourly_usd: Decimal | None


def bound_of(slots: Mapping[str, Iterable[Claim]], machines: Mapping[str, Sequence[Machine]]) -> Bound:
    """Give the bound of each track's slots on the machines that it has."""
    return Bound({track: _track(claims, machines.get(track, ())) for track, claims in slots.items()})


def _track(claims: Iterable[Claim], machines: Sequence[Machine]) -> TrackBound:
    if not machines:
        return TrackBound()
    profile = Profile.of(claims)
    # Of several kinds each counts as the largest in every dimension, and as the cheapest: less is never needed.
    largest = Amount(**{name: max(getattr(one.capacity, name) for one in machines) for name in DIMENSIONS})
    seconds, peak = 0, 0
    for (since, until), level in zip(pairwise(profile.moments), profile.levels, strict=False):
        count = needed(level, largest)
        seconds += count * _seconds(since, until)
        peak = max(peak, count)
    hours = Decimal(seconds) / 3600
    prices = [one.hourly_usd for one in machines]
    known = [one for one in prices if one is not None]
    usd = hours * min(known) if len(known) == len(prices) else None
    return TrackBound(hours=hours, usd=usd, peak=peak)


def needed(load: Amount, capacity: Amount) -> int:
    """Say how many machines a load needs at least, taken as if it could be cut anywhere."""
    counts = [-(-getattr(load, name) // getattr(capacity, name)) for name in DIMENSIONS if getattr(capacity, name) > 0]
    return max(counts, default=0)


def _seconds(since: datetime, until: datetime) -> int:
    return (until - since) // timedelta(seconds=1)
