"""A pool as a row of seats: each a timeline of promised claims, and the time its worker must run for them.

A seat's worker is started one boot lead before the first claim and released after the last. Between two claims it is
kept where releasing it would not be worth it. The pool's bookings and its follower use this; what is held is the
store's word and is taken as it is, even if it is too much.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS, NOTHING, Amount, Claim
from lcm.placement.request import Held
from lcm.placement.timeline import BEGINNING, GUARD, Lanes, Timeline, micros, moment_of

KEEP: Final = timedelta(minutes=15)
"""A worker is kept through a gap that is longer than a boot by less than this: stopping and starting take time too."""

STRANGERS_STAY: Final = timedelta(hours=24)
"""Labs that no session made are expected to be there so long: nobody says when they end."""

END: Final = 1 << 62
_MICROSECOND: Final = timedelta(microseconds=1)
_ONE: Final = 1 << 64 * len(DIMENSIONS)
"""A lane above the dimensions counts claims, so that a claim of nothing keeps its worker as well."""


class Span(NamedTuple):
    """[start, end) in microseconds since 1970."""

    start: int
    end: int


class Seat:
    """One seat: its claims by holder, and their sum over time; `strangers` is what labs take that no session made."""

    __slots__ = ("capacity", "held", "lanes", "strangers", "timeline")

    def __init__(self, capacity: Amount, strangers: Amount = NOTHING) -> None:
        self.capacity = capacity
        self.strangers = strangers
        self.lanes = Lanes(capacity)
        self.timeline = Timeline(self.lanes.top + (_ONE << 40))
        self.held: dict[str, Held] = {}

    def packed(self, need: Amount) -> int:
        """Give a need as this seat's timeline counts it."""
        return self.lanes.pack(need) + _ONE

    def latest(self, not_after: int, length: int, need: Amount) -> int | None:
        """Find the last moment from which a need fits for so long, not after one; None when it never does."""
        if not need.within(self.capacity):
            return None
        timeline, packed = self.timeline, self.packed(need)
        start = not_after
        for place in range(bisect_left(timeline.moments, not_after + length) - 1, -1, -1):
            begin = timeline.moments[place]
            if (timeline.top - packed - timeline.levels[place]) & GUARD != GUARD:
                start = min(start, begin - length)
            if begin <= start:
                break
        return start

    def idle(self, span: Span) -> Iterator[Span]:
        """Give the times without any claim that meet a span, each as long as it is."""
        moments, levels = self.timeline.moments, self.timeline.levels
        first = bisect_right(moments, span.start) - 1
        for place in range(first, bisect_left(moments, span.end)):
            if not levels[place]:
                yield Span(moments[place], moments[place + 1] if place + 1 < len(moments) else END)


