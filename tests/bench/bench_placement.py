"""Placement against a loop over all workers, at ten thousand workers against a hundred, and the building of its index.

Both sides decide the same requests in the same order from the same fleet, hold what they decided and release what has
ended. Rates count the process's own seconds: there is nothing but computing in them, and what else the machine does
would meet the short runs of one side and the long runs of the other unequally. A run lasts a quarter of an hour in the
larger fleet: bookings end at quarters, and no run is to be without any to release. Its first decisions are not counted,
on either side: they fetch what the other side's run has driven out of the processor's caches.
"""

import copy
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.baseline.placement import Workers
from bench.figures import Figure, Measured, ratio
from bench.placement_load import Coming, Day, Ends, coming, filled
from lcm.placement.candidate import PackedRequest
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import place
from lcm.placement.request import HeldClaim
from lcm.placement.strategies import bin_pack

RUNS = 3
WORKERS = 1_000
PAIRS = 9
WARM_UP = 25
DECISIONS = 300
DECISIONS_COMPARED = 150
FEW_WORKERS, MANY_WORKERS = 100, 10_000
PAIRS_AT_SCALE = 9
WARM_UP_AT_SCALE = 200
DECISIONS_AT_SCALE = 3_000
CLAIMS = 100_000
FLOOR_DECISIONS_PER_SECOND = 200.0

Chosen = list[tuple[str, float] | None]


class Ours:
    """The product: one index, kept up to date."""

    def __init__(self, fleet: PlaceIndex, ends: Ends) -> None:
        self.fleet, self.ends = fleet, ends

    def decide(self, several: Sequence[Coming]) -> Chosen:
        fleet, ends, chosen = self.fleet, self.ends, Chosen()
        for now, minute, request, end in several:
            fleet.advance(now)
            if minute > ends.minute:
                ends.release(minute, fleet.release)
            decision = place(fleet, request).decision
            id_ = decision.worker_id
            if id_ is None:
                chosen.append(None)
            else:
                fleet.hold(id_, HeldClaim(request.name, request.claim))
                ends.add(end, id_, request.name)
                chosen.append((id_, decision.score or 0.0))
        return chosen


class Bare:
    """The loop over all workers, with the same claims."""

    def __init__(self, ours: Ours) -> None:
        places = [line.place for line in ours.fleet.indexed_places()]
        self.workers = Workers(places, {place.id: tuple(ours.fleet.claims_on(place.id)) for place in places})
        self.ends = copy.deepcopy(ours.ends)

    def decide(self, several: Sequence[Coming]) -> Chosen:
        workers, ends, chosen = self.workers, self.ends, Chosen()
        for _, minute, request, end in several:
            if minute > ends.minute:
                ends.release(minute, workers.release)
            found = workers.place(request)
            if found is not None:
                ends.add(end, found[0], request.name)
            chosen.append(found)
        return chosen


def rate(
    decide: Callable[[Sequence[Coming]], Chosen], several: Sequence[Coming], *, uncounted: int = 0
) -> tuple[float, Chosen]:
    gc.collect()
    chosen, counted = decide(several[:uncounted]), several[uncounted:]
    started = time.process_time()
    chosen += decide(counted)
    return len(counted) / (time.process_time() - started), chosen


async def bench_against_a_loop() -> list[Figure]:
    runs = [await measure_run(seed) for seed in range(1, RUNS + 1)]
    median = sorted(runs, key=lambda run: run.measured.ratio)[RUNS // 2]
    lowest = min(run.measured.ratio for run in runs)
    valid = all(run.measured.valid for run in runs)
    told = ", ".join(f"{run.measured.ratio:.1f}" for run in runs)
    note = f"times {median.measured.bare:.0f} decisions/s at {WORKERS} workers; runs {told}; placed {median.placed}"
    return [
        Figure("placement_loop", median.measured.ratio, 100, floor_ok=valid, note=note),
        Figure("placement_loop_lowest", lowest, 60, floor_ok=valid, note=f"the lowest of {RUNS} runs"),
        agreement(median.ours, median.day),
    ]


class Run(NamedTuple):
    day: Day
    ours: Ours
    measured: Measured
    placed: str


async def measure_run(seed: int) -> Run:
    day = Day(WORKERS, seed)
    ours = Ours(*filled(day, WORKERS))
    bare = Bare(ours)
    batches = [coming(day, WARM_UP + DECISIONS) for _ in range(PAIRS)]
    chosen: dict[str, Chosen] = {"ours": [], "bare": []}

    async def run(side: Ours | Bare, name: str) -> float:
        batch = batches[len(chosen[name]) // (WARM_UP + DECISIONS)]
        found_rate, found = rate(side.decide, batch, uncounted=WARM_UP)
        chosen[name] += found
        return found_rate

    measured = await ratio(
        lambda: run(ours, "ours"), lambda: run(bare, "bare"), pairs=PAIRS, floor=FLOOR_DECISIONS_PER_SECOND
    )
    placed = {name: sum(one is not None for one in found) for name, found in chosen.items()}
    return Run(day, ours, measured, f"{placed} of {len(chosen['ours'])}")


def agreement(ours: Ours, day: Day) -> Figure:
    """Compare each choice with the best of all workers that fit, in the same fleet at the same moment."""
    same, lost, several = 0, 0.0, coming(day, DECISIONS_COMPARED)
    for one in several:
        ask = PackedRequest(one.request)
        before = [line for line in ours.fleet.indexed_places() if ask.rejection(line) is None]
        best = max(((bin_pack(line, ask), line.place.id) for line in before), key=lambda one: one[0])
        (chosen,) = ours.decide([one])
        assert chosen is not None
        assert chosen[0] in {line.place.id for line in before}
        same += chosen == (best[1], best[0])
        lost += best[0] - chosen[1]
    note = f"chose the very best of all that fit; its score was lower by {lost / len(several):.3g} on average"
    return Figure("placement_agreement", same / len(several), 0.5, note=note)


async def bench_at_scale() -> list[Figure]:
    days = {workers: Day(workers, seed=2) for workers in (FEW_WORKERS, MANY_WORKERS)}
    fleets = {workers: Ours(*filled(day, workers)) for workers, day in days.items()}
    index = build_index(fleets[MANY_WORKERS].fleet)

    async def run(workers: int) -> float:
        return rate(fleets[workers].decide, coming(days[workers], DECISIONS_AT_SCALE), uncounted=WARM_UP_AT_SCALE)[0]

    many, few = lambda: run(MANY_WORKERS), lambda: run(FEW_WORKERS)
    measured = await ratio(many, few, pairs=PAIRS_AT_SCALE, floor=FLOOR_DECISIONS_PER_SECOND)
    note = f"of {measured.bare:.0f} decisions/s at {FEW_WORKERS} workers are left at {MANY_WORKERS}"
    return [Figure("placement_flatness", measured.ratio, 0.8, floor_ok=measured.valid, note=note), index]


def build_index(fleet: PlaceIndex) -> Figure:
    """Build the index of these workers and their claims anew, and count the process's own seconds."""
    places = [line.place for line in fleet.indexed_places()]
    claims = [(place.id, held) for place in places for held in fleet.claims_on(place.id)][:CLAIMS]
    assert len(claims) == CLAIMS
    held: defaultdict[str, list[HeldClaim]] = defaultdict(list)
    for id_, one in claims:
        held[id_].append(one)
    gc.collect()
    started = time.process_time()
    built = PlaceIndex(places, held)
    seconds = time.process_time() - started
    note = f"seconds for the index of {len(built)} workers and {CLAIMS} claims"
    return Figure("placement_index", seconds, 3, at_least=False, note=note)
