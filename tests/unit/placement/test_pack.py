"""The packer: every claim once, within capacity, never worse than before, the same for the same seed."""

from datetime import timedelta
from itertools import product

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from harness.pack_books import LEAD, MACHINE, books, first_fit, is_within_capacity, pack_with_more, pool, run_time
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.pack import Packer, pack_claims
from lcm.placement.pack_bound import lower_bound
from lcm.placement.request import HeldClaim

STEPS = 5_000


@for_all(books())
@settings(max_examples=60, deadline=None)
def test_every_claim_gets_one_seat_and_no_seat_gets_too_much(book: list[HeldClaim]) -> None:
    found = pack_claims(book, pool(), steps=STEPS)
    assert found.plan.keys() == {held.holder for held in book}
    assert set(found.plan.values()) <= set(range(1, 31))
    assert is_within_capacity(book, found.plan)
    assert found.time == run_time(book, found.plan)
    assert found.bound <= found.time
    assert not found.unplaced


@for_all(books(), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_a_plan_is_never_worse_than_the_present_one(book: list[HeldClaim], price: int) -> None:
    present = first_fit(book)
    found = pack_claims(book, pool(price=price), present=present, steps=STEPS)
    assert is_within_capacity(book, found.plan)
    assert found.moved == sum(found.plan[holder] != seat for holder, seat in present.items())
    saved = run_time(book, present) - found.time
    assert saved >= found.moved * price * 60_000_000


@for_all(books(), st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_fixed_keeps_its_seat(book: list[HeldClaim], data: st.DataObject) -> None:
    present = first_fit(book)
    fixed = data.draw(st.sets(st.sampled_from(sorted(present))))
    found = pack_claims(book, pool(), present=present, fixed=fixed, steps=STEPS)
    assert {holder: found.plan[holder] for holder in fixed} == {holder: present[holder] for holder in fixed}
    assert is_within_capacity(book, found.plan)


@for_all(books(), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_the_same_seed_gives_the_same_plan(book: list[HeldClaim], seed: int) -> None:
    assert pack_claims(book, pool(), steps=STEPS, seed=seed) == pack_claims(book, pool(), steps=STEPS, seed=seed)


@for_all(books(4))
@settings(max_examples=40, deadline=None)
def test_no_plan_of_all_is_below_the_bound_and_ours_is_nearly_the_best(book: list[HeldClaim]) -> None:
    plans = (
        {held.holder: seat for held, seat in zip(book, seats, strict=True)}
        for seats in product(range(1, len(book) + 1), repeat=len(book))
    )
    best = min(run_time(book, plan, len(book)) for plan in plans if is_within_capacity(book, plan))
    assert lower_bound([held.claim for held in book], MACHINE, LEAD) <= best
    assert pack_claims(book, pool(), steps=4 * STEPS).time <= 1.05 * best


def test_without_steps_the_present_plan_stays() -> None:
    book = [HeldClaim(f"s{number}", small_claim(number)) for number in range(6)]
    present = {held.holder: number + 1 for number, held in enumerate(book)}
    assert pack_claims(book, pool(), present=present, steps=0).plan == present


def small_claim(hour: int, hours: int = 1, size: int = 2) -> Claim:
    start = given.moment("00:00") + timedelta(hours=hour)
    return Claim(start=start, end=start + timedelta(hours=hours), need=Amount(cpu_millis=size, labs=1))


def test_a_small_gain_is_not_worth_a_move() -> None:
    book = [HeldClaim("long", small_claim(8, 8)), HeldClaim("short", small_claim(9, 1))]
    present = {"long": 1, "short": 2}
    assert pack_claims(book, pool(), present=present).moved == 1
    assert pack_claims(book, pool(price=84), present=present).moved == 1
    assert pack_claims(book, pool(price=86), present=present).plan == present


def test_more_claims_than_the_seats_hold_are_left_out() -> None:
    book = [HeldClaim(f"s{number}", small_claim(9, 2, size=5)) for number in range(3)]
    found = pack_claims(book, pool(seats=2), steps=STEPS)
    assert len(found.plan) == 2
    assert len(found.unplaced) == 1
    assert found.bound <= found.time


def test_a_claim_without_a_seat_gets_one_by_moving_others() -> None:
    spans = ((9, 2, 5), (10, 2, 3), (11, 2, 5), (9, 1, 3), (12, 1, 3))
    book = [HeldClaim(f"s{number}", small_claim(*span)) for number, span in enumerate(spans)]
    found = pack_claims(book, pool(seats=1), steps=STEPS)
    assert not found.unplaced


@for_all(books())
@settings(max_examples=60, deadline=None)
def test_on_the_seats_of_first_fit_no_claim_is_left_out(book: list[HeldClaim]) -> None:
    bare = first_fit(book)
    found = pack_claims(book, pool(seats=max(bare.values())), steps=STEPS)
    assert not found.unplaced
    assert is_within_capacity(book, found.plan)
    assert found.time <= run_time(book, bare)


def test_a_claim_of_no_time_keeps_its_seat_and_costs_nothing() -> None:
    moment = given.moment("09:00")
    empty = HeldClaim("s", Claim(start=moment, end=moment, need=Amount(cpu_millis=1)))
    packer = Packer(pool())
    packer.hold(empty, 3)
    packer.repair("s")
    assert packer.packing() == ({"s": 3}, 0, 0, 0, ())
    assert pack_claims([empty], pool()).plan == {"s": 1}


def test_a_number_that_is_free_again_is_used_again() -> None:
    packer = Packer(pool())
    for hour in range(20):
        packer.hold(HeldClaim("s", small_claim(hour)))
        packer.repair("s", 100)
        assert packer.packing().time == 85 * 60_000_000
    assert len(packer._board.at) == 1


def test_a_seat_that_has_too_much_already_loses_nothing_but_gains() -> None:
    book = [HeldClaim(f"s{number}", small_claim(9, 2, size=5)) for number in range(2)]
    found = pack_claims(book, pool(), present={"s0": 1, "s1": 1}, steps=STEPS)
    assert set(found.plan.values()) <= {1, 2}


@pytest.mark.parametrize(("seat", "fixed"), [(None, True), (0, False), (31, False)])
def test_a_seat_that_the_pool_does_not_have_is_refused(seat: int | None, *, fixed: bool) -> None:
    with pytest.raises(ValueError, match="no seat of the pool"):
        Packer(pool()).hold(HeldClaim("s", small_claim(9)), seat, fixed=fixed)


@for_all(books(), books(3))
@settings(max_examples=40, deadline=None)
def test_one_booking_more_is_seated_around_the_others(book: list[HeldClaim], extra: list[HeldClaim]) -> None:
    whole, found = pack_with_more(Packer(pool()), book, extra)
    assert is_within_capacity(whole, found.plan)
    assert found.time == run_time(whole, found.plan)


@for_all(books())
@settings(max_examples=40, deadline=None)
def test_what_is_released_costs_nothing_any_more(book: list[HeldClaim]) -> None:
    packer = Packer(pool(price=5))
    for held, seat in zip(book, first_fit(book).values(), strict=True):
        packer.hold(held, seat)
    packer.pack(STEPS)
    packer.accept()
    assert packer.packing().moved == 0
    for held in book:
        packer.release(held.holder)
    assert packer.packing() == ({}, 0, 0, 0, ())
