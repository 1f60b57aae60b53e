"""The seats of sessions that begin now, when nobody knows who comes next. Pure; there may be a plan for bookings.

A machine that runs is worth the room that it has until its last claim ends, at the price of `pack_forecast`. Its burden
is less that worth, and more the room that falls empty before its last claim ends, because that is often not wanted any
more. So short sessions end up beside short ones, and few machines run through the night for the sake of one. Sessions
choose the seat that adds the least machine time and burden, the largest first. Of those that begin together, each then
may choose again, and two may change places, where that is better for both together. On a machine that always runs, no
end is early.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from lcm.placement.pack_board import NOWHERE, PackBoard
from lcm.placement.pack_forecast import ArrivalForecast

_HOUR: Final = 3_600_000_000
_TIME_WEIGHT: Final = 0.98
_REST_WEIGHT: Final = 0.08
_LONGEST_REST: Final = 32 * _HOUR
"""Room that falls empty longer than this before the end is not counted more."""
_SWEEPS: Final = 2
_MOST_SWAPPED: Final = 40
"""Of more sessions that begin together, only the largest change places."""
_GAIN: Final = 1.0
"""What is better by less is not: sums are not exact."""


def order_arrivals(board: PackBoard, claims: Iterable[int]) -> list[int]:
    """Return claims in the order in which they choose their seats: by their starts, and then the largest first."""
    return sorted(claims, key=lambda claim: (board.starts[claim], -board.volumes[claim]))


def place_arrivals(board: PackBoard, claims: Iterable[int], forecast: ArrivalForecast) -> None:
    """Put claims that begin at one moment on seats, and let the forecast learn of them.

    Those that no seat takes stay off. Raise ValueError for claims that begin at several moments.
    """
    ordered = order_arrivals(board, claims)
    if len({board.starts[claim] for claim in ordered}) > 1:
        raise ValueError("claims that begin at several moments do not arrive together")
    if ordered:
        group = _ArrivalGroup(board, ordered, forecast)
        group.put_all()
        for _ in range(_SWEEPS if len(ordered) > 1 else 0):
            if not group.improve():
                break
        board.begin()
        for claim in ordered:
            forecast.learn(board, claim)


class _ArrivalGroup:
    """Claims that begin together, and what the machines are worth to which they may go."""

    def __init__(self, board: PackBoard, claims: Sequence[int], forecast: ArrivalForecast) -> None:
        self._board = board
        self._claims = claims
        self._now = board.starts[claims[0]]
        self._value = forecast.room_value(board, claims, self._now)
        self._price = forecast.room_price(board, self._value, self._now)
        self._seats = board.seats_in_use()
        self._burdens: dict[int, float] = {}

    def put_all(self) -> None:
        for claim in self._claims:
            seat, _ = self._choose_seat(claim)
            if seat != NOWHERE:
                self._put(claim, seat)

    def improve(self) -> bool:
        """Choose anew for each, then exchange pairs; return whether any moved."""
        there = [claim for claim in self._claims if self._board.at[claim] != NOWHERE]
        chosen = [self._choose_again(claim) for claim in there]
        changed = [self._change_places(one, other) for one, other in combinations(there[:_MOST_SWAPPED], 2)]
        return any(chosen) or any(changed)

    def _put(self, claim: int, seat: int) -> None:
        fresh = self._board.is_fresh(seat)
        self._board.put(claim, seat)
        self._burdens.pop(seat, None)
        if fresh:
            self._seats = self._board.seats_in_use()

    def _take(self, claim: int) -> int:
        seat = self._board.at[claim]
        self._board.take(claim)
        self._burdens.pop(seat, None)
        return seat

    def _choose_again(self, claim: int) -> bool:
        own = self._take(claim)
        limit = self._added_cost(claim, own) - _GAIN
        seat, cost = self._choose_seat(claim)
        self._put(claim, seat if cost < limit else own)
        return cost < limit

    def _change_places(self, one: int, other: int) -> bool:
        board = self._board
        first, second = board.at[one], board.at[other]
        if first == second or not (self._has_room(first, one, other) and self._has_room(second, other, one)):
            return False
        self._take(one)
        self._take(other)
        stay = self._added_cost(one, first) + self._added_cost(other, second)
        change = self._added_cost(one, second) + self._added_cost(other, first)
        better = change < stay - _GAIN and board.fits(one, second) and board.fits(other, first)
        self._put(one, second if better else first)
        self._put(other, first if better else second)
        return better

    def _has_room(self, seat: int, leaving: int, coming: int) -> bool:
        """Return whether a claim could take another's place on a seat, as far as this moment shows."""
        board = self._board
        level = board.levels[seat][bisect_right(board.moments[seat], self._now) - 1]
        room, guards = board.top - level + board.needs[leaving] - board.needs[coming], board.guards
        return bool(room & guards == guards)

    def _choose_seat(self, claim: int) -> tuple[int, float]:
        """Return the seat that takes a claim at the least cost, and that; NOWHERE if none takes it."""
        board = self._board
        best, least = NOWHERE, float("inf")
        for seat in self._seats:
            if board.fits(claim, seat):
                cost = self._added_cost(claim, seat)
                if cost < least:
                    best, least = seat, cost
        return best, least

    def _added_cost(self, claim: int, seat: int) -> float:
        board, end = self._board, self._board.ends[claim]
        known = self._burdens.get(seat)
        if known is None:
            known = self._burdens[seat] = self._burden(seat, 0, self._now)
        added = board.added_time(seat, self._now, end)
        return _TIME_WEIGHT * added + self._burden(seat, board.needs[claim], end) - known

    def _burden(self, seat: int, need: int, end: int) -> float:
        """Return what a machine with a need until an end takes from the worth of others, in machine time."""
        run = self._find_run(seat, need, end)
        if not run:
            return 0.0
        value, price, until = self._value, self._price, run[-1][0]
        begin, rest_from = self._now, 0 if seat in self._board.standing else max(0, until - _LONGEST_REST)
        share, (steady, lasting), burden = value.share_of(run[0][1]), price.until(begin), 0.0
        for stop, level in run:
            steady_then, lasting_then = price.until(stop)
            stay = price.stay(until - (begin + stop) / 2)
            burden -= (steady_then - steady + (lasting_then - lasting) * stay) * value.of(level)
            if rest_from and stop > rest_from:
                burden += _REST_WEIGHT * (stop - max(begin, rest_from)) * max(0.0, share - value.share_of(level))
            begin, steady, lasting = stop, steady_then, lasting_then
        return burden

    def _find_run(self, seat: int, need: int, end: int) -> list[tuple[int, int]]:
        """Return the levels of a machine while it has claims from now on, each with its end, with a need until an end.

        A machine that always runs is worth no more than others when it has none.
        """
        moments, levels = self._board.moments[seat], self._board.levels[seat]
        place, begin = bisect_right(moments, self._now) - 1, self._now
        always = int(seat in self._board.standing)
        run: list[tuple[int, int]] = []
        while True:
            level, stop = levels[place] - always, moments[place + 1]
            place += 1
            if begin < end:
                level += need
                if stop > end:
                    place, stop = place - 1, end
            if not level:
                return run
            run.append((stop, level))
            begin = stop
