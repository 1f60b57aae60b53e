"""The search for other times at which claims could be promised: it leaps over those that cannot work.

What it looks at is counted, so that it ends soon however large a pool is. Pure; `slots` asks it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Final

import msgspec

from lcm.model.base.capacity import DIMENSIONS, NOTHING, Amount, Claim
from lcm.placement.limits import OPENING, Rules, closed_at, no_more
from lcm.placement.seat_choice import asked, candidates, is_plain, seat_for
from lcm.placement.seats import END, STRANGERS_STAY, Seats, Span, span_of
from lcm.placement.timeline import BEGINNING, micros

Together = Callable[[Seats, Sequence[Claim], Rules], int | None]
"""Seats all of several claims on trial, and gives the place of the first that gets none."""
_MICROSECOND: Final = timedelta(microseconds=1)
_QUARTER: Final = timedelta(minutes=15) // _MICROSECOND
_LOOK: Final = 3
"""Microseconds that a look at a seat takes, besides those at its steps."""
_TRIAL: Final = 12
_LIMITS: Final = 60


@dataclass(slots=True)
class Work:
    """What may still be looked at, in about microseconds."""

    left: int

    def spend(self, much: int) -> None:
        """Count what was looked at."""
        self.left -= much

    def bears(self, much: int) -> bool:
        """Count what is about to be looked at; if it goes far beyond what is left, it is not to be."""
        borne = much <= 2 * self.left
        self.left -= much
        return borne


@dataclass(frozen=True, slots=True)
class _Sort:
    """Claims that are alike: the first of them, its place, and how many there are."""

    claim: Claim
    place: int
    count: int
    span: Span

    @property
    def length(self) -> int:
        return self.span.end - self.span.start


class Search:
    """Goes through shifts of claims, in whole steps."""

    def __init__(
        self,
        seats: Seats,
        claims: Sequence[Claim],
        rules: Rules,
        step: timedelta,
        limit: int,
        *,
        together: Together,
    ) -> None:
        """Search within a limit of steps, either way."""
        self._seats = seats
        self._claims = claims
        self._rules = rules
        self._step = step // _MICROSECOND
        self._limit = limit
        self._together = together
        self._sorts = _sorts(claims)
        self._numbers = list(candidates(seats, rules))
        self._alike = _alike(seats, rules, self._numbers)
        self._runs: dict[int, list[Span]] = {}
        self._alone = micros(rules.now + STRANGERS_STAY)
        reach = self._step * limit
        spans = [sort.span for sort in self._sorts]
        whole = Span(min(span.start for span in spans) - reach, max(span.end for span in spans) + reach)
        self._no_more = no_more(seats, Span(max(whole.start, micros(rules.now)), max(whole.end, 0)), rules)
        self._apart = not rules.limited and all(one.end <= two.start for one, two in pairwise(sorted(spans)))

    def later(self, tries: int, work: Work) -> Iterator[int]:
        """Give the shifts to later times that work, the least first."""
        return self._going(1, tries, work)

    def earlier(self, tries: int, work: Work) -> Iterator[int]:
        """Give the shifts to earlier times that work, the least first; none begins in the past."""
        return self._going(-1, tries, work)

    def _going(self, way: int, tries: int, work: Work) -> Iterator[int]:
        steps, hardest = way, self._sorts[0]
        while abs(steps) <= self._limit and tries and work.left > 0:
            landed = self._leap(hardest, steps, way, work)
            if landed is None or abs(landed) > self._limit or self._past(landed):
                return
            found = self._works(landed, work)
            if found is None:
                yield landed
            else:
                hardest = found
            steps, tries = landed + way, tries - 1

    def _past(self, steps: int) -> bool:
        return steps < 0 and min(sort.span.start for sort in self._sorts) + steps * self._step < micros(self._rules.now)

    def _leap(self, sort: _Sort, steps: int, way: int, work: Work) -> int | None:
        """Give the least shift of at least so many steps at which enough seats may have the room for one each."""
        begin = self._within_hours(sort, sort.span.start + steps * self._step, way, work)
        starts: list[int] = []
        for number in self._numbers:
            start = self._room(number, sort, begin, way, work)
            starts += [way * start] * self._alike.get(number, 1) if start is not None else []
        needed = -(-sort.count // self._most(sort))
        if len(starts) < needed:
            return None
        landed = sorted(starts)[needed - 1]
        return way * -(-(landed - way * sort.span.start) // self._step)

    def _most(self, sort: _Sort) -> int:
        """Say how many of a sort an empty seat takes, at the most."""
        need, room = sort.claim.need, self._seats.capacity
        each: list[int] = [getattr(room, name) // getattr(need, name) for name in DIMENSIONS if getattr(need, name)]
        return max(1, min([sort.count, *each]))

    def _within_hours(self, sort: _Sort, start: int, way: int, work: Work) -> int:
        """Give the next start at which the pool's hours do not forbid a claim, as far as the search reaches."""
        hours, reach = self._rules.hours, (self._limit + 1) * self._step
        if hours is None:
            return start
        while abs(start - sort.span.start) <= reach:
            work.spend(_LOOK)
            closed = closed_at(hours, Span(start, start + sort.length))
            if closed is None:
                break
            quarter = closed // _QUARTER * _QUARTER
            start = quarter + _QUARTER if way > 0 else quarter - sort.length
        return start

    def _room(self, number: int, sort: _Sort, start: int, way: int, work: Work) -> int | None:
        """Give the next start at which a seat has the room, and its worker runs anyway where no other may."""
        while True:
            found = self._free(number, sort, start, way, work)
            if found is None or number in self._seats.always:
                return found
            span = Span(found, found + sort.length)
            over = next((one for one in self._no_more if one.start < span.end and span.start < one.end), None)
            if over is None:
                return found
            warm = self._warm(number, sort, found, way, work)
            beyond = over.end if way > 0 else over.start - sort.length
            start = way * min(way * beyond, way * (beyond if warm is None else warm))
            if start == found:
                return found
            if not BEGINNING < start < END:
                return None

    def _free(self, number: int, sort: _Sort, start: int, way: int, work: Work) -> int | None:
        """Give the next start at which a seat has the room: beside labs that no session made, as long as they stay."""
        need, strangers, alone = sort.claim.need, self._seats[number].strangers, self._alone
        if strangers is NOTHING:
            return self._next(number, need, Span(start, start + sort.length), way, work)
        # On each side of the moment from which on they are not reckoned with, in the order of the way.
        sides = [(need + strangers, min(start, alone - 1)), (need, max(start, alone))]
        for asked_for, first in sides[::way]:
            found = self._next(number, asked_for, Span(first, first + sort.length), way, work)
            if found is not None and way * found >= way * start and (found < alone) == (asked_for is not need):
                return found
        return None

    def _next(self, number: int, need: Amount, span: Span, way: int, work: Work) -> int | None:
        seat, length = self._seats[number], span.end - span.start
        if way > 0:
            found = seat.timeline.earliest(span.start, length, seat.packed(need))
        else:
            found = seat.latest(span.start, length, need)
        moments = seat.timeline.moments
        ends = (span.start, END if found is None else found + length) if way > 0 else (found or BEGINNING, span.end)
        work.spend(_LOOK + (bisect_left(moments, ends[1]) - bisect_left(moments, ends[0])) // 4)
        return found

    def _warm(self, number: int, sort: _Sort, start: int, way: int, work: Work) -> int | None:
        """Give the next start at which a seat's worker runs for as long as a claim takes, for the claims it has."""
        if number not in self._runs:
            work.spend(len(self._seats[number].timeline.moments))
            self._runs[number] = self._seats.runs(number)
        runs = self._runs[number]
        work.spend(_LOOK + len(runs) // 4)
        if way > 0:
            starts = (max(start, run.start) for run in runs if run.end - sort.length >= max(start, run.start))
        else:
            latest = ((run, min(start, run.end - sort.length)) for run in reversed(runs))
            starts = (found for run, found in latest if found >= run.start)
        return next(starts, None)

    def _works(self, steps: int, work: Work) -> _Sort | None:
        """Give the sort of claims that cannot all be promised at a shift; None if all can."""
        by = timedelta(microseconds=steps * self._step)
        for sort in self._sorts:
            if not self._enough(sort, by, work):
                return sort
        if self._apart or len(self._claims) == 1:
            return None
        cost = len(self._claims) * (len(self._numbers) * 2 * _LOOK + _LIMITS)
        if not work.bears(cost):
            return self._sorts[0]
        moved = [shifted(claim, by) for claim in self._claims]
        place = self._together(self._seats, moved, self._rules)
        return None if place is None else next(one for one in self._sorts if _like(one.claim, self._claims[place]))

    def _enough(self, sort: _Sort, by: timedelta, work: Work) -> bool:
        claim = shifted(sort.claim, by)
        span, room = span_of(claim), 0
        for number in self._taking(claim, span, work):
            room += self._how_many(number, span, claim, sort.count, work) * self._alike.get(number, 1)
            if room >= sort.count:
                return True
        return False

    def _taking(self, claim: Claim, span: Span, work: Work) -> Iterator[int]:
        """Give the seats that take a claim; those that would have to run at the same times are asked once."""
        answers: dict[object, bool] = {}
        for number in self._numbers:
            work.spend(_LOOK)
            if not self._seats.fits(number, span, asked(self._seats, number, claim, self._rules)):
                continue
            work.spend(2 * _LOOK)
            pieces = self._seats.added(number, span)
            alike = (tuple(pieces), self._rules.usable.get(number))
            if alike not in answers:
                work.spend(_TRIAL + self._limits_cost(pieces))
                answers[alike] = seat_for(self._seats, claim, self._rules, [number]) is not None
            if answers[alike]:
                yield number

    def _limits_cost(self, pieces: Sequence[Span]) -> int:
        """Say what it takes to hold the times at which a worker would run against the limits."""
        if not self._rules.limited or not pieces:
            return 0
        counts, span = (self._seats.opening, *self._rules.sharing), Span(pieces[0].start, pieces[-1].end)
        steps = sum(bisect_left(one.moments, span.end) - bisect_left(one.moments, span.start) for one in counts)
        months = (span.end - span.start) // (28 * 96 * _QUARTER)
        return _LIMITS + months * _LIMITS // 2 + steps * len(counts)

    def _how_many(self, number: int, span: Span, claim: Claim, count: int, work: Work) -> int:
        """Say how many claims like one a seat takes that takes one."""
        if count == 1:
            return 1
        seat = self._seats[number]
        first, more = (seat.packed(need) for need in (asked(self._seats, number, claim, self._rules), claim.need))
        work.spend(_LOOK * count.bit_length())
        others = range(1, count)
        return 1 + bisect_left(others, x=True, key=lambda many: not seat.timeline.fits(*span, first + many * more))


def _sorts(claims: Sequence[Claim]) -> list[_Sort]:
    found: dict[tuple[object, ...], list[int]] = {}
    for place, claim in enumerate(claims):
        found.setdefault((claim.start, claim.end, msgspec.structs.astuple(claim.need)), []).append(place)
    return [_Sort(claims[own[0]], own[0], len(own), span_of(claims[own[0]])) for own in found.values()]


def _alike(seats: Seats, rules: Rules, numbers: Sequence[int]) -> dict[int, int]:
    """Say for which seat others stand that are like it and without any claim, and how many they are with it."""
    spare = len(seats) - len(rules.unsuited) - len(numbers) if rules.policy in OPENING else 0
    unfilled = (one for one in numbers if one not in seats.always and one not in rules.usable)
    fresh = next((one for one in unfilled if is_plain(seats, one)), None)
    return {fresh: 1 + spare} if fresh is not None else {}


def _like(one: Claim, other: Claim) -> bool:
    return (one.start, one.end, one.need) == (other.start, other.end, other.need)


def shifted(claim: Claim, by: timedelta) -> Claim:
    """Give a claim at another time."""
    return msgspec.structs.replace(claim, start=claim.start + by, end=claim.end + by)
