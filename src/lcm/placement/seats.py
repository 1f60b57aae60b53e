"""The seats of a pool: each is a timeline of promised claims, and the times its worker must run for them.

A seat's worker is started one boot lead before the first claim and released after the last; it is kept through gaps
that are too short to release it. Claims are taken from the store as they are, even if they are too many. Bookings and
the pool controller use this. `seat_demand` says when workers must be started and may be released; it is computed from
the claims each time, so that a late or repeated look, or one after a restart, gets the same answer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount, Claim
from lcm.placement.request import HeldClaim
from lcm.placement.timeline import BEGINNING, END, GUARD_BITS, Timeline, lanes_of, micros, moment_of

KEEP_THROUGH_GAP: Final = timedelta(minutes=15)
"""A worker is kept through gaps longer than a boot by less than this: stopping and starting take time too."""

FOREIGN_LABS_STAY: Final = timedelta(hours=24)
"""How long labs that no session made are expected to stay: nobody says when they end."""

_MICROSECOND: Final = timedelta(microseconds=1)
_ONE_CLAIM: Final = 1 << 64 * len(DIMENSIONS)
"""A lane above the dimensions counts claims, so that a claim of nothing keeps its worker as well."""


class Span(NamedTuple):
    """[start, end) in microseconds since 1970."""

    start: int
    end: int


class RunLimit(NamedTuple):
    """What a seat's machine of a smaller type holds, and until when it is there.

    Another machine takes its place after that, and nothing is claimed during the `pause` between them.
    """

    room: Amount
    until: int
    pause: int


class SeatTimeline:
    """One seat: its claims by holder, and their sum over time.

    `strangers` is what labs take that no session made. What a machine of a smaller type lacks until its `limit` is in
    the sum as well, as claims of nobody.
    """

    __slots__ = ("capacity", "held", "lanes", "limit", "strangers", "timeline")

    def __init__(self, capacity: Amount, strangers: Amount = ZERO_AMOUNT, limit: RunLimit | None = None) -> None:
        self.capacity = capacity
        self.strangers = strangers
        self.limit = limit
        self.lanes = lanes_of(capacity)
        self.timeline = Timeline(self.lanes.top + (_ONE_CLAIM << 40))
        self.held: dict[str, HeldClaim] = {}
        if limit is not None:
            lacking = capacity - self.machine_room
            self.timeline.add(BEGINNING, limit.until, self.lanes.pack(lacking))
            self.timeline.add(limit.until, limit.until + limit.pause, self.lanes.pack(capacity))

    @property
    def machine_room(self) -> Amount:
        """What the seat's machine holds now."""
        return self.capacity if self.limit is None else smaller_amount(self.capacity, self.limit.room)

    def pack_need(self, need: Amount) -> int:
        """Return a need as this seat's timeline counts it."""
        return self.lanes.pack_again(need) + _ONE_CLAIM

    def latest(self, not_after: int, length: int, need: Amount) -> int | None:
        """Return the last moment, not after a given one, from which a need fits for so long; None if it never does."""
        if not need.within(self.capacity):
            return None
        timeline, packed = self.timeline, self.pack_need(need)
        start = not_after
        for place in range(bisect_left(timeline.moments, not_after + length) - 1, -1, -1):
            begin = timeline.moments[place]
            if (timeline.top - packed - timeline.levels[place]) & GUARD_BITS != GUARD_BITS:
                start = min(start, begin - length)
            if begin <= start:
                break
        return start

    def idle_spans(self, span: Span) -> Iterator[Span]:
        """Iterate over the times without any claim that overlap a span, each in its full length."""
        moments, levels = self.timeline.moments, self.timeline.levels
        place = bisect_right(moments, span.start) - 1
        while place and levels[place] < _ONE_CLAIM > levels[place - 1]:
            place -= 1
        last = bisect_left(moments, span.end)
        while place < last:
            start = place
            while place < len(levels) and levels[place] < _ONE_CLAIM:
                place += 1
            if place > start:
                yield Span(moments[start], moments[place] if place < len(moments) else END)
            place += 1


