"""Better seats for what is already promised: the same claims at the same times, with fewer worker hours.

A booking gets its seat before later bookings are known, so seats fill up badly. A promise is of capacity, not of a
seat: until its worker is started, a claim may change its seat. The pool controller repacks before it launches
anything. A change is kept only if it saves worker time and passes the same rules as a booking.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import combinations
from typing import Final, NamedTuple

from lcm.model.base.capacity import utilization
from lcm.placement.limits import PromiseRules
from lcm.placement.request import HeldClaim
from lcm.placement.seat_choice import candidate_seats, choose_seat
from lcm.placement.seats import Seats, Span, join_spans, span_of
from lcm.placement.timeline import micros

MOST_LOOKS: Final = 100_000
"""How often a seat is looked at for a claim before the search ends; each look takes some microseconds."""
MOST_MOVES: Final = 60
"""The most claims that change their seats in one step: each is a write, and a transaction holds at most 128."""
_WORTH_MICROS: Final = 60_000_000
"""Changing seats is work as well: less than a minute saved is not worth it."""


class SeatMove(NamedTuple):
    """A claim that changes its seat."""

    held: HeldClaim
    before: int
    after: int


class _LiftedClaim(NamedTuple):
    """A claim taken off its seat, with what decides the order in which claims are seated again."""

    number: int
    held: HeldClaim
    span: Span
    share: float

    @property
    def length(self) -> int:
        return self.span.end - self.span.start


_Order = Callable[[_LiftedClaim], tuple[float, ...]]
_ORDERS: Final[Sequence[_Order]] = (
    lambda one: (-one.length * one.share,),
    lambda one: (one.span.start, -one.share),
    lambda one: (-one.length, -one.share),
    lambda one: (-one.share, -one.length),
    lambda one: (-one.span.end, -one.share),
    lambda one: (one.span.start, -one.span.end),
)
"""Each is the best for some timetable."""


def repack_seats(
    seats: Seats, *, rules: PromiseRules, since: datetime, looks: int = MOST_LOOKS
) -> list[list[SeatMove]]:
    """Move claims that begin at `since` or later to better seats; `seats` is changed accordingly.

    Returns steps to be taken one after another, each as a whole. After each of them no seat is over-committed that was
    not before, and workers run for a shorter time.
    """
    search = _RepackSearch(seats, rules, micros(since), looks)
    search.run()
    return search.steps


class _RepackSearch:
    """Takes claims off their seats, seats them again in some order, and goes back if that was no better."""

    def __init__(self, seats: Seats, rules: PromiseRules, since: int, looks: int) -> None:
        self.steps: list[list[SeatMove]] = []
        self._seats = seats
        self._rules = rules
        self._since = since
        self._looks = looks
        self._changed_at_step = dict.fromkeys(range(1, len(seats) + 1), 0)
        self._tried_at_step: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Search until nothing better is found, or the allowed looks are used up."""
        for window in self._windows(self._candidate_numbers()):
            numbers = self._candidate_numbers()
            self._try_orders(numbers, numbers, window)
        while self._looks > 0 and self._repack_pairs() | self._dissolve_runs():
            pass

    def _repack_pairs(self) -> bool:
        """Redistribute the claims of two seats between them."""
        better = False
        for pair in combinations(self._candidate_numbers(), 2):
            if self._tried_at_step.get(pair, -1) < max(self._changed_at_step[number] for number in pair):
                self._tried_at_step[pair] = len(self.steps)
                for window in self._windows(pair):
                    better |= self._try_orders(pair, pair, window)
        return better

    def _dissolve_runs(self) -> bool:
        """Try to do without each stretch of a seat's running time."""
        better = False
        for number in self._candidate_numbers():
            for window in self._windows([number]):
                better |= self._try_orders([number], self._candidate_numbers(), window)
        return better

    def _try_orders(self, off: Sequence[int], onto: Sequence[int], window: Span) -> bool:
        before = len(self.steps)
        for order in _ORDERS:
            taken = list(self._movable(off, window))
            if len(taken) > 1 and self._looks > 0:
                self._try_order(sorted(taken, key=order), onto)
        return len(self.steps) > before

    def _try_order(self, taken: Sequence[_LiftedClaim], onto: Sequence[int]) -> None:
        goal = self._seats.time - _WORTH_MICROS
        self._release((one.number, one.held) for one in taken)
        seated = self._seat_claims(taken, onto, goal)
        moves = [SeatMove(one.held, one.number, number) for one, number in zip(taken, seated, strict=False)]
        changed = [move for move in moves if move.before != move.after]
        if len(seated) == len(taken) and self._seats.time <= goal and len(changed) <= MOST_MOVES:
            self.steps.append(changed)
            for move in changed:
                self._changed_at_step[move.before] = self._changed_at_step[move.after] = len(self.steps)
            return
        self._release((move.after, move.held) for move in moves)
        for one in taken:
            self._seats.hold(one.number, one.held)

    def _seat_claims(self, taken: Iterable[_LiftedClaim], onto: Sequence[int], goal: int) -> list[int]:
        """Seat claims one by one, until their workers would run for longer than the goal."""
        seated: list[int] = []
        for one in taken:
            self._looks -= len(onto)
            number = choose_seat(self._seats, one.held.claim, self._rules, onto)
            if number is None or self._seats.time > goal:
                break
            self._seats.hold(number, one.held)
            seated.append(number)
        return seated

    def _release(self, seated: Iterable[tuple[int, HeldClaim]]) -> None:
        for number, held in seated:
            self._seats.release(number, held.holder)

    def _candidate_numbers(self) -> list[int]:
        return list(candidate_seats(self._seats, self._rules))

    def _windows(self, numbers: Iterable[int]) -> list[Span]:
        """Return the times in which any of these seats has a worker; claims of different windows are independent."""
        runs = sorted(run for number in numbers for run in self._seats.runs(number))
        return [window for window in join_spans(runs) if window.end > self._since]

    def _movable(self, numbers: Iterable[int], window: Span) -> Iterator[_LiftedClaim]:
        for number in numbers:
            seat = self._seats[number]
            for held in seat.held.values():
                span = span_of(held.claim)
                if max(self._since, window.start) <= span.start < window.end:
                    share = max(utilization(held.claim.need, self._seats.capacity).values())
                    yield _LiftedClaim(number, held, span, share)
