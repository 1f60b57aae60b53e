"""When seats' workers are started and released, and how claims are seated better before they are."""

from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise

from hypothesis import strategies as st

from harness.given import (
    EARLY,
    KEEP,
    LEAD,
    LONG_BEFORE,
    MINUTE,
    at,
    books,
    filled,
    on,
    plainly_running,
    seat_claim,
    seats,
    sound,
)
from harness.suite import for_all
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.limits import PromiseRules
from lcm.placement.promise import PromisedSeats, promise
from lcm.placement.repack import MOST_MOVES, repack_seats
from lcm.placement.request import HeldClaim
from lcm.placement.seats import SeatDemand, Seats, seat_demand, span_of

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


@for_all(books, minutes)
def test_claims_are_seated_anew_without_breaking_a_promise(book: list[Claim], since: int) -> None:
    pool = seats(4)
    for place, one in enumerate(book):
        answer = promise(pool, one, rules=LONG_BEFORE, slots=0)
        if isinstance(answer, PromisedSeats):
            badly = place % 4 + 1
            number = badly if pool.fits(badly, span_of(one), one.need) else answer.seat
            pool.hold(number, HeldClaim(f"h{place}", one))
    shadow, time = filled_like(pool), pool.time
    steps = repack_seats(pool, rules=LONG_BEFORE, since=at(since), looks=4_000)
    for step in steps:
        assert len(step) <= MOST_MOVES
        for move in step:
            assert move.held.claim.start >= at(since)
            assert shadow.release(move.before, move.held.holder) == move.held
        for move in step:
            shadow.hold(move.after, move.held)
        assert sound(shadow)
        assert shadow.time < time
        time = shadow.time
    assert _seated(shadow) == _seated(pool)
    assert Counter(held.claim for _, held in pool.all_claims()) == Counter(
        held.claim for _, held in shadow.all_claims()
    )


def test_two_half_used_workers_become_one() -> None:
    pool = filled(
        seats(3), [(1, seat_claim(60, 300, LAB)), (2, seat_claim(60, 300, LAB)), (2, seat_claim(60, 120, LAB))]
    )
    (step,) = repack_seats(pool, rules=LONG_BEFORE, since=EARLY)
    assert {move.held.claim for move in step} <= {seat_claim(60, 300, LAB), seat_claim(60, 120, LAB)}
    assert pool.time == (LEAD + 240) * 60_000_000


def test_what_has_begun_keeps_its_seat() -> None:
    pool = filled(
        seats(3), [(1, seat_claim(60, 300, LAB)), (2, seat_claim(60, 300, LAB)), (2, seat_claim(60, 120, LAB))]
    )
    assert repack_seats(pool, rules=PromiseRules(at(61)), since=at(61)) == []
    assert timedelta(microseconds=pool.time) == 2 * timedelta(minutes=LEAD + 240)


def filled_like(pool: Seats) -> Seats:
    same = seats(len(pool))
    for number, held in pool.all_claims():
        same.hold(number, held)
    return same


def _seated(pool: Seats) -> set[tuple[int, str]]:
    return {(number, held.holder) for number, held in pool.all_claims()}
