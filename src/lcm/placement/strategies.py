"""The strategies of placement: which of the places that fit is chosen.

A score is a pure function of a place and a request, from 0 to 1, more is better; a tie goes to the id that sorts
first. RoundRobin and Random score nothing: they choose by turn and by a number drawn outside. BinPack finds the best
place without a scan: `lcm.placement.packing`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Final

from lcm.model.base.capacity import Amount, utilization
from lcm.model.kinds.worker import MAX_CONCURRENT_LABS
from lcm.placement.bitmap import CODED, FULLNESS_LIMITS, OTHERS, SCARCITY_LIMITS, fullness_of, scarce_places
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.packing import choose_packed, pack_score
from lcm.placement.rules import ON_CML
from lcm.placement.size_class import SizeClass
from lcm.placement.timeline import GUARD_BITS

PlaceChoice = tuple[IndexedPlace, float | None]
"""The place a strategy chose, and its score if it has one."""

ScoreFunction = Callable[[IndexedPlace, PackedRequest], float]

BIN_PACK: Final = "BinPack"
_BUSY: Final = 0.8
_MANY_LABS: Final = 15
_WEIGHTS: Final = {
    "has capacity": 0.4,
    "few labs": 0.2,
    "low utilization": 0.2,
    "licensed": 0.1,
    "ready": 0.05,
    "track": 0.05,
    "type": 0.1,
}


def bin_pack(line: IndexedPlace, ask: PackedRequest) -> float:
    """Prefer a place that runs anyway in all of the slot, then the fuller at its start, then one that ends with it."""
    used = [line.sampled_at(tick) for tick in range(ask.first, ask.stop + 1)]
    return pack_score(used[:-1].count(0), len(used) - 1, 2 * fullness_of(used[0]) + (not used[-1]))


def best_fit(line: IndexedPlace, ask: PackedRequest) -> float:
    """Return the weighted sum of the first design, which prefers the emptier place, divided by the sum of weights."""
    used = utilization(_used_at_start(line, ask), line.place.capacity)
    measured = [used[name] for name in ("cpu_millis", "memory_mb", "storage_mb")]
    labs = _used_at_start(line, ask).labs
    got = {
        "has capacity": max(measured) < _BUSY,
        "few labs": labs < _MANY_LABS,
        "low utilization": 1 - min(1.0, sum(measured) / len(measured)),
        "licensed": bool(line.place.licensed) or ask.request.lab_type not in ON_CML,
        "ready": labs == 0,
        "track": line.place.track == ask.request.track,
        "type": ask.request.lab_type in line.place.lab_types,
    }
    return min(1.0, sum(_WEIGHTS[name] * share for name, share in got.items()) / sum(_WEIGHTS.values()))


def least_utilized(line: IndexedPlace, ask: PackedRequest) -> float:
    """Prefer the place whose fullest dimension is the emptiest when the claim begins."""
    return 1 - min(1.0, max(utilization(_used_at_start(line, ask), line.place.capacity).values()))


def least_labs(line: IndexedPlace, ask: PackedRequest) -> float:
    """Prefer the place with the fewest labs when the claim begins."""
    return 1 - min(1.0, _used_at_start(line, ask).labs / max(MAX_CONCURRENT_LABS, line.place.capacity.labs))


SCORES: Final[Mapping[str, ScoreFunction]] = {
    BIN_PACK: bin_pack,
    "BestFit": best_fit,
    "LeastUtilized": least_utilized,
    "LeastLabs": least_labs,
}
BY_NUMBER: Final = frozenset({"RoundRobin", "Random"})
STRATEGIES: Final = (*SCORES, *sorted(BY_NUMBER))
"""The allowed values of SCHEDULER_STRATEGY."""


def choose_place(
    strategy: str, shelves: Sequence[SizeClass], ask: PackedRequest, region: str | None, number: int
) -> PlaceChoice | None:
    """Choose among the places of these size classes, of a region if one is given.

    `number` is the turn for RoundRobin, and the number drawn for Random.
    """
    if strategy == BIN_PACK:
        return choose_packed(shelves, ask, region)
    lines = [line for shelf in shelves for line in _candidate_places(shelf, ask, region) if ask.fits(line)]
    if not lines:
        return None
    ask.asked = len(lines)
    lines.sort(key=lambda line: line.place.id)
    if strategy in BY_NUMBER:
        return lines[number % len(lines)], None
    score, line = max(((SCORES[strategy](line, ask), line) for line in lines), key=lambda scored: scored[0])
    return line, score


def _candidate_places(shelf: SizeClass, ask: PackedRequest, region: str | None) -> Iterable[IndexedPlace]:
    """Return the places that may take the request, in a region if one is given."""
    room, rows = ask.room(shelf.lanes), shelf.rows.between(ask.first, ask.stop)
    if room & GUARD_BITS != GUARD_BITS:
        return ()
    highest = room + shelf.lanes.slack
    cpu, memory, _ = FULLNESS_LIMITS[highest & CODED]
    scarce = scarce_places(rows, SCARCITY_LIMITS[highest & OTHERS])
    taken = reduce(or_, (row[cpu] | row[memory] for row in rows), scarce)
    mask = shelf.open_to(ask, region)
    return shelf.places_in(mask ^ (mask & taken))


def _used_at_start(line: IndexedPlace, ask: PackedRequest) -> Amount:
    return line.lanes.unpack(line.timeline.used_at(ask.start))
