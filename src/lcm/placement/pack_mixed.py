"""The packer for pools with several kinds of machines: which seat each claim has and of which kind a seat's machine is.

Machines that always run are filled first, because they cost nothing more. Then all claims are packed on machines of one
kind, and what those do not take on the others; this with each kind. Runs of such a plan go to seats of the cheapest
kind that holds them (`pack_runs`). The cheapest of these plans is improved: the claims of some seats are packed anew in
the same way, which is kept if it costs no more. With one kind this is `pack_claims`. Pure; the same input and seed give
the same plan.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from lcm.model.base.capacity import Claim
from lcm.placement.pack import MOST_STEPS, pack_claims
from lcm.placement.pack_board import NOWHERE, PackBoard
from lcm.placement.pack_build import Chance, fill_holes
from lcm.placement.pack_kinds import KindTerms, MachineKind, SeatJudge, money_bound, peak_of
from lcm.placement.pack_runs import regroup_runs
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of

_PART_STEPS: Final = 150
"""Looks at a seat, for each claim of the seats that are packed anew."""
_LEAST_STEPS: Final = 5_000
_MOST_SEATS: Final = 8
"""How many seats are packed anew together."""
_FRESH_SEATS: Final = 3
"""How many seats may take the place of one: smaller machines are more."""
_PATIENCE: Final = 80
"""After so many tries without a gain the search ends."""
_MICROSECOND: Final = timedelta(microseconds=1)

_Plan = dict[str, int]
"""The seat of each holder, from 1."""


class KindPacking(NamedTuple):
    """A plan: the seat of each holder, the kind of each seat that has any claim, and what its machines cost, in money.

    No plan costs less than the `bound`, except a present one that has too much on a seat. `moved` counts the holders
    that had another seat before. No seat takes those that are `unplaced`.
    """

    plan: Mapping[str, int]
    kinds: Mapping[int, str]
    money: int
    bound: int
    moved: int
    unplaced: tuple[str, ...] = ()


def pack_on_kinds(
    claims: Iterable[HeldClaim],
    terms: KindTerms,
    *,
    present: Mapping[str, int] | None = None,
    fixed: Collection[str] = (),
    steps: int = MOST_STEPS,
    seed: int = 0,
) -> KindPacking:
    """Pack claims at the least money; holders that are fixed keep their seats.

    Raise ValueError for terms that make no sense, for a fixed claim without a seat, and for a seat that the pool does
    not have.
    """
    terms.check()
    book = {held.holder: held for held in claims}
    known = {holder: seat for holder, seat in (present or {}).items() if holder in book}
    if len(terms.kinds) == 1:
        (kind,) = terms.kinds
        whole = terms.of_kind(kind, terms.closed)
        packing = pack_claims(book.values(), whole, present=known, fixed=fixed, steps=steps, seed=seed)
        money, bound = packing.time * kind.price, packing.bound * kind.price
        kinds = dict.fromkeys(packing.plan.values(), kind.name)
        return KindPacking(packing.plan, kinds, money, bound, packing.moved, packing.unplaced)
    mixer = _Mixer(book, terms, known, fixed, seed)
    return mixer.packing(mixer.search(steps))


class _Made(NamedTuple):
    """A plan in the making, and the kinds of the seats that it uses."""

    plan: _Plan
    kinds: dict[int, str]


class _Mixer:
    """The search for one pool's plan."""

    def __init__(
        self, book: Mapping[str, HeldClaim], terms: KindTerms, present: _Plan, fixed: Collection[str], seed: int
    ) -> None:
        if (
            not set(present.values()) <= set(range(1, terms.seats + 1))
            or not set(fixed) & book.keys() <= present.keys()
        ):
            raise ValueError(f"not all have a seat of the pool to keep: {present}")
        self._book, self._terms, self._present, self._seed = book, terms, present, seed
        self._judge = SeatJudge(terms)
        self._chance = Chance(seed)
        self._fixed = {holder: seat for holder, seat in present.items() if holder in fixed or seat in terms.closed}
        self._move_money = terms.move_price // _MICROSECOND * min(kind.price for kind in terms.kinds)
        rows = self._rows(self._fixed)
        self._free = set(terms.open_seats()) - terms.given.keys() - rows.keys()
        self._allowed = {seat: self._find_allowed(seat, rows.get(seat, [])) for seat in terms.open_seats()}

    def _find_allowed(self, seat: int, claims: Sequence[Claim]) -> frozenset[str]:
        """Return the kinds that a seat may have: the given one, or those that hold what is fixed there."""
        given, peak = self._terms.given.get(seat), peak_of(claims)
        return frozenset(
            kind.name for kind in self._terms.kinds if kind.name == given or (not given and peak.within(kind.capacity))
        )

    def _rows(self, plan: Mapping[str, int]) -> dict[int, list[Claim]]:
        return {seat: [held.claim for held in row] for seat, row in self._held_rows(plan).items()}

    def _held_rows(self, plan: Mapping[str, int]) -> dict[int, list[HeldClaim]]:
        rows: dict[int, list[HeldClaim]] = {}
        for holder, seat in plan.items():
            rows.setdefault(seat, []).append(self._book[holder])
        return rows

    def packing(self, plan: _Plan) -> KindPacking:
        """Return a plan with what it costs."""
        kinds = {seat: self._judge.choose_kind(seat, row).name for seat, row in self._rows(plan).items()}
        missing = tuple(holder for holder in self._book if holder not in plan)
        bound = money_bound((self._book[holder].claim for holder in plan), self._terms)
        return KindPacking(plan, kinds, self._money(plan), bound, self._count_moved(plan), missing)

    def _money(self, plan: _Plan) -> int:
        return sum(self._judge.cost(seat, row) for seat, row in self._rows(plan).items())

    def _count_moved(self, plan: _Plan) -> int:
        return sum(self._present.get(holder, seat) != seat for holder, seat in plan.items())

    def _worth(self, plan: _Plan) -> int:
        """Return what a plan is judged by: its money, and what its moves must save."""
        return self._money(plan) + self._count_moved(plan) * self._move_money

    def search(self, steps: int) -> _Plan:
        """Return the cheapest plan that is found."""
        begin = 3 * steps // 4
        plan, left, idle = self._begin(begin), steps - begin, 0
        while left > 0 and idle < _PATIENCE and any(seat in self._allowed for seat in plan.values()):
            chosen = self._draw_seats(plan)
            before = {holder: seat for holder, seat in plan.items() if seat in chosen}
            each = max(_LEAST_STEPS, _PART_STEPS * len(before))
            idle = 0 if self._improve(plan, before, each) else idle + 1
            left -= each
        return plan

    def _begin(self, steps: int) -> _Plan:
        """Return the best of the present plan, with who is missing there, and of plans with each kind first."""
        seats, few = set(self._allowed), steps // (3 * len(self._terms.kinds))
        movable = {holder: self._present.get(holder, 0) for holder in self._book if holder not in self._fixed}
        plans = [self._complete(movable, few)] if self._present else []
        if not plans or steps > 0 or len(plans[0]) < len(self._book):
            made = [(kinds, self._fixed | self._build(kinds, movable, seats, few)) for kinds in self._orders()]
            best, _ = min(made, key=lambda one: self._rank(one[1]))
            plans += [*(plan for _, plan in made), self._fixed | self._build(best, movable, seats, 2 * steps // 3)]
            plans += [self._regroup(plan, seats) for plan in plans[-len(made) - 1 :]]
        return min(plans, key=self._rank)

    def _complete(self, movable: _Plan, steps: int) -> _Plan:
        """Return the present plan, with who is missing there on seats that nobody has."""
        missing = {holder: 0 for holder, seat in movable.items() if not seat}
        others = self._allowed.keys() - set(self._present.values())
        return self._present | self._build(self._terms.kinds, missing, others, steps)

    def _rank(self, plan: _Plan) -> tuple[int, int]:
        """Return what plans are compared by: how many they seat, and what they cost."""
        return -len(plan), self._worth(plan)

    def _orders(self) -> list[tuple[MachineKind, ...]]:
        """Return the kinds in as many orders, each of them first in one."""
        kinds = self._terms.kinds
        return [(first, *(kind for kind in kinds if kind != first)) for first in kinds]

    def _improve(self, plan: _Plan, before: _Plan, steps: int) -> bool:
        """Pack the claims of some seats anew, on kinds in an order by chance; return whether that saved money."""
        movable = {holder: seat for holder, seat in before.items() if holder not in self._fixed}
        used, chosen = set(plan.values()), set(before.values())
        fresh = [seat for seat in self._allowed if seat not in used][: _FRESH_SEATS * len(chosen)]
        kinds = sorted(self._terms.kinds, key=lambda _: self._chance.fraction())
        drawn = self._chance.below(2 * len(movable) + 1)
        longer = self._length(sorted(movable)[drawn]) if drawn < len(movable) else None
        found = self._build(kinds, movable, chosen.union(fresh), steps, longer)
        if len(found) < len(movable):
            return False
        found = min(before | found, self._regroup(before | found, chosen.union(fresh)), key=self._worth)
        saved = self._worth(before) - self._worth(found)
        if saved >= 0:
            plan.update(found)
        return saved > 0

    def _draw_seats(self, plan: _Plan) -> set[int]:
        used = sorted(set(plan.values()) & self._allowed.keys())
        count = 2 + self._chance.below(_MOST_SEATS - 1)
        return {used[self._chance.below(len(used))] for _ in range(count)}

    def _regroup(self, plan: _Plan, seats: Collection[int]) -> _Plan:
        """Return a plan with its runs where they cost the least, as far as they may move among some seats."""
        found = regroup_runs(self._held_rows(plan), sorted(self._free.intersection(seats)), self._judge)
        return plan if found is None else plan | found

    def _build(
        self,
        kinds: Sequence[MachineKind],
        holders: _Plan,
        seats: Collection[int],
        steps: int,
        longer: int | None = None,
    ) -> _Plan:
        """Return a plan for holders with the seats that they have, 0 for none, on seats where only fixed ones stay.

        Claims that last longer than a time, if one is said, get machines of the first kind; others fill their holes.
        """
        made = _Made({}, {})
        for kind in kinds:
            self._add_stage(made, kind, holders, self._terms.standing.intersection(seats), steps)
        if longer is not None:
            # Those that have a seat by now count there.
            first = {one: seat for one, seat in holders.items() if one in made.plan or self._length(one) > longer}
            self._add_stage(made, kinds[0], first, seats, steps)
            made.plan.update(self._fill_holes(kinds[0], made, holders.keys() - made.plan.keys()))
        for kind in (*kinds[1:], kinds[0]) if longer is not None else kinds:
            self._add_stage(made, kind, holders, seats, steps)
        return made.plan

    def _add_stage(self, made: _Made, kind: MachineKind, holders: _Plan, seats: Collection[int], steps: int) -> None:
        """Pack those that have no seat yet on machines of one kind, with all that are there already."""
        plan, free = made.plan, {seat for seat in seats if self._may_be(seat, kind, made.kinds)}
        there = {one: seat for one, seat in plan.items() if seat in free}
        waiting = {one: seat for one, seat in holders.items() if one not in plan}
        if free and waiting:
            found = self._pack_one_kind(kind, there | waiting, free, steps)
            for one in there.keys() - found.keys():
                del plan[one]  # it made room for others
            plan.update(found)
            made.kinds.update((seat, kind.name) for seat in found.values())

    def _fill_holes(self, kind: MachineKind, made: _Made, holders: Collection[str]) -> _Plan:
        """Return the seats of those that fit on machines of one kind which then run no longer."""
        seats = {seat for seat, name in made.kinds.items() if name == kind.name}
        there = {holder: seat for holder, seat in (self._fixed | made.plan).items() if seat in seats}
        board = PackBoard(self._terms.of_kind(kind, frozenset(range(1, self._terms.seats + 1)) - seats))
        for holder, seat in there.items():
            board.put(self._add_to(board, holder), seat - 1)
        numbers = {holder: self._add_to(board, holder) for holder in sorted(holders) if self._length(holder) > 0}
        fill_holes(board, list(numbers.values()))
        return {holder: board.at[number] + 1 for holder, number in numbers.items() if board.at[number] != NOWHERE}

    def _add_to(self, board: PackBoard, holder: str) -> int:
        claim = self._book[holder].claim
        return board.add(*span_of(claim), claim.need)

    def _length(self, holder: str) -> int:
        start, end = span_of(self._book[holder].claim)
        return end - start

    def _may_be(self, seat: int, kind: MachineKind, taken: Mapping[int, str]) -> bool:
        return kind.name in self._allowed[seat] and taken.get(seat, kind.name) == kind.name

    def _pack_one_kind(self, kind: MachineKind, waiting: _Plan, seats: Collection[int], steps: int) -> _Plan:
        """Return the seats of those that wait and get one on machines of one kind.

        They begin where they are, unless such a machine does not hold them there.
        """
        terms = self._terms.of_kind(kind, frozenset(range(1, self._terms.seats + 1)).difference(seats))
        fixed = {holder: seat for holder, seat in self._fixed.items() if seat in seats}
        there = fixed | {holder: seat for holder, seat in waiting.items() if seat in seats}
        held = {seat for seat, row in self._rows(there).items() if peak_of(row).within(kind.capacity)}
        present = {holder: seat for holder, seat in there.items() if holder in fixed or seat in held}
        book = [self._book[holder] for holder in (*fixed, *waiting)]
        packing = pack_claims(book, terms, present=present, fixed=fixed, steps=steps, seed=self._seed)
        return {holder: packing.plan[holder] for holder in waiting if holder in packing.plan}
