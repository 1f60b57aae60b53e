"""When the workers of seats are started and released."""

from datetime import datetime
from itertools import pairwise

from hypothesis import strategies as st

from harness.given import (
    KEEP,
    LEAD,
    MINUTE,
    at,
    books,
    filled,
    on,
    plainly_running,
    seat_claim,
    seats,
)
from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.seats import SeatDemand, Seats, seat_demand

LAB = Amount(cpu_millis=1, memory_mb=1, labs=1)
WHOLE = Amount(cpu_millis=4, memory_mb=1, labs=1)
minutes = st.integers(-60, 800)


@for_all(books, minutes)
def test_a_worker_is_wanted_exactly_while_it_must_run(book: list[Claim], now: int) -> None:
    pool = filled(seats(), [(place % 3 + 1, one) for place, one in enumerate(book)])
    wanted = seat_demand(pool, at(now))
    for number in (1, 2, 3):
        running = sorted(minute for minute in plainly_running(on(pool, number)) if minute >= now)
        assert (number in wanted) == bool(running)
        if running:
            start_by, until = wanted[number]
            assert (start_by <= at(now)) == (running[0] == now)
            assert until is not None
            assert start_by == at(running[0]) or running[0] == now
            gone = next(minute for minute in range(running[0], running[-1] + 2) if minute not in running)
            assert until == at(gone)


@for_all(books)
def test_no_worker_is_released_to_be_started_again_at_once(book: list[Claim]) -> None:
    pool = filled(seats(1), [(1, one) for one in book])
    runs = pool.runs(1)
    for before, after in pairwise(runs):
        assert after.start - before.end >= KEEP * 60_000_000


@for_all(books, minutes)
def test_nothing_changes_before_the_next_change(book: list[Claim], now: int) -> None:
    pool = filled(seats(), [(place % 3 + 1, one) for place, one in enumerate(book)])
    moments = [moment for one in seat_demand(pool, at(now)).values() for moment in one if moment and moment > at(now)]
    until = min(moments, default=None)
    if until is None:
        assert not seat_demand(pool, at(now))
    else:
        assert until > at(now)
        assert _running(pool, at(now)) == _running(pool, until - MINUTE)
        assert _running(pool, at(now)) != _running(pool, until)


def _running(pool: Seats, now: datetime) -> set[int]:
    return {number for number, one in seat_demand(pool, now).items() if one.start_by <= now}


def test_lesson_22_who_looks_late_or_again_gets_the_same_answer() -> None:
    pool = filled(seats(), [(2, seat_claim(60, 120, LAB))])
    expected = {2: SeatDemand(at(60 - LEAD), at(120))}
    assert all(seat_demand(pool, at(now)) == expected for now in (-1000, 34, 35, 36, 60, 119))


def test_lesson_21_a_slot_that_was_missed_asks_for_nothing_any_more() -> None:
    assert seat_demand(filled(seats(), [(2, seat_claim(60, 120, LAB))]), at(120)) == {}


def test_a_standing_seat_is_never_released() -> None:
    pool = filled(seats(standing=1), [(1, seat_claim(60, 120, LAB))])
    assert seat_demand(pool, at(500)) == {1: SeatDemand(at(500), None)}
