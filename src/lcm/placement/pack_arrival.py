"""The seat for a session that begins now, when nobody knows who comes next. Pure; there may be a plan for bookings.

Holes of machines that run anyway are filled first. Among them the choice is by three costs in machine time: how much
longer a machine runs for it; the useful room that it takes from others; and how long before its machine's last claim it
ends, because the room that it leaves then is often not wanted any more. So short sessions end up beside short ones, and
few machines run through the night for the sake of one. On a machine that always runs, no end is early. The weights suit
booked months whose sessions come by surprise. What past days were like is not asked: a demand by the hour that is
learned from them gains less than a percent there.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from lcm.placement.pack_board import NOWHERE, PackBoard
from lcm.placement.pack_build import RoomValue, lost_room

_ROOM_WEIGHT: Final = 0.87
_REST_WEIGHT: Final = 0.2
_LONGEST_REST: Final = 40 * 3_600_000_000
"""Whether a machine runs for two days more or for three makes no difference."""


def choose_seat_on_arrival(board: PackBoard, value: RoomValue, claim: int, seats: Iterable[int]) -> int:
    """Return the seat that takes a claim at the least cost; NOWHERE if none takes it.

    Of the fresh seats only the first is looked at.
    """
    best, least, fresh = NOWHERE, float("inf"), False
    for seat in seats:
        if board.is_fresh(seat):
            if fresh:
                continue
            fresh = True
        if board.fits(claim, seat):
            cost = _arrival_cost(board, value, claim, seat)
            if cost < least:
                best, least = seat, cost
    return best


def _arrival_cost(board: PackBoard, value: RoomValue, claim: int, seat: int) -> float:
    start, end = board.starts[claim], board.ends[claim]
    added = board.added_time(seat, start, end)
    until = end if seat in board.standing else _run_end(board, seat, start)
    rest = min(_LONGEST_REST, max(0, until - end))
    share = board.volumes[claim] / (end - start)
    return added + _ROOM_WEIGHT * lost_room(board, value, claim, seat) + _REST_WEIGHT * share * rest


def _run_end(board: PackBoard, seat: int, moment: int) -> int:
    """Return until when a machine has claims without a pause from a moment on; the moment if it has none then."""
    moments, levels = board.moments[seat], board.levels[seat]
    place = bisect_right(moments, moment) - 1
    if not levels[place]:
        return moment
    while levels[place]:
        place += 1
    return moments[place]
