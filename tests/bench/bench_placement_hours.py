"""How many hours workers run for a timetable: ours against first fit, and against the proven optimum.

Bookings come one by one and each gets its seat at once; before anything is launched, what is booked is packed as
one problem. First fit takes the lowest seat with room. Boots count, once per opening of a seat, and gaps through which
a worker is kept. The optimum knows the whole timetable beforehand, has one seat more than ours took, and may keep or
release workers as it likes.
"""

import statistics
from collections.abc import Sequence

from bench.baseline.optimum import optimum
from bench.figures import Figure
from bench.timetables import LARGE, LEAD, SEEDS, SMALL, timetable
from harness import given
from lcm.placement.limits import PromiseRules
from lcm.placement.pack import Packer
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_problem import STEPS_PER_CLAIM
from lcm.placement.promise import PromisedSeats, promise
from lcm.placement.request import HeldClaim
from lcm.placement.seats import Seats, span_of

BEFORE = PromiseRules(given.moment("00:00", day=-7))
SEATS = 150
SECONDS = 30.0
"""Of work for the proof of one optimum. Where it is not found the bound stands in, which is less than the optimum."""
HOUR = 3_600_000_000


async def bench_first_fit() -> list[Figure]:
    ours, promised, bare = [], [], []
    for seed in SEEDS:
        kind, book = timetable(seed, LARGE)
        seats = _promised(book, SEATS)
        promised.append(seats.time / HOUR)
        seats = _packed(seats)
        ours.append(seats.time / HOUR)
        bare.append(_first_fit(book).time / HOUR)
        print(f"  {seed:2} {kind:18} {len(book)} sessions: first fit {bare[-1]:.1f} h, {_told(promised, ours, bare)}")
    note = f"of first fit's {sum(bare):.0f} worker-hours; {sum(promised) / sum(bare):.3f} before seating anew"
    return [Figure("placement_hours_first_fit", sum(ours) / sum(bare), 0.95, at_least=False, note=note)]


async def bench_optimum() -> list[Figure]:
    ours, promised, best, proven = [], [], [], 0
    for seed in SEEDS:
        kind, book = timetable(seed, SMALL)
        seats = _promised(book, SEATS)
        promised.append(seats.time / HOUR)
        seats = _packed(seats)
        ours.append(seats.time / HOUR)
        at = {held.holder: number - 1 for number, held in seats.all_claims()}
        hint = [at[held.holder] for held in book]
        found = optimum(book, seats.capacity, len(set(hint)) + 1, LEAD, hint=hint, seconds=SECONDS)
        best.append(found.bound)
        proven += found.proven
        word = "optimum" if found.proven else "bound"
        print(f"  {seed:2} {kind:18} {len(book)} sessions: {word} {found.bound:.1f} h, {_told(promised, ours, best)}")
    ratios = [mine / least for mine, least in zip(ours, best, strict=True)]
    note = f"of the optimum, {proven} of {len(SEEDS)} proven; {_mean(promised, best):.3f} before seating anew"
    return [
        Figure("placement_hours_optimum_mean", statistics.mean(ratios), 1.05, at_least=False, note=note),
        Figure("placement_hours_optimum_max", max(ratios), 1.15, at_least=False),
    ]


def _promised(book: Sequence[HeldClaim], size: int) -> Seats:
    seats = Seats(given.machine(), size, lead=LEAD)
    for held in book:
        answer = promise(seats, held.claim, rules=BEFORE)
        assert isinstance(answer, PromisedSeats)
        seats.hold(answer.seat, held)
    return seats


def _packed(seats: Seats) -> Seats:
    """Pack what is booked, as the pool controller does before it launches machines."""
    packer, made = Packer(PackTerms(seats.capacity, len(seats), LEAD)), Seats(seats.capacity, len(seats), lead=LEAD)
    book = {held.holder: held for _, held in seats.all_claims()}
    for number, held in seats.all_claims():
        packer.hold(held, number)
    packer.pack(STEPS_PER_CLAIM * len(book))
    for holder, number in packer.packing().plan.items():
        made.hold(number, book[holder])
    return made


def _first_fit(book: Sequence[HeldClaim]) -> Seats:
    seats = Seats(given.machine(), SEATS, lead=LEAD)
    for held in book:
        span = span_of(held.claim)
        seats.hold(next(n for n in range(1, SEATS + 1) if seats.fits(n, span, held.claim.need)), held)
    return seats


def _told(promised: Sequence[float], ours: Sequence[float], other: Sequence[float]) -> str:
    ratios = f"{promised[-1] / other[-1]:.3f} promised, {ours[-1] / other[-1]:.3f} seated anew"
    return f"{promised[-1]:.1f} h promised, {ours[-1]:.1f} h seated anew: {ratios}"


def _mean(some: Sequence[float], others: Sequence[float]) -> float:
    return statistics.mean(one / other for one, other in zip(some, others, strict=True))
