"""Better seats for what is promised already: the same claims at the same times, with fewer hours of workers.

A booking gets its seat when nobody knows what comes later, so that seats fill up badly. A promise is of capacity, not
of a seat: until its worker is started a claim may change its seat. The pool's follower does so before it launches
anything. Every change is kept only if it saves worker time and goes through the same rules as a booking.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import combinations
from typing import Final, NamedTuple

from lcm.model.base.capacity import Amount, utilization
from lcm.placement.limits import Rules
from lcm.placement.request import Held
from lcm.placement.seat_choice import candidates, seat_for
from lcm.placement.seats import Seats, Span, joined, span_of
from lcm.placement.timeline import micros

LOOKS: Final = 100_000
"""How often a seat is looked at for a claim before it is left at that: some microseconds each."""
MOST_AT_ONCE: Final = 60
"""Claims that change their seats in one step: each is a write, and a transaction holds no more than 128."""
_WORTH: Final = 60_000_000
"""Changing seats is work as well: less than a minute saved is not worth it."""


class Move(NamedTuple):
    """A claim that changes its seat."""

    held: Held
    before: int
    after: int


class _Taken(NamedTuple):
    """A claim off its seat, with what decides in which order claims are seated again."""

    number: int
    held: Held
    span: Span
    share: float

    @property
    def long(self) -> int:
        return self.span.end - self.span.start


_Order = Callable[[_Taken], tuple[float, ...]]
_ORDERS: Final[Sequence[_Order]] = (
    lambda one: (-one.long * one.share,),
    lambda one: (one.span.start, -one.share),
    lambda one: (-one.long, -one.share),
    lambda one: (-one.share, -one.long),
    lambda one: (-one.span.end, -one.share),
    lambda one: (one.span.start, -one.span.end),
)
"""Each is the best for some timetable."""


def reseat(seats: Seats, *, rules: Rules, since: datetime, looks: int = LOOKS) -> list[list[Move]]:
    """Seat claims anew that begin at `since` or later; `seats` is changed accordingly.

    Gives steps to be taken one after another, each as a whole: after each of them no seat is over-committed that was
    not before, and workers run for a shorter time.
    """
    search = _Search(seats, rules, micros(since), looks)
    search.run()
    return search.steps


class _Search:
    """Takes claims off their seats, seats them again in some order, and goes back if that was no better."""

    def __init__(self, seats: Seats, rules: Rules, since: int, looks: int) -> None:
        self.steps: list[list[Move]] = []
        self._seats = seats
        self._rules = rules
        self._since = since
        self._looks = looks
        self._changed = dict.fromkeys(range(1, len(seats) + 1), 0)
        self._tried: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Go on until nothing is found any more, or for as many looks as are allowed."""
        self._together()
        while self._looks > 0 and self._pairs() | self._runs():
            pass

    def _together(self) -> None:
        for window in self._windows(self._numbers()):
            numbers = self._numbers()
            self._any_order(numbers, numbers, window)

    def _pairs(self) -> bool:
        """Divide what two seats have in a better way between them."""
        better = False
        for pair in combinations(self._numbers(), 2):
            if self._tried.get(pair, -1) < max(self._changed[number] for number in pair):
                self._tried[pair] = len(self.steps)
                for window in self._windows(pair):
                    better |= self._any_order(pair, pair, window)
        return better

    def _runs(self) -> bool:
        """Try to do without each stretch of a seat's time."""
        better = False
        for number in self._numbers():
            for window in self._windows([number]):
                better |= self._any_order([number], self._numbers(), window)
        return better

    def _any_order(self, off: Sequence[int], onto: Sequence[int], window: Span) -> bool:
        before = len(self.steps)
        for order in _ORDERS:
            taken = list(self._movable(off, window))
            if len(taken) > 1 and self._looks > 0:
                self._again(sorted(taken, key=order), onto)
        return len(self.steps) > before

    def _again(self, taken: Sequence[_Taken], onto: Sequence[int]) -> None:
        goal = self._seats.time - _WORTH
        self._release((one.number, one.held) for one in taken)
        seated = self._seated(taken, onto, goal)
        moves = [Move(one.held, one.number, number) for one, number in zip(taken, seated, strict=False)]
        changed = [move for move in moves if move.before != move.after]
        if len(seated) == len(taken) and self._seats.time <= goal and len(changed) <= MOST_AT_ONCE:
            self.steps.append(changed)
            for move in changed:
                self._changed[move.before] = self._changed[move.after] = len(self.steps)
            return
        self._release((move.after, move.held) for move in moves)
        for one in taken:
            self._seats.hold(one.number, one.held)

    def _seated(self, taken: Iterable[_Taken], onto: Sequence[int], goal: int) -> list[int]:
        """Seat claims one by one, until their workers would run for longer than they may."""
        seated: list[int] = []
        for one in taken:
            self._looks -= len(onto)
            number = seat_for(self._seats, one.held.claim, self._rules, onto)
            if number is None or self._seats.time > goal:
                break
            self._seats.hold(number, one.held)
            seated.append(number)
        return seated

    def _release(self, seated: Iterable[tuple[int, Held]]) -> None:
        for number, held in seated:
            self._seats.release(number, held.holder)

    def _numbers(self) -> list[int]:
        return list(candidates(self._seats, self._rules))

    def _windows(self, numbers: Iterable[int]) -> list[Span]:
        """Give the times in which any of these seats has a worker; what lies in two of them has nothing in common."""
        runs = sorted(run for number in numbers for run in self._seats.runs(number))
        return [window for window in joined(runs) if window.end > self._since]

    def _movable(self, numbers: Iterable[int], window: Span) -> Iterator[_Taken]:
        for number in numbers:
            seat = self._seats[number]
            for held in seat.held.values():
                span = span_of(held.claim)
                if max(self._since, window.start) <= span.start < window.end:
                    yield _Taken(number, held, span, _share(held.claim.need, self._seats.capacity))


def _share(need: Amount, capacity: Amount) -> float:
    return max(utilization(need, capacity).values())