class Seats:
    """The seats of one pool, numbered from 1. Not for several threads.

    `capacity` is what the template promises; a seat whose worker turned out smaller is given in `smaller`, and in
    `strangers` what is taken of one by labs that no session made. Those beyond `most` only keep what they have. The
    first `standing` seats always have a worker, and so have those `besides`; `always` are both. `opening` counts over
    time how many of the others must have one, and `time` adds up for how many microseconds.
    """

    __slots__ = ("_seats", "_sums", "always", "capacity", "keep", "lead", "most", "opening", "standing", "time")

    def __init__(
        self,
        capacity: Amount,
        size: int,
        *,
        lead: timedelta,
        keep: timedelta = KEEP,
        standing: int = 0,
        besides: Iterable[int] = (),
        smaller: Mapping[int, Amount] | None = None,
        strangers: Mapping[int, Amount] | None = None,
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
        self.most = size if most is None else most
        own, taken = smaller or {}, strangers or {}
        self._seats = {
            number: Seat(least(capacity, own.get(number, capacity)), taken.get(number, NOTHING))
            for number in range(1, size + 1)
        }

    def __len__(self) -> int:
        return len(self._seats)

    def __getitem__(self, number: int) -> Seat:
        return self._seats[number]

    def hold(self, number: int, held: Held) -> None:
        """Hold a claim on a seat, in place of any that its holder had there."""
        seat = self._seats[number]
        self.release(number, held.holder)
        seat.held[held.holder] = held
        span = span_of(held.claim)
        self._count(number, span, 1)
        seat.timeline.add(*span, seat.packed(held.claim.need))

    def release(self, number: int, holder: str) -> Held | None:
        """Give up what a holder has on a seat; gives what that was."""
        seat = self._seats[number]
        held = seat.held.pop(holder, None)
        if held is not None:
            span = span_of(held.claim)
            seat.timeline.add(*span, -seat.packed(held.claim.need))
            self._count(number, span, -1)
        return held

    def all_held(self) -> Iterator[tuple[int, Held]]:
        """Go through all claims, seat by seat."""
        return ((number, held) for number, seat in self._seats.items() for held in seat.held.values())

    def fits(self, number: int, span: Span, need: Amount) -> bool:
        """Tell whether a need would stay within a seat's capacity at every moment of a span."""
        seat = self._seats[number]
        return seat.timeline.fits(span.start, span.end, seat.packed(need))

    def added(self, number: int, span: Span) -> list[Span]:
        """Give the time a seat's worker must run in addition for a claim, in order; nothing on a standing seat."""
        if number in self.always or span.start >= span.end:
            return []
        return [piece for idle in self._seats[number].idle(span) for piece in self._added_in(idle, span)]

    def runs(self, number: int) -> list[Span]:
        """Give the times a seat's worker must run for its claims, boot lead included, in order."""
        seat = self._seats[number]
        moments, levels = seat.timeline.moments, seat.timeline.levels
        ends = [*moments[1:], END]
        pieces: list[Span] = []
        for start, end, level in zip(moments, ends, levels, strict=True):
            pieces += [Span(start, end)] if level else self._kept(Span(start, end))
        return joined(pieces)

    def running(self, span: Span) -> int:
        """Add up how long the workers run during a span for their claims; those of standing seats are not counted."""
        if span not in self._sums:
            moments, levels = self.opening.moments, self.opening.levels
            first, last = bisect_right(moments, span.start) - 1, bisect_left(moments, span.end)
            edges = pairwise((span.start, *moments[first + 1 : last], span.end))
            self._sums[span] = sum(
                level * (end - start) for (start, end), level in zip(edges, levels[first:last], strict=True)
            )
        return self._sums[span]

    def _added_in(self, idle: Span, span: Span) -> Iterator[Span]:
        """Give what of an idle time must run once a claim covers a part of it: never less than had to before."""
        ran = self._kept(idle)
        before = ran[0].start if ran else idle.end
        inside = Span(max(idle.start, span.start), min(idle.end, span.end))
        after = (*self._kept(Span(idle.start, inside.start)), inside, *self._kept(Span(inside.end, idle.end)))
        for piece in joined(after):
            if piece.start < before:
                yield Span(piece.start, min(piece.end, before))

    def _kept(self, idle: Span) -> list[Span]:
        """Give the part of an idle time in which the worker runs: all of a short one, the boot at the end of others."""
        if idle.end == END or idle.start >= idle.end:
            return []
        if idle.start != BEGINNING and idle.end - idle.start < self.lead + self.keep:
            return [idle]
        return [Span(idle.end - self.lead, idle.end)] if self.lead else []

    def _count(self, number: int, span: Span, sign: int) -> None:
        self._sums.clear()
        for piece in self.added(number, span):
            self.opening.add(*piece, sign)
            self.time += sign * (piece.end - piece.start)


def span_of(claim: Claim) -> Span:
    """Give the time of a claim."""
    return Span(micros(claim.start), micros(claim.end))


def length(spans: Iterable[Span]) -> int:
    """Add up how long spans are."""
    return sum(span.end - span.start for span in spans)


def joined(spans: Sequence[Span]) -> list[Span]:
    """Join spans that touch; they come in order."""
    made: list[Span] = []
    for span in spans:
        if made and made[-1].end >= span.start:
            made[-1] = Span(made[-1].start, max(made[-1].end, span.end))
        else:
            made.append(span)
    return made


def busiest(counts: Sequence[Timeline], span: Span) -> tuple[int, int]:
    """Give the greatest sum of several counts during a span, and when it is first reached."""
    moments = {span.start}
    for one in counts:
        moments.update(one.moments[bisect_right(one.moments, span.start) : bisect_left(one.moments, span.end)])
    return max(((sum(one.at(moment) for one in counts), moment) for moment in sorted(moments)), key=lambda top: top[0])


def least(left: Amount, right: Amount) -> Amount:
    """Give the smaller of two amounts in each dimension."""
    return Amount(**{name: min(getattr(left, name), getattr(right, name)) for name in DIMENSIONS})


class Demand(NamedTuple):
    """A seat's worker must be launched or resumed at `start_by`, and may be released at `needed_until`, None: never."""

    start_by: datetime
    needed_until: datetime | None


def demand(seats: Seats, now: datetime) -> Mapping[int, Demand]:
    """Say of each seat that needs a worker, now or later, when it does next; a seat without is not needed any more."""
    numbers = range(1, len(seats) + 1)
    standing = {number: Demand(now, None) for number in numbers if number in seats.always}
    others = {number: _next(seats, number, now) for number in numbers if number not in seats.always}
    return standing | {number: found for number, found in others.items() if found}


def next_change(seats: Seats, now: datetime) -> datetime | None:
    """Say when the demand changes next; None if it stays as it is."""
    wanted = demand(seats, now).values()
    moments = [moment for one in wanted for moment in (one.start_by, one.needed_until) if moment and moment > now]
    return min(moments, default=None)


def _next(seats: Seats, number: int, now: datetime) -> Demand | None:
    present = micros(now)
    run = next((run for run in seats.runs(number) if run.end > present), None)
    return Demand(moment_of(run.start), moment_of(run.end)) if run else None
