"""Plans for pools with several kinds of machines."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from harness.pack_books import LEAD, MACHINE, SEATS, books, first_fit, is_within_capacity, pool, run_time
from lcm.model.base.capacity import Amount, Claim
from lcm.placement.pack import pack_claims
from lcm.placement.pack_kinds import KindTerms, MachineKind, RunPrices, SeatJudge, money_bound, peak_of
from lcm.placement.pack_mixed import KindPacking, pack_on_kinds
from lcm.placement.pack_problem import PackProblem, SeatedClaim, solve_packing
from lcm.placement.pack_runs import regroup_runs
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, span_of, total_length

STEPS = 10_000
LARGE = MachineKind("large", MACHINE, 40)
SMALL = MachineKind("small", Amount(cpu_millis=4, memory_mb=5, nodes=5, labs=2), 22)
LEAN = MachineKind("lean", Amount(cpu_millis=8, memory_mb=5, nodes=8, labs=4), 31)
KINDS = (LARGE, SMALL, LEAN)
NAMED = {kind.name: kind for kind in KINDS}
given_kinds = st.dictionaries(st.integers(1, 8), st.sampled_from(sorted(NAMED)), max_size=5)


def mixed_pool(seats: int = SEATS, **overrides: Any) -> KindTerms:
    return KindTerms(KINDS, seats, LEAD)._replace(**overrides)


def money_of(book: Sequence[HeldClaim], plan: Mapping[str, int], kinds: Mapping[int, str]) -> int:
    """Count what a plan costs by the runs of the pool's own seats."""
    made = Seats(MACHINE, SEATS, lead=LEAD)
    for held in book:
        made.hold(plan[held.holder], held)
    return sum(NAMED[name].price * total_length(made.runs(seat)) for seat, name in kinds.items())


def check(book: Sequence[HeldClaim], found: KindPacking, terms: KindTerms) -> None:
    assert found.plan.keys() == {held.holder for held in book}
    assert found.kinds.keys() == set(found.plan.values())
    for seat, name in found.kinds.items():
        there = [held for held in book if found.plan[held.holder] == seat]
        assert is_within_capacity(there, found.plan, NAMED[name].capacity)
        assert terms.given.get(seat, name) == name
    paid = {seat: name for seat, name in found.kinds.items() if seat not in terms.standing}
    assert found.money == money_of(book, found.plan, paid)
    assert found.bound <= found.money


def first_fit_on(book: Sequence[HeldClaim], capacities: Mapping[int, Amount]) -> dict[str, int]:
    made, plan = Seats(MACHINE, SEATS, lead=LEAD, smaller=capacities), {}
    for held in book:
        span = span_of(held.claim)
        plan[held.holder] = next(n for n in range(1, SEATS + 1) if made.fits(n, span, held.claim.need))
        made.hold(plan[held.holder], held)
    return plan


@for_all(books(), given_kinds, st.data())
@settings(max_examples=40, deadline=None)
def test_from_nothing(book: list[HeldClaim], kinds: dict[int, str], data: st.DataObject) -> None:
    standing = frozenset(data.draw(st.sets(st.sampled_from(sorted(kinds))))) if kinds else frozenset[int]()
    closed = data.draw(st.frozensets(st.integers(1, 8), max_size=3))
    terms = mixed_pool(given=kinds, standing=standing, closed=closed)
    found = pack_on_kinds(book, terms, steps=STEPS)
    check(book, found, terms)
    assert closed.isdisjoint(found.plan.values())


@for_all(books())
@settings(max_examples=30, deadline=None)
def test_no_plan_costs_more_than_first_fit_on_the_largest_machines(book: list[HeldClaim]) -> None:
    assert pack_on_kinds(book, mixed_pool(), steps=STEPS).money <= LARGE.price * run_time(book, first_fit(book))


@for_all(books(), given_kinds, st.integers(0, 60), st.data())
@settings(max_examples=40, deadline=None)
def test_from_a_plan(book: list[HeldClaim], kinds: dict[int, str], price: int, data: st.DataObject) -> None:
    present = first_fit_on(book, {seat: NAMED[name].capacity for seat, name in kinds.items()})
    fixed = data.draw(st.sets(st.sampled_from(sorted(present))))
    closed = data.draw(st.frozensets(st.integers(1, 4), max_size=2))
    terms = mixed_pool(given=kinds, closed=closed, move_price=timedelta(minutes=price))
    found = pack_on_kinds(book, terms, present=present, fixed=fixed, steps=STEPS)
    check(book, found, terms)
    assert all(found.plan[holder] == seat for holder, seat in present.items() if holder in fixed or seat in closed)
    assert all(present[holder] == seat for holder, seat in found.plan.items() if seat in closed)
    assert found.moved == sum(found.plan[holder] != seat for holder, seat in present.items())
    before = pack_on_kinds(book, terms, present=present, fixed=present, steps=0)
    assert before.plan == present
    assert before.money - found.money >= found.moved * price * 60_000_000 * SMALL.price


