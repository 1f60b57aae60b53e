"""The seats of sessions that begin now."""

from itertools import groupby

import pytest
from hypothesis import given as for_all
from hypothesis import settings

from harness.pack_books import books, pool, run_time
from lcm.model.base.capacity import Amount
from lcm.placement.pack_arrival import order_arrivals, place_arrivals
from lcm.placement.pack_board import NOWHERE, PackBoard
from lcm.placement.pack_forecast import ArrivalForecast
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of

MINUTE = 60_000_000


def add(board: PackBoard, start: int, end: int, **need: int) -> int:
    return board.add(start * MINUTE, end * MINUTE, Amount(**need))


def test_an_arrival_fills_a_hole_of_a_machine_that_runs_and_ends_with_it() -> None:
    board = PackBoard(pool(3))
    long, short, new, large = (
        add(board, 0, end, cpu_millis=cores) for end, cores in ((600, 3), (120, 3), (110, 3), (60, 8))
    )
    board.put(long, 0)
    board.put(short, 1)
    place_arrivals(board, [new], ArrivalForecast())
    place_arrivals(board, [large], ArrivalForecast())
    assert (board.at[new], board.at[large]) == (1, 2)


def test_what_no_seat_takes_stays_off() -> None:
    board = PackBoard(pool(1))
    first, second = (add(board, 0, 60, cpu_millis=5) for _ in range(2))
    place_arrivals(board, [first, second], ArrivalForecast())
    assert sorted(board.at) == [NOWHERE, 0]
    place_arrivals(board, [], ArrivalForecast())


def test_those_that_begin_apart_do_not_arrive_together() -> None:
    board = PackBoard(pool(3))
    with pytest.raises(ValueError, match="several moments"):
        place_arrivals(board, [add(board, start, 60, cpu_millis=1) for start in (0, 30)], ArrivalForecast())


def test_of_those_that_begin_together_the_largest_chooses_first() -> None:
    board = PackBoard(pool(3))
    sizes = ((60, 1), (0, 1), (0, 4), (0, 2))
    claims = [add(board, start, start + 60, cpu_millis=size) for start, size in sizes]
    assert order_arrivals(board, claims) == [claims[2], claims[3], claims[1], claims[0]]


def test_those_that_begin_together_are_packed_together() -> None:
    """Each in turn, those with the most cores and those with the most memory would not meet."""
    board = PackBoard(pool(6))
    sizes = ((5, 2), (3, 6), (5, 2), (3, 6))
    claims = [add(board, 0, 600, cpu_millis=cores, memory_mb=memory) for cores, memory in sizes]
    place_arrivals(board, claims, ArrivalForecast())
    assert len(set(board.at)) == 2


def test_long_ones_join_a_machine_that_runs_for_long_and_short_ones_one_that_ends() -> None:
    board = PackBoard(pool(6))
    night, evening = (add(board, 0, end, cpu_millis=4) for end in (1_440, 130))
    board.put(night, 0)
    board.put(evening, 1)
    claims = [add(board, 0, end, cpu_millis=4) for end in (120, 1_400)]
    place_arrivals(board, claims, ArrivalForecast())
    assert [board.at[one] for one in claims] == [1, 0]


@pytest.mark.parametrize("days", [0, 1, 8])
def test_room_on_a_machine_that_runs_is_taken_whatever_is_known(days: int) -> None:
    board, forecast = PackBoard(pool(3)), ArrivalForecast()
    for day in range(days):
        forecast.learn(board, add(board, day * 1_440 + 540, day * 1_440 + 720, cpu_millis=4))
    there, new = (add(board, 9 * 1_440, 9 * 1_440 + length, cpu_millis=3) for length in (120, 110))
    board.put(there, 1)
    place_arrivals(board, [new], forecast)
    assert board.at[new] == 1


@for_all(books())
@settings(max_examples=60, deadline=None)
def test_all_are_placed_at_once_within_capacity_and_the_time_is_that_of_the_seats(book: list[HeldClaim]) -> None:
    board, forecast = PackBoard(pool()), ArrivalForecast()
    claims = [board.add(*span_of(held.claim), held.claim.need) for held in book]
    for _, together in groupby(order_arrivals(board, claims), board.starts.__getitem__):
        place_arrivals(board, together, forecast)
    plan = {held.holder: board.at[claim] + 1 for held, claim in zip(book, claims, strict=True)}
    assert 0 not in plan.values()
    assert all((board.top - level) & board.guards == board.guards for row in board.levels for level in row)
    assert board.cost == run_time(book, plan)
