"""Packing as one call: the claims of a pool with their seats go in, the steps to better seats come out. Pure.

Problem and answer are values that can be written down, so that a process of its own can do the work.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import msgspec

from lcm.model.base.capacity import Claim
from lcm.placement.pack import Packer
from lcm.placement.pack_board import PackTerms
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
    """The claims of a pool, on seats of these terms."""

    terms: PackTerms
    claims: Sequence[SeatedClaim]
    steps: int
    seed: int = 0


class PackAnswer(msgspec.Struct, frozen=True):
    """The steps to a better plan, and how long machines run in microseconds: before them, after them, and at least."""

    steps: Sequence[Sequence[SeatMove]]
    before: int
    after: int
    bound: int


def solve_packing(problem: PackProblem) -> PackAnswer:
    """Return the steps to the best plan that is found, none if what it saves is not worth the moves."""
    packer = Packer(problem.terms, seed=problem.seed)
    for one in problem.claims:
        packer.hold(HeldClaim(one.holder, one.claim), one.seat, fixed=one.fixed)
    before = packer.packing()
    packer.pack(problem.steps)
    steps = packer.make_steps()
    after = packer.packing()
    price = problem.terms.move_price // timedelta(microseconds=1)
    if after.time + after.moved * price >= before.time:
        return PackAnswer((), before.time, before.time, before.bound)
    return PackAnswer(steps, before.time, after.time, before.bound)
