"""The strategies of placement: which of the places that fit is chosen.

A score is a pure function of a place's line and what is asked, from 0 to 1, more is better; a tie goes to the id that
sorts first. RoundRobin and Random score nothing: they choose by turn and by a number drawn outside.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lcm.model.capacity import Amount, utilization
from lcm.model.worker import MAX_CONCURRENT_LABS
from lcm.placement.ask import Ask
from lcm.placement.lanes import within
from lcm.placement.line import Line
from lcm.placement.rules import ON_CML
from lcm.placement.shelf import Shelf, pack_score

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


class Choice(NamedTuple):
    """The place a strategy chose, its score if it has one, and at how many it looked closely."""

    line: Line | None
    score: float | None
    looked: int


def bin_pack(line: Line, ask: Ask) -> float:
    """Prefer a place that runs anyway in all of the slot, then the fuller at its start, then one that ends with it."""
    idle = sum(hour not in line.samples for hour in ask.span)
    first = line.samples.get(ask.span.start)
    together = ask.span.stop not in line.samples
    return pack_score(idle, len(ask.span), first[1][2] if first else 0, together=together)


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


def choose(strategy: str, shelves: Sequence[Shelf], ask: Ask, number: int) -> Choice:
    """Choose among the places of these shelves; `number` is the turn or the number drawn."""
    large = [shelf for shelf in shelves if within(ask.need, shelf.size)]
    if strategy == BIN_PACK:
        return _pack(large, ask)
    lines = sorted(_fitting(large, ask), key=lambda line: line.place.id)
    if not lines:
        return Choice(None, None, 0)
    if strategy in BY_NUMBER:
        return Choice(lines[number % len(lines)], None, len(lines))
    score, line = max(((SCORES[strategy](line, ask), line) for line in lines), key=lambda scored: scored[0])
    return Choice(line, score, len(lines))


def _pack(shelves: Sequence[Shelf], ask: Ask) -> Choice:
    best, best_score, looked = None, -1.0, 0
    for shelf in shelves:
        line, score, asked = shelf.fullest(ask.need, ask.span, ask.fits)
        looked += asked
        if line and (best is None or (-score, line.place.id) < (-best_score, best.place.id)):
            best, best_score = line, score
    return Choice(best, None if best is None else best_score, looked)


def _fitting(shelves: Sequence[Shelf], ask: Ask) -> Iterator[Line]:
    for shelf in shelves:
        yield from (line for line in shelf.of(shelf.possible(ask.need, ask.span)) if ask.fits(line))


def _used(line: Line, ask: Ask) -> Amount:
    return line.lanes.unpack(line.timeline.at(ask.start))
