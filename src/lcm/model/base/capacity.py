"""What a worker can hold and what a lab needs, in six dimensions, at one moment and over time.

Used capacity is derived from claims and never counted up and down. A claim is a need with a beginning and an end; a
profile is the sum of claims as a step function of time. `placement` builds its index on this arithmetic.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from operator import attrgetter

import msgspec

from lcm.model.base.resource import Count, Moment, Part


class Amount(Part):
    """An amount of each dimension. Whole numbers, so that sums are exact."""

    cpu_millis: Count = 0
    memory_mb: Count = 0
    storage_mb: Count = 0
    nodes: Count = 0
    ports: Count = 0
    labs: Count = 0

    def __add__(self, other: "Amount") -> "Amount":
        return _combine(self, other, 1)

    def __sub__(self, other: "Amount") -> "Amount":
        """Subtract. The result may be below zero, which means that something is over-committed."""
        return _combine(self, other, -1)

    def within(self, room: "Amount") -> bool:
        """Return True if this amount fits into `room` in every dimension."""
        return not find_exceeded(self, room)


DIMENSIONS: tuple[str, ...] = Amount.__struct_fields__
read_dimensions: Callable[[Amount], tuple[int, ...]] = attrgetter(*DIMENSIONS)
"""Returns all dimensions of an amount, in their order."""


def find_exceeded(need: Amount, room: Amount) -> list[str]:
    """Return the dimensions in which a need is larger than the room."""
    pairs = zip(DIMENSIONS, read_dimensions(need), read_dimensions(room), strict=True)
    return [name for name, wanted, there in pairs if wanted > there]


def dimension_words(dimensions: Sequence[str]) -> str:
    """Return the names of dimensions as people say them."""
    return " and ".join(name.removesuffix("_millis").removesuffix("_mb") for name in dimensions)


def can_accommodate(declared: Amount, claimed: Amount, need: Amount) -> bool:
    """Return True if a worker with these claims can take this need as well."""
    return (claimed + need).within(declared)


def utilization(used: Amount, declared: Amount) -> dict[str, float]:
    """Return the used fraction of each dimension.

    A dimension of size zero counts as full as soon as anything uses it.
    """
    pairs = zip(DIMENSIONS, read_dimensions(used), read_dimensions(declared), strict=True)
    return {name: part / whole if whole else float(part > 0) for name, part, whole in pairs}


class Claim(Part):
    """A need during [start, end)."""

    start: Moment
    end: Moment
    need: Amount

    def overlaps(self, start: datetime, end: datetime) -> bool:
        """Return True if the claim covers any moment of [start, end)."""
        return self.start < end and start < self.end


class Profile(msgspec.Struct, frozen=True):
    """The sum of claims over time.

    `levels[i]` applies during [moments[i], moments[i + 1]). Before the first and after the last moment
    nothing is claimed.
    """

    moments: tuple[datetime, ...] = ()
    levels: tuple[Amount, ...] = ()

    @classmethod
    def of(cls, claims: Iterable[Claim]) -> "Profile":
        """Return the sum of claims. A claim that ends before it starts covers nothing."""
        steps: dict[datetime, Amount] = {}
        for claim in claims:
            if claim.start < claim.end:
                steps[claim.start] = steps.get(claim.start, ZERO_AMOUNT) + claim.need
                steps[claim.end] = steps.get(claim.end, ZERO_AMOUNT) - claim.need
        moments = sorted(steps)
        levels, level = [], ZERO_AMOUNT
        for moment in moments:
            level += steps[moment]
            levels.append(level)
        return cls(tuple(moments), tuple(levels))

    def at(self, moment: datetime) -> Amount:
        """Return how much is claimed at a moment."""
        place = bisect_right(self.moments, moment)
        return self.levels[place - 1] if place else ZERO_AMOUNT

    def peak(self, start: datetime, end: datetime) -> Amount:
        """Return the greatest claim in each dimension during [start, end)."""
        if start >= end:
            return ZERO_AMOUNT
        first = max(0, bisect_right(self.moments, start) - 1)
        levels = self.levels[first : bisect_left(self.moments, end)]
        return Amount(**{name: max((getattr(level, name) for level in levels), default=0) for name in DIMENSIONS})

    def fits(self, claim: Claim, declared: Amount) -> bool:
        """Return True if one more claim would stay within the declared capacity at every moment."""
        return can_accommodate(declared, self.peak(claim.start, claim.end), claim.need)

    def earliest(self, need: Amount, declared: Amount, *, length: timedelta, not_before: datetime) -> datetime | None:
        """Return the first moment from which a need fits for this length; None when it never does."""
        if not need.within(declared):
            return None
        starts = [not_before, *(moment for moment in self.moments if moment > not_before)]
        return next(
            (start for start in starts if self.fits(Claim(start=start, end=start + length, need=need), declared)), None
        )

    def find_overcommitted(self, declared: Amount) -> Sequence[tuple[datetime, datetime]]:
        """Return the spans in which more is claimed than declared."""
        spans = zip(pairwise(self.moments), self.levels, strict=False)
        return [span for span, level in spans if not level.within(declared)]


def _combine(left: Amount, right: Amount, sign: int) -> Amount:
    return Amount(
        cpu_millis=left.cpu_millis + sign * right.cpu_millis,
        memory_mb=left.memory_mb + sign * right.memory_mb,
        storage_mb=left.storage_mb + sign * right.storage_mb,
        nodes=left.nodes + sign * right.nodes,
        ports=left.ports + sign * right.ports,
        labs=left.labs + sign * right.labs,
    )


ZERO_AMOUNT = Amount()
