"""The search of BinPack: the best place for a claim among all of a shelf, found without going through them.

Sifting leaves the places that may have the room. Of these the best come first, group by group: those that run anyway in
all of the claim's half hours, then the fuller, then those that will be empty at the same time, then the first id. The
first one whose timeline agrees is taken.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from lcm.model.base.capacity import Amount, utilization
from lcm.model.kinds.worker import MAX_CONCURRENT_LABS
from lcm.placement.bitmap import BUSY, FROM_FULL, FULLEST, Row, above, by_count, by_fullness, fullness, sifted
from lcm.placement.candidate import TICK, Ask, Line
from lcm.placement.rules import ON_CML
from lcm.placement.shelf import Shelf

_MANY: Final = 2_000
"""From so many places on it is cheaper to remember who was too full than to ask again."""


class Choice(msgspec.Struct, frozen=True):
    """The place a strategy chose, its score if it has one, and at how many it looked closely."""

    line: Line
    score: float | None
    looked: int


def pack_score(idle: int, looked: int, fullness: int, *, together: bool) -> float:
    """Score a place from 0 to 1: first by how little idle time it fills, then by fullness, then by a common end."""
    return (looked - idle + (2 * fullness + together) / (2 * FULLEST + 2)) / (looked + 1)


def pack(shelves: Sequence[Shelf], ask: Ask, region: str | None) -> Choice | None:
    """Choose the best place of several shelves, in a region if one is given."""
    best, best_score, looked = None, -1.0, 0
    for shelf in shelves:
        line, score, asked = _best(shelf, ask, region)
        looked += asked
        if line and (best is None or (-score, line.place.id) < (-best_score, best.place.id)):
            best, best_score = line, score
    return None if best is None else Choice(best, best_score, looked)


def _best(shelf: Shelf, ask: Ask, region: str | None) -> tuple[Line | None, float, int]:
    """Give the best place of a shelf, its score, and how many were asked."""
    limit = shelf.limits(ask)
    if limit is None:
        return None, 0.0, 0
    start, end, first, stop = ask.start, ask.end, ask.span.start, ask.span.stop
    lines, lanes = shelf.lines, shelf.lanes
    rows = shelf.rows(range(first, stop + 1))
    after = rows.pop()
    mask, before = shelf.open_to(ask.request, region), start // TICK
    remembers = before < first < stop and len(lines) >= _MANY
    if remembers:
        mask ^= mask & shelf.crowded(start, limit)
    mask, warm = sifted(rows, limit, mask)
    full_before = mask & above(shelf.row(before), limit) if before < first else 0
    ending = mask ^ (mask & after[BUSY])
    at_first, fullest = (rows[0], limit.fullness) if rows else (after, FROM_FULL)
    room, asked = ask.room(lanes), 0
    for idle, group in _by_idle_time(mask, full_before, warm, rows):
        for level, alike in by_fullness(at_first, group, fullest):
            left = alike
            while left:
                line = lines[-(left & ending or left).bit_length()]
                asked += 1
                if line.usable <= start:
                    obstacle = line.timeline.obstacle(start, end, room if line.lanes is lanes else ask.room(line.lanes))
                    if obstacle is None:
                        score = pack_score(idle, len(rows), level, together=bool(ending >> line.slot & 1))
                        return line, score, asked
                    if remembers:
                        shelf.note(line, start, obstacle, limit)
                left ^= 1 << line.slot
    return None, 0.0, asked


def _by_idle_time(mask: int, full_before: int, warm: int, rows: Sequence[Row]) -> Iterator[tuple[int, int]]:
    """Tell places apart by the number of half hours in which they run for the claim alone, the fewest first.

    Before its first half hour a claim meets others that no row shows. Who had no room shortly before comes last, or
    hundreds of a large fleet might be asked who are too full just then; a place a little less full is as good.
    """
    for some in (mask ^ full_before, full_before):
        anyway = some & warm
        if anyway:
            yield 0, anyway
        cold = some ^ anyway
        if cold:
            for busy, group in by_count(cold, [row[BUSY] for row in rows], len(rows)):
                yield len(rows) - busy, group


Score = Callable[[Line, Ask], float]

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


def bin_pack(line: Line, ask: Ask) -> float:
    """Prefer a place that runs anyway in all of the slot, then the fuller at its start, then one that ends with it."""
    idle = sum(tick not in line.samples for tick in ask.span)
    together = ask.span.stop not in line.samples
    return pack_score(idle, len(ask.span), fullness(line.samples.get(ask.span.start, 0)), together=together)


def best_fit(line: Line, ask: Ask) -> float:
    """Add up the weights of the first design, which prefers the emptier place, divided by their sum."""
    used = utilization(_used(line, ask), line.place.capacity)
    measured = [used[name] for name in ("cpu_millis", "memory_mb", "storage_mb")]
    labs = _used(line, ask).labs
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


def least_utilized(line: Line, ask: Ask) -> float:
    """Prefer the place whose fullest dimension is the emptiest when the claim begins."""
    return 1 - min(1.0, max(utilization(_used(line, ask), line.place.capacity).values()))


def least_labs(line: Line, ask: Ask) -> float:
    """Prefer the place with the fewest labs when the claim begins."""
    return 1 - min(1.0, _used(line, ask).labs / max(MAX_CONCURRENT_LABS, line.place.capacity.labs))


SCORES: Final[Mapping[str, Score]] = {
    BIN_PACK: bin_pack,
    "BestFit": best_fit,
    "LeastUtilized": least_utilized,
    "LeastLabs": least_labs,
}
BY_NUMBER: Final = frozenset({"RoundRobin", "Random"})
STRATEGIES: Final = (*SCORES, *sorted(BY_NUMBER))
"""What SCHEDULER_STRATEGY may say."""


def choose(strategy: str, shelves: Sequence[Shelf], ask: Ask, *, region: str | None, number: int) -> Choice | None:
    """Choose among the places of these shelves, of a region if one is given; `number` is the turn or that drawn."""
    if strategy == BIN_PACK:
        return pack(shelves, ask, region)
    lines = [line for shelf in shelves for line in _open(shelf, ask, region) if ask.fits(line)]
    if not lines:
        return None
    lines.sort(key=lambda line: line.place.id)
    if strategy in BY_NUMBER:
        return Choice(lines[number % len(lines)], None, len(lines))
    score, line = max(((SCORES[strategy](line, ask), line) for line in lines), key=lambda scored: scored[0])
    return Choice(line, score, len(lines))


def _open(shelf: Shelf, ask: Ask, region: str | None) -> Iterable[Line]:
    """Give the places that may take what is asked, in a region if one is given."""
    limit = shelf.limits(ask)
    if limit is None:
        return ()
    return shelf.of(sifted(shelf.rows(ask.span), limit, shelf.open_to(ask.request, region))[0])


def _used(line: Line, ask: Ask) -> Amount:
    return line.lanes.unpack(line.timeline.at(ask.start))
