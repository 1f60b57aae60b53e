"""Plans made from nothing: claims are put on seats one after another, or seat by seat.

Each rule is the best for some bookings, so the packer tries several. Claims that last through times of low demand go
first: they decide which machines run then. The others follow from the last end back, or from the first start on, so
that the machines of an evening, or of a morning, stop or start together. A claim gets the seat on which it adds the
least machine time and leaves the most useful room; what room is worth is the weighted geometric mean of what is left in
each dimension, because a machine that is full in one of them takes no more. A single moment is packed machine by
machine.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from lcm.placement.pack_board import NOWHERE, NeedLanes, PackBoard

_ROOM_POWER: Final = 1.2
"""Above one, because much room on one machine is worth more than little on many."""
_ROOM_WEIGHT: Final = 0.9
_SCARCE: Final = 0.3
"""A dimension that is asked for less than this, compared with the most wanted one, does not matter for the fit."""
_VALLEY: Final = 0.3
"""Demand below this part of the greatest nearby is a time of low demand."""
_NEARBY: Final = 12 * 3_600_000_000
_MOST_KNOWN: Final = 400_000


class StepBudget:
    """How many looks at a seat are left. A search ends when they are used up, so that it is the same on any machine."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps


class Chance:
    """Numbers that look drawn at random, the same for the same seed: a linear congruential generator."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2 + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def fraction(self) -> float:
        """Draw a number from 0 to 1, without 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        return (self._state >> 11) / 9007199254740992

    def below(self, limit: int) -> int:
        """Draw a whole number from 0 to below a limit."""
        return int(self.fraction() * limit)


class DemandLine(NamedTuple):
    """How many machines claims would fill over time: `loads[i]` from `moments[i]` on."""

    moments: Sequence[int]
    loads: Sequence[float]

    def between(self, start: int, end: int) -> Sequence[float]:
        """Return the loads of a time."""
        first = max(0, bisect_right(self.moments, start) - 1)
        return self.loads[first : max(first + 1, bisect_left(self.moments, end))]


def demand_line(board: PackBoard, claims: Iterable[int]) -> DemandLine:
    """Return the demand of claims over time, in the dimension that is wanted the most at each moment."""
    steps: dict[int, int] = {}
    for claim in claims:
        for moment, sign in ((board.starts[claim], 1), (board.ends[claim], -1)):
            steps[moment] = steps.get(moment, 0) + sign * board.needs[claim]
    moments = sorted(steps)
    level, loads = 0, []
    for moment in moments:
        level += steps[moment]
        loads.append(max(board.lanes.fractions(level)))
    return DemandLine(moments, loads)


class RoomValue:
    """What the room that a level leaves on a machine is worth, from 0 to 1 for an empty one."""

    __slots__ = ("_dimensions", "_known", "_power")

    def __init__(self, lanes: NeedLanes, wanted: Sequence[float], power: float = _ROOM_POWER) -> None:
        """Value room by how much is wanted of each dimension."""
        most = max(wanted, default=0.0)
        weights = [one if one > _SCARCE * most else 0.0 for one in wanted]
        powers = [power * weight / (sum(weights) or 1.0) for weight in weights]
        rows = zip(lanes.shifts, lanes.masks, lanes.sizes, powers, strict=True)
        self._dimensions = [(shift, mask, size, one) for shift, mask, size, one in rows if one]
        self._power = power
        self._known: dict[int, float] = {}

    def of(self, level: int) -> float:
        """Return the value of what a level leaves."""
        known = self._known.get(level)
        if known is None:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            known = self._known[level] = self.judge(level)
        return known

    def judge(self, level: int) -> float:
        """Return the value of what a level leaves, computed anew."""
        value = 1.0
        for shift, mask, size, power in self._dimensions:
            value *= max(0.0, 1 - (level >> shift & mask) / size) ** power
        return value

    def share_of(self, level: int) -> float:
        """Return which part of a machine a level takes, in the dimensions that matter, each as far as it is wanted."""
        share: float = sum((level >> shift & mask) / size * power for shift, mask, size, power in self._dimensions)
        return share / self._power


def value_room(board: PackBoard, claims: Iterable[int]) -> RoomValue:
    """Return what room is worth for claims, by the machine time that they want of each dimension."""
    wanted = [0.0] * len(board.lanes.sizes)
    for claim in claims:
        length = board.ends[claim] - board.starts[claim]
        for place, part in enumerate(board.lanes.fractions(board.needs[claim])):
            wanted[place] += part * length
    return RoomValue(board.lanes, wanted)


def lost_room(board: PackBoard, value: RoomValue, claim: int, seat: int) -> float:
    """Return how much useful room a claim takes on a seat over time; less than none where its machine would not run."""
    moments, levels, need = board.moments[seat], board.levels[seat], board.needs[claim]
    start, end = board.starts[claim], board.ends[claim]
    first = bisect_right(moments, start) - 1
    lost = 0.0
    for place in range(first, bisect_left(moments, end, first)):
        lasting = min(end, moments[place + 1]) - max(start, moments[place])
        before = value.of(levels[place]) if levels[place] else 0.0
        lost += lasting * (before - value.of(levels[place] + need))
    return lost


