"""Placement against a loop over all workers, and at ten thousand workers against a hundred.

Both sides decide the same requests in the same order from the same fleet, hold what they decided and release what has
ended. Rates count the process's own seconds: there is nothing but computing in them, and what else the machine does
would meet the short runs of one side and the long runs of the other unequally.
"""

import copy
import gc
import time
from collections.abc import Callable
from datetime import datetime

from bench.baseline.placement import Workers
from bench.figures import Figure, ratio
from bench.placement_load import Day, Ends, filled
from lcm.placement.ask import Ask
from lcm.placement.fleet import Fleet
from lcm.placement.place import place
from lcm.placement.request import Held, Request
from lcm.placement.scores import bin_pack

WORKERS = 1_000
PAIRS = 9
DECISIONS = 150
DECISIONS_AT_SCALE = 2_000
FLOOR_DECISIONS_PER_SECOND = 200.0

Coming = list[tuple[datetime, Request]]
Chosen = list[tuple[str, float] | None]


def coming(day: Day, count: int) -> Coming:
    """Give so many requests, each with the time at which it comes."""
    return [(day.now, request) for request in (day.next() for _ in range(count))]


class Ours:
    """The product: one index, kept up to date."""

    def __init__(self, fleet: Fleet, ends: Ends) -> None:
        self.fleet, self.ends = fleet, ends

    def decide(self, requests: Coming) -> Chosen:
        return [self._decided(now, request) for now, request in requests]

    def _decided(self, now: datetime, request: Request) -> tuple[str, float] | None:
        self.fleet.advance(now)
        self.ends.release(now, self.fleet.release)
        decision = place(self.fleet, request).decision
        if decision.worker_id is None:
            return None
        self.fleet.hold(decision.worker_id, Held(request.name, request.claim))
        self.ends.add(request, decision.worker_id)
        return decision.worker_id, decision.score or 0.0


class Bare:
    """The loop over all workers, with the same claims."""

    def __init__(self, ours: Ours) -> None:
        places = [line.place for line in ours.fleet.lines()]
        self.workers = Workers(places, {place.id: tuple(ours.fleet.held(place.id)) for place in places})
        self.ends = copy.deepcopy(ours.ends)

    def decide(self, requests: Coming) -> Chosen:
        return [self._decided(now, request) for now, request in requests]

    def _decided(self, now: datetime, request: Request) -> tuple[str, float] | None:
        self.ends.release(now, self.workers.release)
        found = self.workers.place(request)
        if found is not None:
            self.ends.add(request, found[0])
        return found


def rate(decide: Callable[[Coming], Chosen], requests: Coming) -> tuple[float, Chosen]:
    gc.collect()
    started = time.process_time()
    chosen = decide(requests)
    return len(requests) / (time.process_time() - started), chosen


async def bench_against_a_loop() -> list[Figure]:
    day = Day(WORKERS, seed=1)
    ours = Ours(*filled(day, WORKERS))
    bare = Bare(ours)
    batches = [coming(day, DECISIONS) for _ in range(PAIRS)]
    rates: list[float] = []
    chosen: dict[str, Chosen] = {"ours": [], "bare": []}

    async def run_ours() -> float:
        rates.append(0.0)
        rates[-1], found = rate(ours.decide, batches[len(rates) - 1])
        chosen["ours"] += found
        return rates[-1]

    async def run_bare() -> float:
        found_rate, found = rate(bare.decide, batches[len(chosen["bare"]) // DECISIONS])
        chosen["bare"] += found
        return found_rate

    measured = await ratio(run_ours, run_bare, pairs=PAIRS, floor=FLOOR_DECISIONS_PER_SECOND)
    total = len(chosen["ours"])
    placed = {name: sum(one is not None for one in found) for name, found in chosen.items()}
    note = f"times {measured.bare:.0f} decisions/s at {WORKERS} workers; placed {placed} of {total}"
    return [
        Figure("placement_loop", measured.ratio, 60, floor_ok=measured.valid, note=note),
        agreement(ours, coming(day, DECISIONS)),
    ]


def agreement(ours: Ours, requests: Coming) -> Figure:
    """Compare each choice with the best of all workers that fit, in the same fleet at the same moment."""
    same, lost = 0, 0.0
    for now, request in requests:
        before = [line for line in ours.fleet.lines() if Ask(request).rejection(line) is None]
        best = max(((bin_pack(line, Ask(request)), line.place.id) for line in before), key=lambda one: one[0])
        (chosen,) = ours.decide([(now, request)])
        assert chosen is not None
        assert chosen[0] in {line.place.id for line in before}
        same += chosen == (best[1], best[0])
        lost += best[0] - chosen[1]
    note = f"chose the very best of all that fit; its score was lower by {lost / len(requests):.3g} on average"
    return Figure("placement_agreement", same / len(requests), 0.5, note=note)


async def bench_at_scale() -> list[Figure]:
    days = {workers: Day(workers, seed=2) for workers in (100, 10_000)}
    fleets = {workers: Ours(*filled(day, workers)) for workers, day in days.items()}

    async def run(workers: int) -> float:
        return rate(fleets[workers].decide, coming(days[workers], DECISIONS_AT_SCALE))[0]

    measured = await ratio(lambda: run(10_000), lambda: run(100), pairs=PAIRS, floor=FLOOR_DECISIONS_PER_SECOND)
    note = f"times {measured.bare:.0f} decisions/s at 100 workers"
    return [Figure("placement_scale", measured.ratio, 0.5, floor_ok=measured.valid, note=note)]
