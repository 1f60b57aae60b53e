"""The search for other times at which claims could be promised. Pure; called by `lcm.placement.promise`.

It skips times that cannot work. What it looks at is counted against a `WorkBudget`, so that it ends soon however large
a pool is.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Final

import msgspec

from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount, Claim
from lcm.placement.limits import OPENING_POLICIES, PromiseRules, exhausted_times
from lcm.placement.seat_choice import candidate_seats, choose_seat, is_plain, required_room
from lcm.placement.seats import FOREIGN_LABS_STAY, Seats, Span, span_of
from lcm.placement.timeline import BEGINNING, END, micros

GroupTrial = Callable[[Seats, Sequence[Claim], PromiseRules], int | None]
"""Seats all of several claims on trial, and returns the index of the first that gets none."""
_MICROSECOND: Final = timedelta(microseconds=1)
_QUARTER_MICROS: Final = timedelta(minutes=15) // _MICROSECOND
_LOOK_MICROS: Final = 3
"""Microseconds that a look at a seat takes, besides those for the steps of its timeline."""
_TRIAL_MICROS: Final = 12
_LIMITS_MICROS: Final = 60


@dataclass(slots=True)
class WorkBudget:
    """How much a search may still look at, in about microseconds."""

    left: int


@dataclass(frozen=True, slots=True)
class _ClaimGroup:
    """Claims that are alike: the first of them, its index, and how many there are."""

    claim: Claim
    place: int
    count: int
    span: Span

    @property
    def length(self) -> int:
        return self.span.end - self.span.start


class SlotSearch:
    """A search through shifts of claims, in whole steps."""

    def __init__(
        self,
        seats: Seats,
        claims: Sequence[Claim],
        rules: PromiseRules,
        step: timedelta,
        limit: int,
        *,
        together: GroupTrial,
    ) -> None:
        """Search up to `limit` steps in either direction."""
        self._seats = seats
        self._claims = claims
        self._rules = rules
        self._step = step // _MICROSECOND
        self._limit = limit
        self._together = together
        self._groups = _group_claims(claims)
        self._numbers = list(candidate_seats(seats, rules))
        self._alike_counts = _count_alike(seats, rules, self._numbers)
        self._runs: dict[int, list[Span]] = {}
        self._foreign_labs_end = micros(rules.now + FOREIGN_LABS_STAY)
        reach = self._step * limit
        spans = [sort.span for sort in self._groups]
        whole = Span(min(span.start for span in spans) - reach, max(span.end for span in spans) + reach)
        self._exhausted_times = exhausted_times(
            seats, Span(max(whole.start, micros(rules.now)), max(whole.end, 0)), rules
        )
        self._is_disjoint = not rules.has_limits and all(one.end <= two.start for one, two in pairwise(sorted(spans)))

    def later(self, tries: int, work: WorkBudget) -> Iterator[int]:
        """Iterate over the shifts to later times that work, the least first."""
        return self._find_shifts(1, tries, work)

    def earlier(self, tries: int, work: WorkBudget) -> Iterator[int]:
        """Iterate over the shifts to earlier times that work, the least first; none begins in the past."""
        return self._find_shifts(-1, tries, work)

    def _find_shifts(self, way: int, tries: int, work: WorkBudget) -> Iterator[int]:
        steps, hardest, first = way, self._groups[0], min(sort.span.start for sort in self._groups)
        while abs(steps) <= self._limit and tries and work.left > 0:
            candidate = self._next_candidate(hardest, steps, way, work)
            if candidate is None or abs(candidate) > self._limit:
                return
            if candidate < 0 and first + candidate * self._step < micros(self._rules.now):
                return
            found = self._blocking_group(candidate, work)
            if found is None:
                yield candidate
            else:
                hardest = found
            steps, tries = candidate + way, tries - 1

    def _next_candidate(self, sort: _ClaimGroup, steps: int, way: int, work: WorkBudget) -> int | None:
        """Return the least shift of at least so many steps at which enough seats may have room for one claim each."""
        begin = self._next_open_start(sort, sort.span.start + steps * self._step, way, work)
        starts: list[int] = []
        for number in self._numbers:
            start = self._next_allowed_start(number, sort, begin, way, work)
            starts += [way * start] * self._alike_counts.get(number, 1) if start is not None else []
        needed = -(-sort.count // self._most_per_seat(sort))
        if len(starts) < needed:
            return None
        candidate = sorted(starts)[needed - 1]
        return way * -(-(candidate - way * sort.span.start) // self._step)

    def _most_per_seat(self, sort: _ClaimGroup) -> int:
        """Return how many claims of a group an empty seat takes at most."""
        need, room = sort.claim.need, self._seats.capacity
        each: list[int] = [getattr(room, name) // getattr(need, name) for name in DIMENSIONS if getattr(need, name)]
        return max(1, min([sort.count, *each]))

    def _next_open_start(self, sort: _ClaimGroup, start: int, way: int, work: WorkBudget) -> int:
        """Return the next start at which the pool is open for a claim, as far as the search reaches."""
        times, reach = self._rules.times, (self._limit + 1) * self._step
        if start < times.paused_until:
            start = times.paused_until if way > 0 else BEGINNING
        while abs(start - sort.span.start) <= reach:
            work.left -= _LOOK_MICROS
            closed = times.first_closed_moment(Span(start, start + sort.length))
            if closed is None:
                break
            quarter = closed // _QUARTER_MICROS * _QUARTER_MICROS
            start = quarter + _QUARTER_MICROS if way > 0 else quarter - sort.length
        return start

    def _next_allowed_start(self, number: int, sort: _ClaimGroup, start: int, way: int, work: WorkBudget) -> int | None:
        """Return the next start at which a seat has the room, and its worker runs anyway where no other may."""
        while True:
            found = self._next_free_start(number, sort, start, way, work)
            if found is None or number in self._seats.always:
                return found
            span = Span(found, found + sort.length)
            over = next((one for one in self._exhausted_times if one.start < span.end and span.start < one.end), None)
            if over is None:
                return found
            warm = self._next_running_start(number, sort, found, way, work)
            beyond = over.end if way > 0 else over.start - sort.length
            start = way * min(way * beyond, way * (beyond if warm is None else warm))
            if start == found:
                return found
            if not BEGINNING < start < END:
                return None

    def _next_free_start(self, number: int, sort: _ClaimGroup, start: int, way: int, work: WorkBudget) -> int | None:
        """Return the next start at which a seat has the room, beside labs that no session made while they stay."""
        need, strangers, alone = sort.claim.need, self._seats[number].strangers, self._foreign_labs_end
        if strangers is ZERO_AMOUNT:
            return self._next_fit(number, need, Span(start, start + sort.length), way, work)
        # Search before and after the moment these labs are expected to be gone, in the direction of the search.
        sides = [(need + strangers, min(start, alone - 1)), (need, max(start, alone))]
        for asked_for, first in sides[::way]:
            found = self._next_fit(number, asked_for, Span(first, first + sort.length), way, work)
            if found is not None and way * found >= way * start and (found < alone) == (asked_for is not need):
                return found
        return None

    def _next_fit(self, number: int, need: Amount, span: Span, way: int, work: WorkBudget) -> int | None:
        seat, length = self._seats[number], span.end - span.start
        if way > 0:
            found = seat.timeline.earliest(span.start, length, seat.pack_need(need))
        else:
            found = seat.latest(span.start, length, need)
        moments = seat.timeline.moments
        ends = (span.start, END if found is None else found + length) if way > 0 else (found or BEGINNING, span.end)
        work.left -= _LOOK_MICROS + (bisect_left(moments, ends[1]) - bisect_left(moments, ends[0])) // 4
        return found

    def _next_running_start(self, number: int, sort: _ClaimGroup, start: int, way: int, work: WorkBudget) -> int | None:
        """Return the next start at which a seat's worker already runs for as long as a claim takes."""
        if number not in self._runs:
            work.left -= len(self._seats[number].timeline.moments)
            self._runs[number] = self._seats.runs(number)
        runs = self._runs[number]
        work.left -= _LOOK_MICROS + len(runs) // 4
        if way > 0:
            starts = (max(start, run.start) for run in runs if run.end - sort.length >= max(start, run.start))
        else:
            latest = ((run, min(start, run.end - sort.length)) for run in reversed(runs))
            starts = (found for run, found in latest if found >= run.start)
        return next(starts, None)

    def _blocking_group(self, steps: int, work: WorkBudget) -> _ClaimGroup | None:
        """Return the group of claims that cannot all be promised at a shift; None if all can."""
        by = timedelta(microseconds=steps * self._step)
        for sort in self._groups:
            if not self._has_enough_seats(sort, by, work):
                return sort
        if self._is_disjoint or len(self._claims) == 1:
            return None
        cost = len(self._claims) * (len(self._numbers) * 2 * _LOOK_MICROS + _LIMITS_MICROS)
        is_affordable = cost <= 2 * work.left
        work.left -= cost
        if not is_affordable:
            return self._groups[0]
        moved = [shift_claim(claim, by) for claim in self._claims]
        place = self._together(self._seats, moved, self._rules)
        if place is None:
            return None
        lost = self._claims[place]
        facts = lost.start, lost.end, lost.need
        return next(one for one in self._groups if (one.claim.start, one.claim.end, one.claim.need) == facts)

    def _has_enough_seats(self, sort: _ClaimGroup, by: timedelta, work: WorkBudget) -> bool:
        claim = shift_claim(sort.claim, by)
        span, room = span_of(claim), 0
        for number in self._seats_taking(claim, span, work):
            room += self._count_fitting(number, span, claim, sort.count, work) * self._alike_counts.get(number, 1)
            if room >= sort.count:
                return True
        return False

    def _seats_taking(self, claim: Claim, span: Span, work: WorkBudget) -> Iterator[int]:
        """Iterate over the seats that take a claim; of those that would run at the same times only one is asked."""
        answers: dict[object, bool] = {}
        for number in self._numbers:
            work.left -= _LOOK_MICROS
            if not self._seats.fits(number, span, required_room(self._seats, number, claim, self._rules)):
                continue
            work.left -= 2 * _LOOK_MICROS
            pieces = self._seats.added_runtime(number, span)
            alike = (tuple(pieces), self._rules.usable.get(number))
            if alike not in answers:
                work.left -= _TRIAL_MICROS + self._limits_cost(pieces)
                answers[alike] = choose_seat(self._seats, claim, self._rules, [number]) is not None
            if answers[alike]:
                yield number

    def _limits_cost(self, pieces: Sequence[Span]) -> int:
        """Return the cost of checking the times at which a worker would run against the limits."""
        if not self._rules.has_limits or not pieces:
            return 0
        counts, span = (self._seats.opening, *self._rules.sharing), Span(pieces[0].start, pieces[-1].end)
        steps = sum(bisect_left(one.moments, span.end) - bisect_left(one.moments, span.start) for one in counts)
        months = (span.end - span.start) // (28 * 96 * _QUARTER_MICROS)
        return _LIMITS_MICROS + months * _LIMITS_MICROS // 2 + steps * len(counts)

    def _count_fitting(self, number: int, span: Span, claim: Claim, count: int, work: WorkBudget) -> int:
        """Return how many claims like this one fit on a seat that takes one."""
        if count == 1:
            return 1
        seat = self._seats[number]
        first, more = (
            seat.pack_need(need) for need in (required_room(self._seats, number, claim, self._rules), claim.need)
        )
        work.left -= _LOOK_MICROS * count.bit_length()
        others = range(1, count)
        return 1 + bisect_left(others, x=True, key=lambda many: not seat.timeline.fits(*span, first + many * more))


def _group_claims(claims: Sequence[Claim]) -> list[_ClaimGroup]:
    found: dict[tuple[object, ...], list[int]] = {}
    for place, claim in enumerate(claims):
        found.setdefault((claim.start, claim.end, msgspec.structs.astuple(claim.need)), []).append(place)
    return [_ClaimGroup(claims[own[0]], own[0], len(own), span_of(claims[own[0]])) for own in found.values()]


def _count_alike(seats: Seats, rules: PromiseRules, numbers: Sequence[int]) -> dict[int, int]:
    """Return the seat that stands for all seats like it without any claim, with their number; {} if there is none."""
    spare = len(seats) - len(rules.unsuited) - len(numbers) if rules.policy in OPENING_POLICIES else 0
    unfilled = (one for one in numbers if one not in seats.always and one not in rules.usable)
    fresh = next((one for one in unfilled if is_plain(seats, one)), None)
    return {fresh: 1 + spare} if fresh is not None else {}


def shift_claim(claim: Claim, by: timedelta) -> Claim:
    """Return a claim moved by some time."""
    return msgspec.structs.replace(claim, start=claim.start + by, end=claim.end + by)
