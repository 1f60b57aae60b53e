"""Placement against a loop over all workers, and at ten thousand workers against a hundred.

Both sides decide the same requests in the same order from the same fleet, hold what they decided and release what has
ended. Rates count the process's own seconds: there is nothing but computing in them, and what else the machine does
would meet the short runs of one side and the long runs of the other unequally. There are many short pairs,
and in each run the first decisions are not counted, on either side: they fetch what the other side's run has driven out
of the processor's caches.
"""

import copy
import gc
import time
from collections.abc import Callable, Sequence

from bench.baseline.placement import Workers
from bench.figures import Figure, ratio
from bench.placement_load import Coming, Day, Ends, coming, filled
from lcm.placement.candidate import PackedRequest
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import place
from lcm.placement.request import HeldClaim
from lcm.placement.strategies import bin_pack

WORKERS = 1_000
PAIRS = 45
WARM_UP = 25
DECISIONS = 75
DECISIONS_COMPARED = 150
DECISIONS_AT_SCALE = 1_000
WARM_UP_AT_SCALE = 200
PAIRS_AT_SCALE = 21
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
    day = Day(WORKERS, seed=1)
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
    total = len(chosen["ours"])
    placed = {name: sum(one is not None for one in found) for name, found in chosen.items()}
    note = f"times {measured.bare:.0f} decisions/s at {WORKERS} workers; placed {placed} of {total}"
    return [
        Figure("placement_loop", measured.ratio, 60, floor_ok=measured.valid, note=note),
        agreement(ours, coming(day, DECISIONS_COMPARED)),
    ]


def agreement(ours: Ours, several: Sequence[Coming]) -> Figure:
    """Compare each choice with the best of all workers that fit, in the same fleet at the same moment."""
    same, lost = 0, 0.0
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
    days = {workers: Day(workers, seed=2) for workers in (100, 10_000)}
    fleets = {workers: Ours(*filled(day, workers)) for workers, day in days.items()}

    async def run(workers: int) -> float:
        return rate(fleets[workers].decide, coming(days[workers], DECISIONS_AT_SCALE), uncounted=WARM_UP_AT_SCALE)[0]

    large, small = lambda: run(10_000), lambda: run(100)
    measured = await ratio(large, small, pairs=PAIRS_AT_SCALE, floor=FLOOR_DECISIONS_PER_SECOND)
    note = f"times {measured.bare:.0f} decisions/s at 100 workers"
    return [Figure("placement_scale", measured.ratio, 0.5, floor_ok=measured.valid, note=note)]
