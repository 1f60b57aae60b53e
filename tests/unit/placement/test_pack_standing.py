"""The packer where some machines always run, and some take no further claim."""

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from harness.pack_books import (
    LEAD,
    MACHINE,
    SEATS,
    books,
    first_fit,
    is_within_capacity,
    pack_with_more,
    pool,
    run_time,
)
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.pack import Packer, pack_claims
from lcm.placement.pack_arrival import place_arrivals
from lcm.placement.pack_board import NOWHERE, PackBoard, PackTerms
from lcm.placement.pack_bound import DemandSums
from lcm.placement.pack_forecast import ArrivalForecast
from lcm.placement.request import HeldClaim

STEPS = 5_000
MINUTE = 60_000_000
some_seats = st.frozensets(st.integers(1, 6), max_size=4)


def claim_of(hour: int, hours: int = 1, size: int = 2) -> HeldClaim:
    start = given.moment("00:00") + timedelta(hours=hour)
    claim = Claim(start=start, end=start + timedelta(hours=hours), need=Amount(cpu_millis=size, labs=1))
    return HeldClaim(f"s{hour}", claim)


@for_all(books(), some_seats, some_seats)
@settings(max_examples=80, deadline=None)
def test_from_nothing(book: list[HeldClaim], standing: frozenset[int], closed: frozenset[int]) -> None:
    found = pack_claims(book, pool()._replace(standing=standing, closed=closed), steps=STEPS)
    assert not found.unplaced
    assert closed.isdisjoint(found.plan.values())
    assert is_within_capacity(book, found.plan)
    assert found.time == run_time(book, found.plan, standing=standing)
    assert found.bound <= found.time


@for_all(books(), some_seats, some_seats, st.data())
@settings(max_examples=80, deadline=None)
def test_from_a_plan(
    book: list[HeldClaim], standing: frozenset[int], closed: frozenset[int], data: st.DataObject
) -> None:
    present = first_fit(book)
    fixed = data.draw(st.sets(st.sampled_from(sorted(present))))
    terms = pool(price=data.draw(st.integers(0, 60)))._replace(standing=standing, closed=closed)
    found = pack_claims(book, terms, present=present, fixed=fixed, steps=STEPS)
    assert all(found.plan[holder] == seat for holder, seat in present.items() if holder in fixed or seat in closed)
    assert all(present[holder] == seat for holder, seat in found.plan.items() if seat in closed)
    assert is_within_capacity(book, found.plan)
    assert found.time == run_time(book, found.plan, standing=standing)
    saved = run_time(book, present, standing=standing) - found.time
    assert saved >= found.moved * (terms.move_price // timedelta(microseconds=1))
    assert found.bound <= found.time


@for_all(books(), books(3), some_seats)
@settings(max_examples=40, deadline=None)
def test_one_booking_more(book: list[HeldClaim], extra: list[HeldClaim], standing: frozenset[int]) -> None:
    packer = Packer(pool()._replace(standing=standing, closed=frozenset({2, 7})))
    whole, found = pack_with_more(packer, book, extra)
    assert is_within_capacity(whole, found.plan)
    assert {2, 7}.isdisjoint(found.plan.values())
    assert found.time == run_time(whole, found.plan, standing=standing)


@for_all(books(4), st.frozensets(st.integers(1, 4), max_size=2))
@settings(max_examples=40, deadline=None)
def test_no_plan_of_all_is_below_the_bound(book: list[HeldClaim], standing: frozenset[int]) -> None:
    sums = DemandSums(MACHINE)
    for held in book:
        sums.add(held.claim)
    plans = (
        {held.holder: seat for held, seat in zip(book, seats, strict=True)}
        for seats in product(range(1, 5), repeat=len(book))
    )
    best = min(run_time(book, plan, 4, standing) for plan in plans if is_within_capacity(book, plan))
    assert sums.lower_bound(LEAD, len(standing)) <= best
    assert pack_claims(book, pool(4)._replace(standing=standing), steps=4 * STEPS).time <= 1.05 * best


def test_a_machine_that_always_runs_is_filled_first_and_costs_nothing() -> None:
    book = [claim_of(hour, 2) for hour in range(6)]
    found = pack_claims(book, pool()._replace(standing=frozenset({9})), steps=STEPS)
    assert set(found.plan.values()) == {9}
    assert (found.time, found.bound) == (0, 0)


def test_a_closed_machine_runs_for_what_it_has() -> None:
    book = [claim_of(8, 4), claim_of(9, 1)]
    found = pack_claims(book, pool()._replace(closed=frozenset({1})), present={"s8": 1}, steps=STEPS)
    assert found.plan == {"s8": 1, "s9": 2}
    assert found.time == (25 + 240 + 25 + 60) * MINUTE


def test_a_claim_of_nothing_comes_onto_no_closed_seat() -> None:
    moment = given.moment("09:00")
    nothing = HeldClaim("s", Claim(start=moment, end=moment + timedelta(hours=1), need=Amount()))
    empty = HeldClaim("t", Claim(start=moment, end=moment, need=Amount(cpu_millis=1)))
    found = pack_claims([nothing, empty], pool()._replace(closed=frozenset({1, 2})), steps=STEPS)
    assert found.plan == {"s": 3, "t": 3}


def test_without_an_open_seat_no_claim_gets_one() -> None:
    packer = Packer(pool(2)._replace(closed=frozenset({1, 2})))
    packer.hold(claim_of(9))
    packer.pack(STEPS)
    packer.repair("s9")
    assert packer.packing() == ({}, 0, 0, 0, ("s9",))


def test_on_machines_that_all_run_always_nothing_is_trimmed() -> None:
    book = [claim_of(hour, 2) for hour in range(6)]
    terms = pool(2, price=5)._replace(standing=frozenset({1, 2}))
    present = {held.holder: 1 + number % 2 for number, held in enumerate(book)}
    assert pack_claims(book, terms, present=present, steps=STEPS).plan == present


def test_an_arrival_goes_to_a_machine_that_always_runs() -> None:
    board = PackBoard(PackTerms(MACHINE, 4, LEAD, standing=frozenset({3}), closed=frozenset({2})))
    claims = [board.add(hour * 60 * MINUTE, (hour + 2) * 60 * MINUTE, Amount(cpu_millis=8)) for hour in range(3)]
    forecast = ArrivalForecast()
    for claim in claims:
        place_arrivals(board, [claim], forecast)
    assert [board.at[claim] for claim in claims] == [2, 0, 2]
    assert board.seats_in_use() == [0, 2, 3]
    assert NOWHERE not in board.at


@pytest.mark.parametrize("seats", [{0}, {SEATS + 1}])
def test_standing_and_closed_seats_are_of_the_pool(seats: set[int]) -> None:
    for terms in (pool()._replace(standing=frozenset(seats)), pool()._replace(closed=frozenset(seats))):
        with pytest.raises(ValueError, match="beyond the pool's"):
            Packer(terms)
