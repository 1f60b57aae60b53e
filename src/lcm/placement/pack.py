"""The packer: which seat each claim of a pool should have, so that machines run as little as possible.

Bookings are known in advance and get their seats in the order in which they come, which no rule packs well. Until
machines start, claims may change seats, so all of them are packed again as one problem: from nothing by several rules
(`pack_build`), then by moves (`pack_moves`), until the plan is near the lower bound (`pack_bound`) or the steps are
used up. A plan is never worse than the one there was. Pure; the same input and seed give the same plan. A `Packer`
keeps its board, so that one booking more needs little work.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from lcm.placement.pack_board import NOWHERE, PackBoard, PackTerms
from lcm.placement.pack_bound import DemandSums
from lcm.placement.pack_build import (
    ORDERS,
    Chance,
    RoomValue,
    StepBudget,
    fill_seat_by_seat,
    put_all,
    put_first_fit,
    value_room,
)
from lcm.placement.pack_moves import PackSearch
from lcm.placement.pack_steps import SeatMove, order_moves
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of

MOST_STEPS: Final = 20_000_000
"""Looks at a seat for a claim in one packing; a million takes about two seconds."""
REPAIR_STEPS: Final = 40_000
"""Looks after one booking more."""
_NEAR_BOUND: Final = 101, 100
_PLANS_TRIED: Final = 5
"""Where there is a plan, others are made from nothing if there are steps for so many: else moves use them better."""
_FEW_CLAIMS: Final = 6_000
"""For more claims than this only the first rule is tried: each takes seconds, and the moves use them better."""
_FEWEST_CLAIMS: Final = 600
"""Up to this many are also packed seat by seat, which looks at each claim for each."""


_JudgedPlan = tuple[int, int, list[int]]
"""How many claims a plan leaves without a seat, what it costs, and the seats by claim number."""


class Packing(NamedTuple):
    """A plan: the seat of each holder, from 1; how long machines run by it, and at least by any, in microseconds.

    `moved` counts the holders that had another seat before. No seat takes those that are `unplaced`. Only a present
    plan that has too much on a seat can be below the bound.
    """

    plan: Mapping[str, int]
    time: int
    bound: int
    moved: int
    unplaced: tuple[str, ...] = ()


def pack_claims(
    claims: Iterable[HeldClaim],
    terms: PackTerms,
    *,
    present: Mapping[str, int] | None = None,
    fixed: Collection[str] = (),
    steps: int = MOST_STEPS,
    seed: int = 0,
) -> Packing:
    """Pack claims, from the present plan if there is one; holders that are fixed keep their seats."""
    packer = Packer(terms, seed=seed)
    for held in claims:
        packer.hold(held, (present or {}).get(held.holder), fixed=held.holder in fixed)
    packer.pack(steps)
    return packer.packing()


class Packer:
    """The claims of one pool on a board. Not thread-safe."""

    def __init__(self, terms: PackTerms, *, seed: int = 0) -> None:
        self._terms = terms
        self._board = PackBoard(terms)
        self._chance = Chance(seed)
        self._numbers: dict[str, int] = {}
        self._held: dict[str, HeldClaim] = {}
        self._empty: dict[str, int] = {}
        self._fixed: set[int] = set()
        self._sums = DemandSums(terms.capacity)
        self._value: RoomValue | None = None

    def hold(self, held: HeldClaim, seat: int | None = None, *, fixed: bool = False) -> None:
        """Hold a claim, on a seat if it has one; it replaces what its holder had. On a closed seat it is fixed.

        Raise ValueError for a fixed claim without a seat, and for a seat that the pool does not have.
        """
        if (fixed and seat is None) or (seat is not None and not 1 <= seat <= self._terms.seats):
            raise ValueError(f"{held.holder} has no seat of the pool to keep: {seat}")
        self.release(held.holder)
        start, end = span_of(held.claim)
        if start >= end:
            self._empty[held.holder] = seat or next(iter(self._board.open_seats), 0) + 1
            return
        number = self._board.add(start, end, held.claim.need, NOWHERE if seat is None else seat - 1)
        self._numbers[held.holder], self._held[held.holder] = number, held
        self._sums.add(held.claim)
        if seat is not None:
            self._board.put(number, seat - 1)
        if fixed or seat in self._terms.closed:
            self._fixed.add(number)

    def release(self, holder: str) -> None:
        """Release what a holder has; it need not have anything."""
        self._empty.pop(holder, None)
        number = self._numbers.pop(holder, None)
        if number is not None:
            self._board.drop(number)
            self._fixed.discard(number)
            self._sums.add(self._held.pop(holder).claim, -1)

    def pack(self, steps: int = MOST_STEPS) -> None:
        """Look for the best plan for all claims, from nothing and from the plan there is."""
        budget, movable = StepBudget(steps), self._movable()
        above, below = _NEAR_BOUND
        enough = self._bound_without(()) * above // below
        if self._board.cost <= enough and self._is_complete(movable):
            return
        self._value = value_room(self._board, movable)
        self._board.begin()
        self._build(movable, budget)
        self._improve(movable, budget, enough if self._is_complete(movable) else 0)

    def repair(self, holder: str, steps: int = REPAIR_STEPS) -> None:
        """Look for a better plan around one holder's claim, and seat it if it has no seat."""
        if holder in self._empty:
            return
        board, number, budget = self._board, self._numbers[holder], StepBudget(steps)
        start, end = board.starts[number], board.ends[number]
        seats = board.seats_in_use()
        near = {one for seat in seats for one in board.claims_between(seat, start, end)} | {number}
        if board.at[number] == NOWHERE:
            self._value = self._value or value_room(board, self._movable())
            put_all(board, self._value, [number], budget)
        self._improve(sorted(near - self._fixed), budget)

    def accept(self) -> None:
        """Take the plan as the present one: from now on leaving its seats is what a move is."""
        board = self._board
        for number in self._numbers.values():
            board.cost -= board.price * (board.home[number] not in {NOWHERE, board.at[number]})
            board.home[number] = board.at[number]

    def lay(self, plan: Mapping[str, int]) -> None:
        """Put the claims that may move on the seats of a plan that has them all."""
        board, movable, seats = self._board, self._movable(), [NOWHERE] * len(self._board.at)
        for holder, number in self._numbers.items():
            seats[number] = plan[holder] - 1
        board.clear(movable)
        board.lay(movable, seats)

    def make_steps(self) -> list[list[SeatMove]]:
        """Return the steps from the seats that claims had to the plan, which becomes what they reach (`pack_steps`)."""
        board, movable = self._board, self._movable()
        plan = {one: board.at[one] for one in movable if board.at[one] != NOWHERE}
        board.clear(movable)
        board.lay(movable, board.home)
        holders = {number: holder for holder, number in self._numbers.items()}
        return [
            [SeatMove(holders[one.claim], one.before + 1, one.after + 1) for one in step]
            for step in order_moves(board, plan)
        ]

    def packing(self) -> Packing:
        """Return the plan, and what it costs."""
        board, at, home = self._board, self._board.at, self._board.home
        placed = {holder: number for holder, number in self._numbers.items() if at[number] != NOWHERE}
        moved = sum(home[number] not in {NOWHERE, at[number]} for number in placed.values())
        missing = tuple(holder for holder in self._numbers if holder not in placed)
        bound = self._bound_without(missing)
        plan = {**self._empty, **{holder: at[number] + 1 for holder, number in placed.items()}}
        return Packing(plan, board.cost - moved * board.price, bound, moved, missing)

    def _is_complete(self, claims: Iterable[int]) -> bool:
        return all(self._board.at[one] != NOWHERE for one in claims)

    def _movable(self) -> list[int]:
        return [number for number in self._numbers.values() if number not in self._fixed]

    def _build(self, movable: Sequence[int], budget: StepBudget) -> None:
        """Complete the plan there is, or make others from nothing, and keep the best; none is worse than first fit."""
        board = self._board
        known = any(board.at[one] != NOWHERE for one in movable)
        self._lay_best(movable, self._make_plans(movable, budget, known=known))
        PackSearch(board, movable, frozenset(self._fixed), self._chance, budget).seat_missing()
        found = self._judge(movable)
        if found[0] or not known:
            board.clear(movable)
            put_first_fit(board, movable, budget)
            self._lay_best(movable, [found, self._judge(movable)])

    def _make_plans(self, movable: Sequence[int], budget: StepBudget, *, known: bool) -> list[_JudgedPlan]:
        board, value = self._board, self._value
        assert value is not None, "pack made it"
        plans: list[_JudgedPlan] = []
        least = _PLANS_TRIED * len(movable) * len(board.seats_in_use()) if known else 0
        if known:
            put_all(board, value, [one for one in movable if board.at[one] == NOWHERE], budget)
            plans.append(self._judge(movable))
        for order in ORDERS[: len(ORDERS) if len(movable) <= _FEW_CLAIMS else 1]:
            if budget.left > least or not plans:
                board.clear(movable)
                put_all(board, value, order(board, movable), budget)
                plans.append(self._judge(movable))
        if len(movable) <= _FEWEST_CLAIMS and budget.left > least:
            board.clear(movable)
            fill_seat_by_seat(board, movable, budget)
            plans.append(self._judge(movable))
        return plans

    def _lay_best(self, movable: Sequence[int], plans: Sequence[_JudgedPlan]) -> None:
        self._board.clear(movable)
        self._board.lay(movable, min(plans)[-1])

    def _judge(self, movable: Sequence[int]) -> _JudgedPlan:
        """Return the plan on the board with what it is judged by: claims without a seat, then cost."""
        board = self._board
        return sum(board.at[one] == NOWHERE for one in movable), board.cost, board.at.copy()

    def _bound_without(self, missing: Iterable[str]) -> int:
        """Return the lower bound for all claims but those of some holders."""
        for holder in missing:
            self._sums.add(self._held[holder].claim, -1)
        bound = self._sums.lower_bound(self._terms.lead, len(self._terms.standing))
        for holder in missing:
            self._sums.add(self._held[holder].claim)
        return bound

    def _improve(self, movable: Sequence[int], budget: StepBudget, enough: int = 0) -> None:
        PackSearch(self._board, movable, frozenset(self._fixed), self._chance, budget).run(enough)
        self._board.begin()
