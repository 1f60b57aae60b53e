"""Packing as one call: the claims of a pool with their seats go in, the steps to better seats come out. Pure.

Problem and answer are values that can be written down, so that a process of its own can do the work.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from lcm.model.base.capacity import Claim
from lcm.placement.pack import Packer, Packing
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_kinds import KindTerms, MachineKind, RunPrices
from lcm.placement.pack_mixed import pack_on_kinds
from lcm.placement.pack_steps import SeatMove
from lcm.placement.request import HeldClaim

STEPS_PER_CLAIM: Final = 1_000
"""Looks that one packing is worth. The next one goes on where it ended."""


class SeatedClaim(NamedTuple):
    """A claim on its present seat, which it keeps if it is fixed."""

    holder: str
    claim: Claim
    seat: int
    fixed: bool


class PackProblem(msgspec.Struct, frozen=True):
    """The claims of a pool, on seats of these terms.

    If there are `kinds`, the largest first, each run of a seat gets the cheapest that holds it, and the least money
    counts instead of the least time.
    """

    terms: PackTerms
    claims: Sequence[SeatedClaim]
    steps: int
    seed: int = 0
    kinds: tuple[MachineKind, ...] = ()


class PackAnswer(msgspec.Struct, frozen=True):
    """The steps to a better plan, and how long machines run in microseconds: before them, after them, and at least.

    `saved` is how long a machine runs for what the steps save.
    """

    steps: Sequence[Sequence[SeatMove]]
    before: int
    after: int
    bound: int
    saved: int = 0


def solve_packing(problem: PackProblem) -> PackAnswer:
    """Return the steps to the best plan that is found, none if what it saves is not worth the moves."""
    packer = Packer(problem.terms, seed=problem.seed)
    for one in problem.claims:
        packer.hold(HeldClaim(one.holder, one.claim), one.seat, fixed=one.fixed)
    before = packer.packing()
    packer.pack(problem.steps)
    spare = _find_spare_seat(problem) if problem.kinds else None
    if spare is not None:
        return _solve_by_price(problem, packer, before, spare)
    steps = packer.make_steps()
    after = packer.packing()
    price = problem.terms.move_price // timedelta(microseconds=1)
    if after.time + after.moved * price >= before.time:
        return PackAnswer((), before.time, before.time, before.bound)
    return PackAnswer(steps, before.time, after.time, before.bound, before.time - after.time)


def _find_spare_seat(problem: PackProblem) -> int | None:
    """Return a seat without claims: where there is none beside them, no machines are launched that are smaller."""
    taken = {one.seat for one in problem.claims} | problem.terms.closed | problem.terms.standing
    return max((seat for seat in range(1, problem.terms.seats + 1) if seat not in taken), default=None)


def _solve_by_price(problem: PackProblem, packer: Packer, before: Packing, spare: int) -> PackAnswer:
    """Return the steps to the cheapest of the plans by time and by money, if that is worth the moves."""
    terms, largest = problem.terms, problem.kinds[0]
    standing, closed = dict.fromkeys(terms.standing, largest.name), terms.closed | {spare}
    priced = KindTerms(
        problem.kinds, terms.seats, terms.lead, terms.keep, terms.move_price, terms.standing, closed, standing
    )
    book = [HeldClaim(one.holder, one.claim) for one in problem.claims]
    prices, fixed = RunPrices(priced, book), [one.holder for one in problem.claims if one.fixed]
    mixed = pack_on_kinds(book, priced, present=before.plan, fixed=fixed, steps=problem.steps, seed=problem.seed)
    plans = [packer.packing().plan, *([] if mixed.unplaced else [mixed.plan])]
    packer.lay(min(plans, key=lambda plan: prices.worth(plan, before.plan)))
    steps, after = packer.make_steps(), packer.packing()
    money = prices.worth(before.plan, before.plan)
    if prices.worth(after.plan, before.plan) >= money:
        return PackAnswer((), before.time, before.time, before.bound)
    saved = (money - prices.worth(after.plan, after.plan)) // max(1, largest.price)
    return PackAnswer(steps, before.time, after.time, before.bound, saved)
