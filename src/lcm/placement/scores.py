"""The strategies of placement: which of the places that fit is chosen.

A score is a pure function of a place's line and what is asked, from 0 to 1, more is better; a tie goes to the id that
sorts first. RoundRobin and Random score nothing: they choose by turn and by a number drawn outside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from lcm.model.capacity import Amount, utilization
from lcm.model.worker import MAX_CONCURRENT_LABS
from lcm.placement.ask import Ask
from lcm.placement.line import TICK, Line
from lcm.placement.rows import Limits, above, fullness, sifted
from lcm.placement.rules import ON_CML
from lcm.placement.shelf import Shelf, pack_score

Score = Callable[[Line, Ask], float]

BIN_PACK: Final = "BinPack"
_BUSY: Final = 0.8
_MANY_LABS: Final = 15
_MANY: Final = 2_000
"""From so many places on it is cheaper to remember who was too full than to ask again."""

_WEIGHTS: Final = {
    "has capacity": 0.4,
    "few labs": 0.2,
    "low utilization": 0.2,
    "licensed": 0.1,
    "ready": 0.05,
    "track": 0.05,
    "type": 0.1,
}


class Choice(NamedTuple):
    """The place a strategy chose, its score if it has one, and at how many it looked closely."""

    line: Line | None
    score: float | None
    looked: int


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


def choose(strategy: str, shelves: Sequence[Shelf], ask: Ask, *, region: str | None, number: int) -> Choice:
    """Choose among the places of these shelves, of a region if one is given; `number` is the turn or that drawn."""
    found = [_Found(shelf, limit, ask, region) for shelf in shelves if (limit := shelf.limits(ask.need)) is not None]
    if strategy == BIN_PACK:
        return _pack(found, ask)
    lines = [line for one in found for line in one.shelf.of(one.mask) if ask.fits(line)]
    if not lines:
        return Choice(None, None, 0)
    lines.sort(key=lambda line: line.place.id)
    if strategy in BY_NUMBER:
        return Choice(lines[number % len(lines)], None, len(lines))
    score, line = max(((SCORES[strategy](line, ask), line) for line in lines), key=lambda scored: scored[0])
    return Choice(line, score, len(lines))


class _Found:
    """The places of a shelf that may take what is asked, and of these the ones that run anyway in all of its time."""

    __slots__ = ("_limit", "_remembers", "_rows", "_warm", "mask", "shelf")

    def __init__(self, shelf: Shelf, limit: Limits, ask: Ask, region: str | None) -> None:
        self.shelf = shelf
        self._limit = limit
        self._rows = shelf.rows(ask.span)
        mask = shelf.open_to(ask.request)
        if region is not None:
            mask &= shelf.in_region(region)
        self._remembers = ask.begins_between and len(shelf.lines) >= _MANY
        if self._remembers:
            mask ^= mask & shelf.crowded(ask.start, limit)
        self.mask, self._warm = sifted(self._rows, limit, mask)

    def best(self, ask: Ask) -> tuple[Line | None, float, int]:
        """Find the best to pack into among those that had room shortly before as well, else among the others.

        Before its first half hour a claim meets others that no sample shows. Going by score alone would be exact, but
        in a large fleet hundreds may be too full just then, and a place a little less full is as good.
        """
        asked, shelf, lines = 0, self.shelf, self.shelf.lines
        full_before = above(shelf.row(ask.start // TICK), self._limit) if ask.start % TICK else 0
        for mask in (self.mask ^ (self.mask & full_before), self.mask & full_before):
            warm = mask & self._warm
            for idle, full, together, alike in shelf.ranked(warm, mask ^ warm, ask.span, self._rows):
                left = alike
                while left:
                    # As `shelf.of` does, without a generator for each of so many small groups.
                    slot = left.bit_length() - 1
                    line = lines[-1 - slot]
                    asked += 1
                    if ask.fits(line):
                        return line, pack_score(idle, len(ask.span), full, together=together), asked
                    if self._remembers:
                        self._note(line, ask)
                    left ^= 1 << slot
        return None, 0.0, asked

    def _note(self, line: Line, ask: Ask) -> None:
        """Let the shelf remember a place that is too full before the claim's first half hour."""
        timeline, place = line.timeline, ask.obstacle(line)
        if place is not None and timeline.moments[place] < ask.span.start * TICK:
            self.shelf.note(line, ask.start, timeline.levels[place], timeline.until(place), self._limit)


def _pack(found: Sequence[_Found], ask: Ask) -> Choice:
    best, best_score, looked = None, -1.0, 0
    for one in found:
        line, score, asked = one.best(ask)
        looked += asked
        if line and (-score, line.place.id) < (-best_score, best.place.id if best else ""):
            best, best_score = line, score
    return Choice(best, None if best is None else best_score, looked)


def _used(line: Line, ask: Ask) -> Amount:
    return line.lanes.unpack(line.timeline.at(ask.start))
