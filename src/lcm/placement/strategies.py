"""The strategies of placement: which of the places that fit is chosen.

A score is a pure function of a place and a request, from 0 to 1, more is better; a tie goes to the id that sorts
first. RoundRobin and Random score nothing: they choose by turn and by a number drawn outside. BinPack finds the best
place of a size class without a scan: those that run anyway in all of the claim's half hours, then the fuller, then
those that become empty at the same time, then the first id; the first whose timeline agrees is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, utilization
from lcm.model.kinds.worker import MAX_CONCURRENT_LABS
from lcm.placement.bitmap import (
    BUSY,
    FULLEST,
    FULLEST_FIRST,
    FullnessRow,
    fullness_of,
    group_by_count,
    group_by_fullness,
    places_above,
    sift_places,
)
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.rules import ON_CML
from lcm.placement.size_class import SizeClass
from lcm.placement.timeline import TICK_MICROS

_LARGE_CLASS: Final = 2_000
"""From this many places on it is cheaper to remember which were too full than to ask them again."""


class PlaceChoice(msgspec.Struct, frozen=True):
    """The place a strategy chose, its score if it has one, and how many places were looked at closely."""

    line: IndexedPlace
    score: float | None
    looked: int


def pack_score(idle: int, looked: int, fullness: int, *, together: bool) -> float:
    """Score a place from 0 to 1: by how little idle time it fills, then by fullness, then by a common end."""
    return (looked - idle + (2 * fullness + together) / (2 * FULLEST + 2)) / (looked + 1)


def choose_packed(shelves: Sequence[SizeClass], ask: PackedRequest, region: str | None) -> PlaceChoice | None:
    """Choose the best place of several size classes, in a region if one is given."""
    best, best_score, looked = None, -1.0, 0
    for shelf in shelves:
        line, score, asked = _best_of_class(shelf, ask, region)
        looked += asked
        if line and (best is None or (-score, line.place.id) < (-best_score, best.place.id)):
            best, best_score = line, score
    return None if best is None else PlaceChoice(best, best_score, looked)


def _best_of_class(shelf: SizeClass, ask: PackedRequest, region: str | None) -> tuple[IndexedPlace | None, float, int]:
    """Return the best place of a size class, its score, and how many places were asked."""
    limit = shelf.limits(ask)
    if limit is None:
        return None, 0.0, 0
    start, end, first, stop = ask.start, ask.end, ask.span.start, ask.span.stop
    lines, order, lanes = shelf.lines, shelf.order, shelf.lanes
    rows = shelf.rows(range(first, stop + 1))
    after = rows.pop()
    mask, before = shelf.open_to(ask.request, region), start // TICK_MICROS
    remembers = before < first < stop and len(lines) >= _LARGE_CLASS
    if remembers:
        mask ^= mask & shelf.known_full(start, limit)
    mask, warm = sift_places(rows, limit, mask)
    full_before = mask & places_above(shelf.row(before), limit) if before < first else 0
    ending = mask ^ (mask & after[BUSY])
    at_first, fullest = (rows[0], limit.fullness) if rows else (after, FULLEST_FIRST)
    room, asked = ask.room(lanes), 0
    for idle, group in _group_by_idle_time(mask, full_before, warm, rows):
        for level, alike in group_by_fullness(at_first, group, fullest):
            together = alike & ending
            for some in (together, alike ^ together):
                for slot in order.slots_in(some) if some else ():
                    line = lines[slot]
                    asked += 1
                    if line.usable > start:
                        continue
                    obstacle = line.timeline.first_obstacle(
                        start, end, room if line.lanes is lanes else ask.room(line.lanes)
                    )
                    if obstacle is None:
                        return line, pack_score(idle, len(rows), level, together=some is together), asked
                    if remembers:
                        shelf.remember_full(line, start, obstacle, limit)
    return None, 0.0, asked


def _group_by_idle_time(
    mask: int, full_before: int, warm: int, rows: Sequence[FullnessRow]
) -> Iterator[tuple[int, int]]:
    """Split places by the number of half hours in which they run for the claim alone, the fewest first.

    Before its first half hour a claim meets others that no row shows. Places without room shortly before come last: in
    a large fleet hundreds of them might be asked that are too full just then, and a slightly emptier place is as good.
    """
    for some in (mask ^ full_before, full_before):
        anyway = some & warm
        if anyway:
            yield 0, anyway
        cold = some ^ anyway
        if cold:
            for busy, group in group_by_count(cold, [row[BUSY] for row in rows], len(rows)):
                yield len(rows) - busy, group


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
    used = [line.sampled_at(tick) for tick in (*ask.span, ask.span.stop)]
    return pack_score(used[:-1].count(0), len(ask.span), fullness_of(used[0]), together=not used[-1])


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
    strategy: str, shelves: Sequence[SizeClass], ask: PackedRequest, *, region: str | None, number: int
) -> PlaceChoice | None:
    """Choose among the places of these size classes, of a region if one is given.

    `number` is the turn for RoundRobin, and the number drawn for Random.
    """
    if strategy == BIN_PACK:
        return choose_packed(shelves, ask, region)
    lines = [line for shelf in shelves for line in _candidate_places(shelf, ask, region) if ask.fits(line)]
    if not lines:
        return None
    lines.sort(key=lambda line: line.place.id)
    if strategy in BY_NUMBER:
        return PlaceChoice(lines[number % len(lines)], None, len(lines))
    score, line = max(((SCORES[strategy](line, ask), line) for line in lines), key=lambda scored: scored[0])
    return PlaceChoice(line, score, len(lines))


def _candidate_places(shelf: SizeClass, ask: PackedRequest, region: str | None) -> Iterable[IndexedPlace]:
    """Return the places that may take the request, in a region if one is given."""
    limit = shelf.limits(ask)
    if limit is None:
        return ()
    return shelf.places_in(sift_places(shelf.rows(ask.span), limit, shelf.open_to(ask.request, region))[0])


def _used_at_start(line: IndexedPlace, ask: PackedRequest) -> Amount:
    return line.lanes.unpack(line.timeline.used_at(ask.start))