@for_all(books(), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_with_one_kind_all_is_as_without_kinds(book: list[HeldClaim], price: int) -> None:
    plain = pack_claims(book, pool(price=price), steps=STEPS)
    found = pack_on_kinds(book, KindTerms((LARGE,), SEATS, LEAD, move_price=timedelta(minutes=price)), steps=STEPS)
    assert (found.plan, found.moved, found.unplaced) == (plain.plan, plain.moved, plain.unplaced)
    assert (found.money, found.bound) == (40 * plain.time, 40 * plain.bound)


@for_all(books(), st.integers(0, 9))
@settings(max_examples=15, deadline=None)
def test_the_same_seed_gives_the_same_plan(book: list[HeldClaim], seed: int) -> None:
    first, again = (pack_on_kinds(book, mixed_pool(), steps=STEPS, seed=seed) for _ in range(2))
    assert first == again


@for_all(books(3))
@settings(max_examples=40, deadline=None)
def test_no_plan_of_all_is_below_the_bound(book: list[HeldClaim]) -> None:
    costs = []
    for seats in product(range(1, len(book) + 1), repeat=len(book)):
        plan = {held.holder: seat for held, seat in zip(book, seats, strict=True)}
        for names in product(sorted(NAMED), repeat=len(set(seats))):
            kinds = dict(zip(sorted(set(seats)), names, strict=True))
            rows = {seat: [held for held in book if plan[held.holder] == seat] for seat in kinds}
            if all(is_within_capacity(row, plan, NAMED[kinds[seat]].capacity) for seat, row in rows.items()):
                costs.append(money_of(book, plan, kinds))
    assert money_bound([held.claim for held in book], mixed_pool()) <= min(costs)
    assert min(costs) <= pack_on_kinds(book, mixed_pool(), steps=STEPS).money


def held_claim(name: str, hours: tuple[int, int], **need: int) -> HeldClaim:
    start = given.moment("00:00")
    begin, end = (start + timedelta(hours=hour) for hour in hours)
    return HeldClaim(name, Claim(start=begin, end=end, need=Amount(**need)))


def test_a_seat_has_the_cheapest_kind_that_holds_it() -> None:
    book = [held_claim("few", (9, 12), cpu_millis=3), held_claim("many", (14, 16), cpu_millis=8)]
    found = pack_on_kinds(book, mixed_pool(), steps=STEPS)
    assert sorted(found.kinds.values()) == ["lean", "small"]
    assert found.money == (22 * (25 + 180) + 31 * (25 + 120)) * 60_000_000


def test_a_run_that_needs_little_leaves_the_seat_of_one_that_needs_much() -> None:
    spans = (("a", (1, 2), 5), ("b", (4, 5), 1), ("c", (7, 8), 5))
    book = [held_claim(name, hours, cpu_millis=need) for name, hours, need in spans]
    terms = mixed_pool(2)
    found = regroup_runs({1: book}, [1, 2], SeatJudge(terms))
    assert found == {"a": 1, "b": 2, "c": 1}
    assert regroup_runs({1: book}, [1], SeatJudge(terms)) is None
    assert pack_on_kinds(book, terms, steps=STEPS).money == (31 * 2 + 22) * (25 + 60) * 60_000_000


def test_a_machine_that_always_runs_is_used_whatever_its_kind() -> None:
    book = [held_claim(f"s{number}", (9, 12), cpu_millis=2) for number in range(2)]
    terms = mixed_pool(given={5: "small"}, standing=frozenset({5}))
    found = pack_on_kinds(book, terms, steps=STEPS)
    assert (found.plan, found.money, found.bound) == ({"s0": 5, "s1": 5}, 0, 0)


def overlapping(spans: str, **need: int) -> list[HeldClaim]:
    """Return claims of the same need; each span is two digits, hours after eight o'clock."""
    hours = [(8 + int(one[0]), 8 + int(one[1])) for one in spans.split()]
    return [held_claim(f"s{number}", span, labs=1, **need) for number, span in enumerate(hours)]


def test_who_makes_room_on_a_machine_that_always_runs_is_not_counted_there_any_more() -> None:
    terms = mixed_pool(2, given={1: "large"}, standing=frozenset({1}))
    book = overlapping("34 35 24 34", cpu_millis=4)
    check(book, pack_on_kinds(book, terms, steps=STEPS), terms)


def test_claims_that_last_are_packed_with_short_ones_that_are_there_already() -> None:
    terms = mixed_pool(given={7: "large", 1: "small"}, standing=frozenset({1, 7}))
    book = overlapping("12 24 12 14 14 14 14 34 13 12 12 14")
    check(book, pack_on_kinds(book, terms, steps=STEPS), terms)


@pytest.mark.parametrize("seed", range(8))
def test_a_machine_that_always_runs_never_holds_too_much(seed: int) -> None:
    short = [held_claim(f"short{hour}", (hour, hour + 1), memory_mb=3) for hour in range(0, 12, 2)]
    long = [held_claim(f"long{number}", (0, 6 + number), memory_mb=3) for number in range(6)]
    terms = mixed_pool(given={1: "lean", 3: "large"}, standing=frozenset({1, 3}))
    check([*short, *long], pack_on_kinds([*short, *long], terms, steps=STEPS, seed=seed), terms)


def test_what_no_kind_holds_is_left_out() -> None:
    book = [held_claim("fits", (9, 12), cpu_millis=5), held_claim("huge", (9, 12), cpu_millis=9)]
    found = pack_on_kinds(book, mixed_pool(), steps=STEPS)
    assert found.unplaced == ("huge",)
    assert found.bound <= found.money == 31 * (25 + 180) * 60_000_000


def test_without_claims_or_open_seats_there_is_no_plan() -> None:
    assert pack_on_kinds([], mixed_pool()) == ({}, {}, 0, 0, 0, ())
    terms = mixed_pool(1, closed=frozenset({1}))
    assert pack_on_kinds([held_claim("s", (9, 12), cpu_millis=1)], terms).unplaced == ("s",)


def test_prices_without_a_common_unit_have_a_bound_too() -> None:
    kinds = (LARGE._replace(price=4_001), SMALL._replace(price=2_203))
    book = [held_claim(f"s{number}", (9, 12), cpu_millis=4) for number in range(5)]
    found = pack_on_kinds(book, KindTerms(kinds, SEATS, LEAD), steps=STEPS)
    assert 0.8 * found.money < found.bound <= found.money


def test_the_peak_of_claims_is_the_most_at_any_moment() -> None:
    book = [held_claim("a", (9, 12), nodes=2), held_claim("b", (11, 13), nodes=3), held_claim("c", (12, 14), labs=1)]
    assert peak_of(held.claim for held in book) == Amount(nodes=5, labs=1)
    assert peak_of([]) == Amount()


def packed(book: Sequence[HeldClaim], present: Mapping[str, int], price: int = 0, seats: int = SEATS) -> dict[str, int]:
    """Return where the steps of a packing by price lead, each claim from where it is."""
    claims = [SeatedClaim(held.holder, held.claim, present[held.holder], fixed=False) for held in book]
    answer = solve_packing(PackProblem(pool(seats, price), claims, STEPS, 0, KINDS))
    plan = dict(present)
    for step in answer.steps:
        assert all(plan[move.holder] == move.before for move in step)
        plan.update((move.holder, move.after) for move in step)
        assert is_within_capacity(book, plan)
    prices = RunPrices(mixed_pool(), book)
    assert answer.saved == (prices.worth(present, present) - prices.worth(plan, plan)) // LARGE.price
    return plan


def test_claims_move_to_where_cheaper_machines_are_enough() -> None:
    long = held_claim("long", (10, 13), cpu_millis=2, memory_mb=4)
    book, present = [long, held_claim("short", (11, 12), cpu_millis=6, memory_mb=2)], {"long": 1, "short": 1}
    assert pack_claims(book, pool(), present=present, steps=STEPS).moved == 0, "one machine is the fewest"
    plan, prices = packed(book, present), RunPrices(mixed_pool(), book)
    assert prices.worth(present, present) == 40 * (25 + 180) * 60_000_000
    assert prices.worth(plan, plan) == (22 * (25 + 180) + 31 * (25 + 60)) * 60_000_000
    assert packed(book, present, seats=2) == present, "there would be no place for another large machine"


@for_all(books(), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_a_packing_by_price_is_reached_in_steps_and_never_costs_more(book: list[HeldClaim], price: int) -> None:
    present = first_fit(book)
    prices = RunPrices(mixed_pool(move_price=timedelta(minutes=price)), book)
    plan = packed(book, present, price)
    assert plan == present or prices.worth(plan, present) < prices.worth(present, present)


def test_each_run_of_a_seat_is_priced_by_itself() -> None:
    book = [held_claim("few", (9, 12), cpu_millis=3), held_claim("many", (14, 16), cpu_millis=8)]
    prices = RunPrices(mixed_pool(), book)
    together, hours = {"few": 1, "many": 1}, 60_000_000
    assert prices.worth(together, together) == (22 * (25 + 180) + 31 * (25 + 120)) * hours
    assert prices.worth({"few": 1, "many": 2}, together) == prices.worth(together, together)


@pytest.mark.parametrize(
    "terms",
    [
        KindTerms((), SEATS, LEAD),
        KindTerms((LARGE, LARGE), SEATS, LEAD),
        KindTerms((LARGE._replace(price=-1),), SEATS, LEAD),
        mixed_pool(given={1: "unknown"}),
        mixed_pool(given={SEATS + 1: "small"}),
        mixed_pool(standing=frozenset({1})),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: KindTerms) -> None:
    with pytest.raises(ValueError, match="kind"):
        pack_on_kinds([], terms)


def test_a_seat_that_the_pool_does_not_have_is_refused() -> None:
    book = [held_claim("s", (9, 12), cpu_millis=1)]
    for present, fixed in (({"s": SEATS + 1}, ()), ({}, ("s",))):
        with pytest.raises(ValueError, match="seat of the pool"):
            pack_on_kinds(book, mixed_pool(), present=present, fixed=fixed)
