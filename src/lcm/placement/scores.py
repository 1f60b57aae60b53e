"""The strategies of placement: which of the places that fit is chosen.

A score is a pure function of a place's line and what is asked, from 0 to 1, more is better; a tie goes to the id that
sorts first. RoundRobin and Random score nothing: they choose by turn and by a number drawn outside.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from lcm.model.capacity import Amount, utilization
from lcm.model.worker import MAX_CONCURRENT_LABS
from lcm.placement.ask import Ask
from lcm.placement.line import Line
from lcm.placement.packing import Choice, pack, pack_score
from lcm.placement.rows import fullness, sifted
from lcm.placement.rules import ON_CML
from lcm.placement.shelf import Shelf

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
