"""Kinds of machines that a pool may have, and what a plan costs in money.

A seat's machine is of one kind for the whole plan. Money is a kind's price of an hour, in any whole unit, times
microseconds. A seat without a machine yet has the cheapest kind that holds its claims at every moment. `money_bound` is
what no plan can save: at each moment what is needed, at prices of the dimensions at which no kind is worth more than it
costs, whichever prices say the most.
`pack_mixed` looks for a cheap plan.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import accumulate, combinations
from math import gcd, lcm
from typing import Final, NamedTuple

from lcm.model.base.capacity import DIMENSIONS, Amount, Claim, read_dimensions
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_bound import MachineCount, total_time
from lcm.placement.request import HeldClaim
from lcm.placement.seats import KEEP_THROUGH_GAP, Span, span_of

_MICROSECOND: Final = timedelta(microseconds=1)
_FINEST: Final = 64
"""Into so many parts the dearest machine is divided for the bound, where prices have no coarser unit in common."""
_FEW_MACHINES: Final = 8
"""The sums that so many of the dearest may cost are known; above, all multiples of the prices' common unit may be."""

_Priced = tuple[Sequence[int], int]
"""What a kind holds, by place, and its price."""


class MachineKind(NamedTuple):
    """A kind of machine: what it holds, and what an hour of it costs, in any whole unit of money."""

    name: str
    capacity: Amount
    price: int


class KindTerms(NamedTuple):
    """What a pool with several kinds of machines is packed by; `PackTerms` describes the fields that it has too.

    `given` has the names of the kinds of those seats whose machine exists, and so of all that are standing. A claim
    changes its seat only where that saves the `move_price` on the cheapest machine.
    """

    kinds: tuple[MachineKind, ...]
    seats: int
    lead: timedelta
    keep: timedelta = KEEP_THROUGH_GAP
    move_price: timedelta = timedelta(0)
    standing: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    given: Mapping[int, str] = {}

    def of_kind(self, kind: MachineKind, closed: frozenset[int]) -> PackTerms:
        """Return the terms of a pool whose open seats all have machines of one kind."""
        return PackTerms(kind.capacity, self.seats, self.lead, self.keep, self.move_price, self.standing, closed)

    def open_seats(self) -> list[int]:
        """Return the seats that take further claims."""
        return [seat for seat in range(1, self.seats + 1) if seat not in self.closed]

    def check(self) -> None:
        """Raise ValueError for no kinds, two of one name, prices below zero, and seats without a kind that need one."""
        names = {kind.name for kind in self.kinds}
        if not names or len(names) < len(self.kinds) or any(kind.price < 0 for kind in self.kinds):
            raise ValueError("kinds of machines need different names, and prices")
        if not names.issuperset(self.given.values()) or not set(self.given) <= set(range(1, self.seats + 1)):
            raise ValueError(f"seats or kinds that the pool does not have: {dict(self.given)}")
        if len(names) > 1 and not self.standing <= set(self.given):
            raise ValueError(f"machines that always run have a kind: {sorted(self.standing - set(self.given))}")


class SeatJudge:
    """What seats cost by the claims on them; through gaps below `gap` a machine is kept."""

    __slots__ = ("_by_name", "_by_price", "_lead", "_terms", "gap")

    def __init__(self, terms: KindTerms) -> None:
        self._terms = terms
        self._by_price = sorted(terms.kinds, key=lambda kind: kind.price)
        self._by_name = {kind.name: kind for kind in terms.kinds}
        self._lead = terms.lead // _MICROSECOND
        self.gap = self._lead + terms.keep // _MICROSECOND

    def choose_kind(self, seat: int, claims: Sequence[Claim]) -> MachineKind:
        """Return the given kind of a seat, or the cheapest that holds its claims; the dearest if none does."""
        if seat in self._terms.given:
            return self._by_name[self._terms.given[seat]]
        peak = peak_of(claims)
        return next((kind for kind in self._by_price if peak.within(kind.capacity)), self._by_price[-1])

    def cost(self, seat: int, claims: Sequence[Claim]) -> int:
        """Return what a seat's machine costs, in money; nothing if it always runs."""
        if seat in self._terms.standing:
            return 0
        return self.choose_kind(seat, claims).price * run_length(map(span_of, claims), self._lead, self.gap)


class RunPrices:
    """What plans cost if the machine of each run of a seat is of the cheapest kind that holds it."""

    def __init__(self, terms: KindTerms, book: Iterable[HeldClaim]) -> None:
        self._terms = terms
        self._book = {held.holder: held.claim for held in book}
        self._judge = SeatJudge(terms._replace(given={}))
        self._move_money = terms.move_price // _MICROSECOND * max(kind.price for kind in terms.kinds)

    def worth(self, plan: Mapping[str, int], present: Mapping[str, int]) -> int:
        """Return what a plan is judged by: its money, and what its moves from the present one must save."""
        rows: dict[int, list[Claim]] = {}
        for holder, seat in plan.items():
            rows.setdefault(seat, []).append(self._book[holder])
        moved = sum(present.get(holder, seat) != seat for holder, seat in plan.items())
        runs = ((seat, run) for seat, row in rows.items() for run in self._split_runs(row))
        return sum(self._judge.cost(seat, run) for seat, run in runs) + moved * self._move_money

    def _split_runs(self, claims: Sequence[Claim]) -> list[list[Claim]]:
        """Split the claims of a seat where its machine is released."""
        found, until = list[list[Claim]](), 0
        for claim in sorted(claims, key=lambda one: one.start):
            start, end = span_of(claim)
            if not found or start - until >= self._judge.gap:
                found.append([])
                until = end
            found[-1].append(claim)
            until = max(until, end)
        return found


