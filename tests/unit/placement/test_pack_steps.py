"""Steps between two plans: after each every seat holds what is on it, and claims reach the plan where they can."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.placement.pack_board import PackBoard, PackTerms
from lcm.placement.pack_problem import PackProblem, SeatedClaim, solve_packing
from lcm.placement.pack_steps import BoardMove, order_moves

MACHINE = Amount(cpu_millis=8, labs=8)
HALF, WHOLE = Amount(cpu_millis=4, labs=1), Amount(cpu_millis=8, labs=1)
LEAD = timedelta(minutes=25)


def claim(start: int, end: int, need: Amount = WHOLE) -> Claim:
    day = given.moment("00:00")
    return Claim(start=day + timedelta(hours=start), end=day + timedelta(hours=end), need=need)


def laid(claims: Sequence[Claim], plan: Sequence[int], seats: int, closed: frozenset[int] = frozenset()) -> PackBoard:
    board = PackBoard(PackTerms(MACHINE, seats, LEAD, closed=closed))
    for one, seat in zip(claims, plan, strict=True):
        number = board.add(int(one.start.timestamp() * 1e6), int(one.end.timestamp() * 1e6), one.need, seat)
        board.put(number, seat)
    return board


def is_sound(claims: Sequence[Claim], at: Mapping[int, int]) -> bool:
    rows: dict[int, list[Claim]] = {}
    for number, one in enumerate(claims):
        rows.setdefault(at[number], []).append(one)
    return not any(Profile.of(row).find_overcommitted(MACHINE) for row in rows.values())


def play(claims: Sequence[Claim], present: Sequence[int], steps: Sequence[Sequence[BoardMove]]) -> dict[int, int]:
    """Take steps as the control plane does, and return where claims are then."""
    at = dict(enumerate(present))
    for step in steps:
        assert len({move.claim for move in step}) == len(step)
        for move in step:
            assert at[move.claim] == move.before
            at[move.claim] = move.after
        assert is_sound(claims, at)
    return at


@st.composite
def two_plans(draw: st.DrawFn) -> tuple[list[Claim], list[int], list[int]]:
    """Draw claims with two plans for them, on six seats."""
    claims, plans = list[Claim](), ([0] * 0, [0] * 0)
    for _ in range(draw(st.integers(1, 25))):
        start, need = draw(st.integers(0, 20)), draw(st.integers(1, 8))
        one = claim(start, start + draw(st.integers(1, 8)), Amount(cpu_millis=need, labs=1))
        seats = [[s for s in draw(st.permutations(range(6))) if _takes(claims, plan, one, s)] for plan in plans]
        if all(seats):
            claims.append(one)
            for plan, free in zip(plans, seats, strict=True):
                plan.append(free[0])
    return claims, *plans


def _takes(claims: Sequence[Claim], plan: Sequence[int], one: Claim, seat: int) -> bool:
    row = [known for known, at in zip(claims, plan, strict=True) if at == seat]
    return not Profile.of([*row, one]).find_overcommitted(MACHINE)


@settings(max_examples=150, deadline=None)
@for_all(two_plans(), st.integers(1, 6), st.integers(6, 9))
def test_every_step_keeps_every_promise(plans: tuple[list[Claim], list[int], list[int]], most: int, seats: int) -> None:
    claims, present, wanted = plans
    board = laid(claims, present, seats)
    steps = order_moves(board, dict(enumerate(wanted)), most)
    assert all(0 < len(step) <= most for step in steps)
    assert play(claims, present, steps) == dict(enumerate(board.at))
    if most >= len(claims):
        assert board.at == wanted


def test_a_ring_of_claims_moves_at_once() -> None:
    claims = [claim(0, 4), claim(0, 4), claim(0, 4)]
    steps = order_moves(laid(claims, [0, 1, 2], 3), {0: 1, 1: 2, 2: 0})
    assert [sorted(step) for step in steps] == [[(0, 0, 1), (1, 1, 2), (2, 2, 0)]]


@pytest.mark.parametrize(("seats", "reached"), [(4, [1, 2, 0]), (3, [0, 1, 2])])
def test_where_a_ring_is_too_large_one_waits_elsewhere_if_there_is_room(seats: int, reached: list[int]) -> None:
    claims = [claim(0, 4), claim(0, 4), claim(0, 4)]
    board = laid(claims, [0, 1, 2], seats)
    steps = order_moves(board, {0: 1, 1: 2, 2: 0}, most=2)
    assert board.at == reached
    play(claims, [0, 1, 2], steps)


def test_nobody_waits_on_a_seat_that_takes_no_claims() -> None:
    board = laid([claim(0, 4), claim(0, 4), claim(0, 4)], [0, 1, 2], 4, closed=frozenset({4}))
    assert order_moves(board, {0: 1, 1: 2, 2: 0}, most=2) == []


def seated(*claims: tuple[int, Claim], fixed: frozenset[int] = frozenset()) -> list[SeatedClaim]:
    return [SeatedClaim(f"s{n}", one, seat, n in fixed) for n, (seat, one) in enumerate(claims)]


def problem(claims: Sequence[SeatedClaim], price: int = 1) -> PackProblem:
    return PackProblem(PackTerms(MACHINE, 4, LEAD, move_price=timedelta(minutes=price)), claims, 10_000)


def test_two_half_used_workers_become_one() -> None:
    answer = solve_packing(problem(seated((1, claim(1, 5, HALF)), (2, claim(1, 5, HALF)))))
    ((move,),) = answer.steps
    assert {move.before, move.after} == {1, 2}
    assert timedelta(microseconds=answer.before) == 2 * (timedelta(hours=4) + LEAD)
    assert answer.after == answer.bound == answer.before // 2


def test_what_is_fixed_stays() -> None:
    answer = solve_packing(problem(seated((1, claim(1, 5, HALF)), (2, claim(1, 5, HALF)), fixed=frozenset({0, 1}))))
    assert not answer.steps
    assert answer.after == answer.before


def test_what_saves_less_than_it_costs_to_move_stays() -> None:
    claims = seated((1, claim(1, 5, HALF)), (2, claim(1, 5, HALF)))
    assert solve_packing(problem(claims, price=5 * 60)).steps == ()
