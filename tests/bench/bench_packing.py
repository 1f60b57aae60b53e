"""How near to the lower bound booked months are packed, and in what time.

First fit takes the lowest seat with room, in the order of booking. It, the packer and the bound count machine time
alike: boots, and gaps through which a machine is kept. Figures are of the worst seed; they are invalid where first fit
is so near to the bound that nothing is left to gain. `LCM_PACK_SEEDS` sets how many seeds are packed.
"""

import os
import statistics
import time
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from bench.booked_months import LEAD, booked_month, planted_set
from bench.figures import Figure
from harness import given
from lcm.model.base.capacity import DIMENSIONS
from lcm.placement.pack import Packer, Packing, pack_claims
from lcm.placement.pack_arrival import order_arrivals, place_arrivals
from lcm.placement.pack_board import NOWHERE, PackBoard, PackTerms
from lcm.placement.pack_bound import lower_bound
from lcm.placement.pack_forecast import ArrivalForecast
from lcm.placement.pack_kinds import KindTerms, MachineKind
from lcm.placement.pack_mixed import pack_on_kinds
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of

SEEDS = range(int(os.environ.get("LCM_PACK_SEEDS", "10")))
STEPS = {1_000: 8_000_000, 5_000: 90_000_000, 20_000: 22_000_000}
"""Looks for the sessions of a month; the largest has a limit of CPU time, and needs fewer for each session."""
PLANTED = [(dimensions, items) for dimensions in (3, 4, 5, 6) for items in (50, 150, 500)]
PLANTED_STEPS = 1_000_000
LEAST_WASTE = 1.4
"""Of the bound: first fit must waste as much for the packing to mean anything."""
SEATS = 400
KIND_SEATS = 60
KINDS = (
    MachineKind("whole", given.machine(), 400),
    MachineKind("half", given.machine(**{name: getattr(given.machine(), name) // 2 for name in DIMENSIONS}), 210),
    MachineKind("roomy half", given.machine(cpu_millis=24_000, nodes=100), 260),
)
HOUR = 3_600_000_000


class Month(NamedTuple):
    """What one month took: by first fit and packed, of the bound, and CPU seconds from nothing and for one more."""

    first_fit: float
    packed: float
    seconds: float
    one_more: float


async def bench_months() -> list[Figure]:
    figures: list[Figure] = []
    months: list[Month] = []
    for sessions, steps in STEPS.items():
        months = [_pack_month(sessions, seed, steps) for seed in SEEDS]
        worst, mean = max(one.packed for one in months), statistics.mean(one.packed for one in months)
        valid = min(one.first_fit for one in months) >= LEAST_WASTE
        note = f"of the bound, {mean:.3f} in the mean; first fit {statistics.mean(one.first_fit for one in months):.3f}"
        figures.append(Figure(f"packing_{sessions}", worst, 1.15, at_least=False, floor_ok=valid, note=note))
        against = max(one.packed / one.first_fit for one in months)
        figures.append(Figure(f"packing_{sessions}_first_fit", against, 1.0, at_least=False))
    figures.append(Figure("packing_cpu_seconds", max(one.seconds for one in months), 60, at_least=False))
    figures.append(Figure("packing_one_more_cpu_seconds", max(one.one_more for one in months), 0.3, at_least=False))
    return figures


async def bench_planted() -> list[Figure]:
    ratios = []
    for dimensions, items in PLANTED:
        for seed in SEEDS:
            planted = planted_set(dimensions, items, seed)
            terms = PackTerms(planted.capacity, 2 * planted.machines, LEAD)
            packing = pack_claims(planted.book, terms, steps=PLANTED_STEPS)
            assert not packing.unplaced
            ratios.append(len(set(packing.plan.values())) / planted.machines)
    note = f"machines of the optimum, {max(ratios):.3f} at most, {len(ratios)} sets"
    return [Figure("packing_planted", statistics.mean(ratios), 1.03, at_least=False, note=note)]


async def bench_arrivals() -> list[Figure]:
    """Sessions become known when they begin, with their ends."""
    figures = []
    for sessions in STEPS:
        ratios = [_place_arrivals(booked_month(sessions, seed)) for seed in SEEDS]
        note = f"of the bound, {statistics.mean(ratios):.3f} in the mean"
        figures.append(Figure(f"packing_arrivals_{sessions}", max(ratios), 1.2, at_least=False, note=note))
    return figures


async def bench_kinds() -> list[Figure]:
    """Machines may be of several kinds: whole ones, halves, and halves with the memory of a whole one."""
    mixed, alone = [], []
    for seed in SEEDS:
        book = booked_month(1_000, seed)
        packing = pack_on_kinds(book, KindTerms(KINDS, KIND_SEATS, LEAD), steps=STEPS[1_000])
        largest = pack_on_kinds(book, KindTerms(KINDS[:1], KIND_SEATS, LEAD), steps=STEPS[1_000])
        assert not packing.unplaced
        mixed.append(packing.money / packing.bound)
        alone.append(largest.money / packing.bound)
        print(f"  {seed:2} of the bound {mixed[-1]:.3f}, on the largest alone {alone[-1]:.3f}", flush=True)
    worst = max(one / other for one, other in zip(mixed, alone, strict=True))
    note = f"of the money on the largest alone; of the bound {max(mixed):.3f}, on the largest {max(alone):.3f} at most"
    return [Figure("packing_kinds_1000", worst, 1.0, at_least=False, note=note)]


def _pack_month(sessions: int, seed: int, steps: int) -> Month:
    *book, extra = booked_month(sessions + 1, seed)
    bare, bound = _first_fit(book), lower_bound([held.claim for held in book], given.machine(), LEAD)
    packer = Packer(PackTerms(given.machine(), _seats_used(bare), LEAD))
    begin = time.process_time()
    for held in book:
        packer.hold(held)
    packer.pack(steps)
    packing = packer.packing()
    seconds = time.process_time() - begin
    _check(book, packing)
    begin = time.process_time()
    packer.hold(extra)
    packer.repair(extra.holder)
    packer.packing()
    month = Month(bare.cost / bound, packing.time / bound, seconds, time.process_time() - begin)
    ratios = f"first fit {month.first_fit:.3f}, packed {month.packed:.4f}"
    spent = f"{seconds:.1f} CPU s, {month.one_more:.2f} s for one more"
    print(f"  {seed:2} {sessions} sessions, bound {bound / HOUR:.0f} h: {ratios}, {spent}", flush=True)
    return month


def _check(book: Sequence[HeldClaim], packing: Packing) -> None:
    """Count the machine time of a plan again, from nothing."""
    board = PackBoard(PackTerms(given.machine(), SEATS, LEAD))
    for held in book:
        number, seat = board.add(*span_of(held.claim), held.claim.need), packing.plan[held.holder] - 1
        assert board.fits(number, seat)
        board.put(number, seat)
    assert board.cost == packing.time


def _first_fit(book: Sequence[HeldClaim]) -> PackBoard:
    board = PackBoard(PackTerms(given.machine(), SEATS, LEAD))
    for held in book:
        number = board.add(*span_of(held.claim), held.claim.need)
        board.put(number, next(seat for seat in range(SEATS) if board.fits(number, seat)))
        board.begin()
    return board


def _seats_used(board: PackBoard) -> int:
    return sum(bool(there) for there in board.on_seat)


def _place_arrivals(book: Sequence[HeldClaim]) -> float:
    board = PackBoard(PackTerms(given.machine(), SEATS, LEAD))
    claims = [board.add(*span_of(held.claim), held.claim.need) for held in book]
    forecast = ArrivalForecast()
    for _, together in groupby(order_arrivals(board, claims), board.starts.__getitem__):
        place_arrivals(board, together, forecast)
    assert NOWHERE not in board.at
    return board.cost / lower_bound([held.claim for held in book], given.machine(), LEAD)