def peak_of(claims: Iterable[Claim]) -> Amount:
    """Return the most that is claimed at any moment, in each dimension on its own."""
    rows = _demand_over_time(claims).rows[1:]
    return Amount(**{name: max(row, default=0) for name, row in zip(DIMENSIONS, rows, strict=True)})


def run_length(spans: Iterable[Span], lead: int, gap: int) -> int:
    """Return how long a machine runs for claims, its boots and the gaps through which it is kept included."""
    total, until = 0, None
    for start, end in sorted(span for span in spans if span.start < span.end):
        if until is None or start > until:
            total += end - start + (lead if until is None or start - until >= gap else start - until)
        else:
            total += max(0, end - until)
        until = end if until is None else max(until, end)
    return total


def money_bound(claims: Iterable[Claim], terms: KindTerms) -> int:
    """Return what machines cost at least for claims that machines of the pool hold, in money.

    The money that runs at a moment is a stack of units; each is started, or kept since it ran last, as machines are.
    """
    demand = _demand_over_time(claims)
    left = [[max(0, one - free) for one in row] for row, free in zip(demand.rows, _standing_room(terms), strict=True)]
    vectors = _fair_prices(terms.kinds)
    scale = lcm(*(price.denominator for prices in vectors for price in prices.values()))
    most = [0] * len(demand.moments)
    for prices in vectors:
        rows = [[int(price * scale) * one for one in left[place]] for place, price in prices.items()]
        most = list(map(max, most, map(sum, zip(*rows, strict=True))))
    finest = max(kind.price for kind in terms.kinds) // _FINEST
    unit = max(1, finest, gcd(*(kind.price for kind in terms.kinds)))
    counts = [one // unit for one in _round_up(most, scale, terms.kinds)]
    return unit * total_time(list(map(MachineCount, demand.moments, counts)), terms.lead // _MICROSECOND)


def _round_up(amounts: Sequence[int], scale: int, kinds: Sequence[MachineKind]) -> list[int]:
    """Return amounts of money, after a division by a scale, as the next that machines which run together may cost."""
    step, most, sums = max(1, gcd(*(kind.price for kind in kinds))), _FEW_MACHINES * max(k.price for k in kinds), {0}
    for price in {kind.price for kind in kinds if kind.price}:
        sums |= {one + count * price for one in sums for count in range(1, (most - one) // price + 1)}
    payable = sorted(sums)
    steps = (-(-amount // (scale * step)) * step for amount in amounts)
    return [payable[bisect_left(payable, one)] if one <= payable[-1] else one for one in steps]


def _fair_prices(kinds: Sequence[MachineKind]) -> list[dict[int, Fraction]]:
    """Return prices at which no kind holds more than it costs, so that what is needed costs no less in machines.

    They are by place: 0 is for having any machine, the others for a unit of each dimension, one or two at a time.
    """
    rows = [((1, *read_dimensions(kind.capacity)), kind.price) for kind in kinds]
    places = [place for place in range(1 + len(DIMENSIONS)) if any(row[place] for row, _ in rows)]
    made = [{place: min(Fraction(price, row[place]) for row, price in rows if row[place])} for place in places]
    for one, two in combinations(places[1:], 2):
        pairs = (_fair_pair(left, right, one, two) for left, right in combinations(rows, 2))
        made += [pair for pair in pairs if pair and all(_value_at(pair, row) <= price for row, price in rows)]
    return made


def _fair_pair(left: _Priced, right: _Priced, one: int, two: int) -> dict[int, Fraction] | None:
    """Return the prices of two dimensions at which two kinds are worth what they cost; None if there are none."""
    (a, b), (c, d) = (left[0][one], left[0][two]), (right[0][one], right[0][two])
    if a * d == b * c:
        return None
    first, second = left[1] * d - right[1] * b, a * right[1] - c * left[1]
    found = {one: Fraction(first, a * d - b * c), two: Fraction(second, a * d - b * c)}
    return found if min(found.values()) >= 0 else None


def _value_at(prices: Mapping[int, Fraction], row: Sequence[int]) -> Fraction:
    return sum((price * row[place] for place, price in prices.items()), Fraction(0))


def _standing_room(terms: KindTerms) -> list[int]:
    """Return whether any machine always runs, and then what all of those hold of each dimension."""
    kinds = {kind.name: kind for kind in terms.kinds}
    there = [kinds[terms.given.get(seat, terms.kinds[0].name)].capacity for seat in terms.standing]
    return [min(1, len(there)), *(sum(getattr(one, name) for one in there) for name in DIMENSIONS)]


class _Demand(NamedTuple):
    """From each moment on: whether anything is claimed, and then how much of each dimension; a row for each."""

    moments: Sequence[int]
    rows: Sequence[Sequence[int]]


def _demand_over_time(claims: Iterable[Claim]) -> _Demand:
    steps: dict[int, list[int]] = {}
    for claim in claims:
        start, end = span_of(claim)
        if start < end:
            for moment, sign in ((start, 1), (end, -1)):
                sums = steps.setdefault(moment, [0] * (1 + len(DIMENSIONS)))
                sums[0] += sign
                for place, amount in enumerate(read_dimensions(claim.need), 1):
                    sums[place] += sign * amount
    moments = sorted(steps)
    rows = zip(*(steps[moment] for moment in moments), strict=True) if moments else [()] * (1 + len(DIMENSIONS))
    count, *amounts = (list(accumulate(row)) for row in rows)
    return _Demand(moments, [[min(1, one) for one in count], *amounts])