def choose_seat_on_board(board: PackBoard, value: RoomValue, claim: int, seats: Iterable[int]) -> int:
    """Return the seat that takes a claim at the least added time and lost room; NOWHERE if none takes it.

    Of the fresh seats only the first is looked at, and the claim's home.
    """
    start, end, need, home = board.starts[claim], board.ends[claim], board.needs[claim], board.home[claim]
    room, guards = board.top - need, board.guards
    best, least, fresh = NOWHERE, float("inf"), False
    for seat in seats:
        moments, levels = board.moments[seat], board.levels[seat]
        if not board.on_seat[seat] and seat != home and board.is_fresh(seat):
            if fresh:
                continue
            fresh = True
        first = bisect_right(moments, start) - 1
        if (room - levels[first]) & guards != guards:
            continue
        for level in levels[first + 1 : bisect_left(moments, end, first)]:
            if (room - level) & guards != guards:
                break
        else:
            score = float(board.added_time(seat, start, end))
            if home not in {NOWHERE, seat}:
                score += board.price
            score += _ROOM_WEIGHT * lost_room(board, value, claim, seat)
            if score < least:
                best, least = seat, score
    return best


def put_all(board: PackBoard, value: RoomValue, claims: Iterable[int], budget: StepBudget) -> None:
    """Put claims on the seats that suit them best, in their order; those that no seat takes stay off."""
    seats = board.open_seats
    for claim in claims:
        budget.left -= len(seats)
        seat = choose_seat_on_board(board, value, claim, seats)
        if seat != NOWHERE:
            board.put(claim, seat)
    board.begin()


def put_first_fit(board: PackBoard, claims: Iterable[int], budget: StepBudget) -> None:
    """Put claims on the first seats that take them, in their order."""
    for claim in claims:
        seat = next((seat for seat in board.open_seats if board.fits(claim, seat)), NOWHERE)
        budget.left -= len(board.open_seats)
        if seat != NOWHERE:
            board.put(claim, seat)
    board.begin()


PackOrder = Callable[[PackBoard, Sequence[int]], list[int]]
"""A rule that says in which order claims are put on seats."""


def order_by_ends(board: PackBoard, claims: Sequence[int]) -> list[int]:
    """Order claims by their ends, the last first, after those that last through times of low demand."""
    through = _claims_through_valleys(board, claims)
    return sorted(claims, key=lambda claim: (claim not in through, -board.ends[claim], -board.volumes[claim]))


def order_by_starts(board: PackBoard, claims: Sequence[int]) -> list[int]:
    """Order claims by their starts, after those that last through times of low demand."""
    through = _claims_through_valleys(board, claims)
    return sorted(claims, key=lambda claim: (claim not in through, board.starts[claim], -board.volumes[claim]))


def order_by_lengths(board: PackBoard, claims: Sequence[int]) -> list[int]:
    """Order claims by their lengths, the longest first."""
    starts, ends, volumes = board.starts, board.ends, board.volumes
    return sorted(claims, key=lambda claim: (starts[claim] - ends[claim], -volumes[claim]))


ORDERS: Final[Sequence[PackOrder]] = (order_by_ends, order_by_starts, order_by_lengths)


def _claims_through_valleys(board: PackBoard, claims: Sequence[int]) -> set[int]:
    line = demand_line(board, claims)
    found = set()
    for claim in claims:
        start, end = board.starts[claim], board.ends[claim]
        if min(line.between(start, end)) <= _VALLEY * max(line.between(start - _NEARBY, end + _NEARBY)):
            found.add(claim)
    return found


def fill_seat_by_seat(board: PackBoard, claims: Sequence[int], budget: StepBudget) -> None:
    """Open seats one by one: each begins with the longest and largest claim left, and is filled without running longer.

    The next claim for a seat is the one that leaves the least there, as the sum of the squares of what is left.
    """
    left = order_by_lengths(board, claims)
    for seat in board.open_seats:
        first = next((claim for claim in left if board.fits(claim, seat)), NOWHERE)
        while first != NOWHERE and budget.left > 0:
            board.put(first, seat)
            left.remove(first)
            budget.left -= len(left)
            suited = (claim for claim in left if _joins(board, claim, seat))
            first = min(suited, key=lambda claim: _left_over(board, claim, seat), default=NOWHERE)
    board.begin()


def fill_holes(board: PackBoard, claims: Sequence[int]) -> None:
    """Put those claims on seats that fit there without a machine running longer, the longest first."""
    for claim in order_by_lengths(board, claims):
        seat = next((seat for seat in board.open_seats if _joins(board, claim, seat)), NOWHERE)
        if seat != NOWHERE:
            board.put(claim, seat)
    board.begin()


def _joins(board: PackBoard, claim: int, seat: int) -> bool:
    return board.fits(claim, seat) and not board.added_time(seat, board.starts[claim], board.ends[claim])


def _left_over(board: PackBoard, claim: int, seat: int) -> float:
    """Return how much a claim would leave on a seat when it begins, less is better; longer claims count for more."""
    level = board.levels[seat][bisect_right(board.moments[seat], board.starts[claim]) - 1] + board.needs[claim]
    return sum((1 - part) ** 2 for part in board.lanes.fractions(level) if part)