class Seats:
    """The seats of one pool, numbered from 1. Not thread-safe.

    `capacity` is what the template promises; `smaller` gives the seats whose worker turned out smaller, and `strangers`
    what labs that no session made take of a seat; `limits` gives those whose machine is of a smaller type for some
    time. Seats beyond `most` only keep what they have. The first `standing`
    seats always have a worker, and so have those in `besides`; `always` is both. `opening` counts over time how many of
    the others must have one, and `time` is the sum of that in microseconds.
    """

    __slots__ = (
        "_runs",
        "_seats",
        "_sums",
        "always",
        "capacity",
        "keep",
        "lead",
        "most",
        "opening",
        "standing",
        "time",
    )

    def __init__(
        self,
        capacity: Amount,
        size: int,
        *,
        lead: timedelta,
        keep: timedelta = KEEP_THROUGH_GAP,
        standing: int = 0,
        besides: Iterable[int] = (),
        smaller: Mapping[int, Amount] | None = None,
        strangers: Mapping[int, Amount] | None = None,
        limits: Mapping[int, RunLimit] | None = None,
        most: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.lead = lead // _MICROSECOND
        self.keep = keep // _MICROSECOND
        self.always = frozenset((*range(1, standing + 1), *besides))
        self.standing = len(self.always)
        self.opening = Timeline(0)
        self.time = 0
        self._sums: dict[Span, int] = {}
        self._runs: dict[int, list[Span]] = {}
        self.most = size if most is None else most
        own, taken, until = smaller or {}, strangers or {}, limits or {}
        sizes = {number: smaller_amount(capacity, amount) for number, amount in own.items()}
        self._seats = {
            number: SeatTimeline(sizes.get(number, capacity), taken.get(number, ZERO_AMOUNT), until.get(number))
            for number in range(1, size + 1)
        }

    def __len__(self) -> int:
        return len(self._seats)

    def __getitem__(self, number: int) -> SeatTimeline:
        return self._seats[number]

    def hold(self, number: int, held: HeldClaim) -> None:
        """Hold a claim on a seat; it replaces any that its holder had there."""
        seat = self._seats[number]
        self.release(number, held.holder)
        seat.held[held.holder] = held
        span = span_of(held.claim)
        self._count_runtime(number, span, 1)
        seat.timeline.add(*span, seat.pack_need(held.claim.need))

    def release(self, number: int, holder: str) -> HeldClaim | None:
        """Release what a holder has on a seat, and return it; None if that is nothing."""
        seat = self._seats[number]
        held = seat.held.pop(holder, None)
        if held is not None:
            span = span_of(held.claim)
            seat.timeline.add(*span, -seat.pack_need(held.claim.need))
            self._count_runtime(number, span, -1)
        return held

    def reshape(self, number: int, own: Amount | None, strangers: Amount, limit: RunLimit | None = None) -> None:
        """Change what a seat's worker holds, None for what the template promises, and what strangers take of it."""
        before, capacity = self._seats[number], self.capacity if own is None else smaller_amount(self.capacity, own)
        if (before.capacity, before.strangers, before.limit) == (capacity, strangers, limit):
            return
        seat = self._seats[number] = SeatTimeline(capacity, strangers, limit)
        for held in before.held.values():
            seat.held[held.holder] = held
            seat.timeline.add(*span_of(held.claim), seat.pack_need(held.claim.need))

    def set_always(self, numbers: frozenset[int]) -> None:
        """Change which seats always have a worker."""
        for number in sorted(self.always ^ numbers):
            sign = 1 if number in self.always else -1
            for piece in self.runs(number):
                self.opening.add(*piece, sign)
                self.time += sign * (piece.end - piece.start)
        self.always, self.standing = numbers, len(numbers)
        self._sums.clear()

    def all_claims(self) -> Iterator[tuple[int, HeldClaim]]:
        """Iterate over all claims, seat by seat."""
        return ((number, held) for number, seat in self._seats.items() for held in seat.held.values())

    def fits(self, number: int, span: Span, need: Amount) -> bool:
        """Return whether a need would stay within a seat's capacity at every moment of a span."""
        seat = self._seats[number]
        return seat.timeline.fits(span.start, span.end, seat.pack_need(need))

    def added_runtime(self, number: int, span: Span) -> list[Span]:
        """Return the times a seat's worker must run in addition for a claim, in order; none on a standing seat."""
        if number in self.always or span.start >= span.end:
            return []
        return [piece for idle in self._seats[number].idle_spans(span) for piece in self._added_runtime_in(idle, span)]

    def runs(self, number: int) -> list[Span]:
        """Return the times a seat's worker must run for its claims, boot lead included, in order."""
        known = self._runs.get(number)
        if known is None:
            known = self._runs[number] = self._find_runs(number)
        return known

    def _find_runs(self, number: int) -> list[Span]:
        pieces, until = list[Span](), BEGINNING
        for idle in self._seats[number].idle_spans(Span(BEGINNING, END)):
            pieces += [Span(until, idle.start)] if until < idle.start else []
            pieces += self._runtime_in_gap(idle)
            until = idle.end
        return join_spans(pieces)

    def total_runtime(self, span: Span) -> int:
        """Return how long workers run during a span for their claims, in total; standing seats are not counted."""
        if span not in self._sums:
            moments, levels = self.opening.moments, self.opening.levels
            first, last = bisect_right(moments, span.start) - 1, bisect_left(moments, span.end)
            edges = pairwise((span.start, *moments[first + 1 : last], span.end))
            self._sums[span] = sum(
                level * (end - start) for (start, end), level in zip(edges, levels[first:last], strict=True)
            )
        return self._sums[span]

    def _added_runtime_in(self, idle: Span, span: Span) -> Iterator[Span]:
        """Return what part of an idle time must run once a claim covers some of it: never less than before."""
        ran = self._runtime_in_gap(idle)
        before = ran[0].start if ran else idle.end
        inside = Span(max(idle.start, span.start), min(idle.end, span.end))
        after = (
            *self._runtime_in_gap(Span(idle.start, inside.start)),
            inside,
            *self._runtime_in_gap(Span(inside.end, idle.end)),
        )
        for piece in join_spans(after):
            if piece.start < before:
                yield Span(piece.start, min(piece.end, before))

    def _runtime_in_gap(self, idle: Span) -> list[Span]:
        """Return the part of an idle time in which the worker runs: all of a short one, else the boot at its end."""
        if idle.end == END or idle.start >= idle.end:
            return []
        if idle.start != BEGINNING and idle.end - idle.start < self.lead + self.keep:
            return [idle]
        return [Span(idle.end - self.lead, idle.end)] if self.lead else []

    def _count_runtime(self, number: int, span: Span, sign: int) -> None:
        self._sums.clear()
        self._runs.pop(number, None)
        for piece in self.added_runtime(number, span):
            self.opening.add(*piece, sign)
            self.time += sign * (piece.end - piece.start)


def span_of(claim: Claim) -> Span:
    """Return the time of a claim."""
    return Span(micros(claim.start), micros(claim.end))


def total_length(spans: Iterable[Span]) -> int:
    """Return the total length of spans."""
    return sum(span.end - span.start for span in spans)


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Join spans that touch; they must be in order."""
    made: list[Span] = []
    for span in spans:
        if made and made[-1].end >= span.start:
            made[-1] = Span(made[-1].start, max(made[-1].end, span.end))
        else:
            made.append(span)
    return made


def busiest_moment(counts: Sequence[Timeline], span: Span) -> tuple[int, int]:
    """Return the greatest sum of several counts during a span, and the moment it is first reached."""
    moments = {span.start}
    for one in counts:
        moments.update(one.moments[bisect_right(one.moments, span.start) : bisect_left(one.moments, span.end)])
    return max(
        ((sum(one.used_at(moment) for one in counts), moment) for moment in sorted(moments)), key=lambda top: top[0]
    )


def smaller_amount(left: Amount, right: Amount) -> Amount:
    """Return the smaller of two amounts in each dimension."""
    return Amount(**{name: min(getattr(left, name), getattr(right, name)) for name in DIMENSIONS})


class SeatDemand(NamedTuple):
    """A seat's need for a worker: launch or resume it at `start_by`, release it at `needed_until` (None: never)."""

    start_by: datetime
    needed_until: datetime | None


def seat_demand(seats: Seats, now: datetime) -> Mapping[int, SeatDemand]:
    """Return when each seat needs a worker next, now or later; a seat that is left out needs none any more."""
    numbers = range(1, len(seats) + 1)
    standing = {number: SeatDemand(now, None) for number in numbers if number in seats.always}
    others = {number: _next_demand(seats, number, now) for number in numbers if number not in seats.always}
    return standing | {number: found for number, found in others.items() if found}


def _next_demand(seats: Seats, number: int, now: datetime) -> SeatDemand | None:
    runs = seats.runs(number)
    place = bisect_right(runs, micros(now), key=lambda run: run.end)
    return _demand_of(runs[place]) if place < len(runs) else None


@lru_cache(maxsize=16_384)
def _demand_of(run: Span) -> SeatDemand:
    """Return a run as a demand. Most seats have the same next run at one look as at the one before."""
    return SeatDemand(moment_of(run.start), moment_of(run.end))
