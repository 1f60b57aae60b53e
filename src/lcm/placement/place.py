"""Where a session goes: assign it to a place, open a seat for it, or let it wait, and why.

The scheduler and the preview call `place`; nothing is held by it. Several decisions from one view must each be held
before the next is made, or they all choose the same place.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from lcm.model.kinds.session import Rejection, SchedulingDecision
from lcm.placement.candidate import Ask, Line, clock
from lcm.placement.fleet import Fleet
from lcm.placement.request import Place, Request
from lcm.placement.rules import LARGER, REMEDIES, ROOM
from lcm.placement.shelf import Shelf
from lcm.placement.strategies import BIN_PACK, SCORES, choose

MOST_EXAMPLES: Final = 10


class Placement(msgspec.Struct, frozen=True):
    """A decision with the place it means: the one assigned, the seat to open, or the place waited for.

    `at` is when it can begin there; it is what was asked for unless it waits.
    """

    decision: SchedulingDecision
    place: Place | None = None
    at: datetime | None = None


def place(fleet: Fleet, request: Request, strategy: str = BIN_PACK, *, number: int = 0) -> Placement:
    """Decide about one request. RoundRobin takes its turn from `number`, Random the number drawn."""
    ask = Ask(request)
    return assign(fleet, ask, strategy, number=number) or _not_now(fleet, ask)


def assign(fleet: Fleet, ask: Ask, strategy: str = BIN_PACK, *, number: int = 0) -> Placement | None:
    """Choose a worker that takes a request at the time it asks for; None if there is none."""
    shelves, preferred, choice = fleet.shelves(seats=False), ask.request.region_preferred, None
    if preferred is not None:
        choice = choose(strategy, shelves, ask, region=preferred, number=number)
    if choice is None:
        choice = choose(strategy, shelves, ask, region=None, number=number)
    if choice is None:
        return None
    fleet.expect(ask)
    place = choice.line.place
    decision = SchedulingDecision(
        action="assign",
        worker_id=place.id,
        reason=f"{strategy} chose {place.name}",
        score=choice.score,
        candidates_evaluated=choice.looked,
    )
    return Placement(decision, place, ask.claim.start)


def _not_now(fleet: Fleet, ask: Ask) -> Placement:
    workers = _soonest(ask, fleet.shelves(seats=False))
    seat = _soonest(ask, fleet.shelves(seats=True))
    if seat and not (workers and workers[0] <= seat[0]):
        return _scale_up(fleet, ask, *seat)
    return _wait(fleet, ask, workers)


def _scale_up(fleet: Fleet, ask: Ask, at: datetime, line: Line) -> Placement:
    decision = SchedulingDecision(
        action="scale_up",
        worker_template=line.place.template or None,
        reason=f"no worker fits it sooner than the seat {line.place.name} would, at {clock(at)}",
        candidates_evaluated=len(fleet),
        rejections=rejections(fleet, ask),
    )
    return Placement(decision, line.place, at)


def _wait(fleet: Fleet, ask: Ask, found: tuple[datetime, Line] | None) -> Placement:
    reason = "no open place will ever fit it" if ask.request.movable else "no open place fits it at its time"
    if found is not None:
        reason = f"{found[1].place.name} will fit it at {clock(found[0])}"
    decision = SchedulingDecision(
        action="wait", reason=reason, candidates_evaluated=len(fleet), rejections=rejections(fleet, ask)
    )
    return Placement(decision, found[1].place if found else None, found[0] if found else None)


def rejections(fleet: Fleet, ask: Ask) -> tuple[Rejection, ...]:
    """Count the places by the filter that turned the request away, with a few examples of each."""
    counts: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for line in fleet.lines():
        rejected = ask.rejection(line)
        if rejected is not None:
            name, reason = rejected
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= MOST_EXAMPLES:
                examples.setdefault(name, []).append(f"{line.place.name}: {reason}")
    return tuple(Rejection(filter=name, count=counts[name], examples=tuple(examples[name])) for name in counts)


def _soonest(ask: Ask, shelves: Sequence[Shelf]) -> tuple[datetime, Line] | None:
    lines = (line for shelf in shelves for line in shelf.of(shelf.open_to(ask.request)))
    moments = ((ask.earliest(line), line) for line in lines)
    asked = ask.request.claim.start
    found = [(at, line) for at, line in moments if at is not None and (ask.request.movable or at == asked)]
    return min(found, key=lambda one: (one[0], one[1].place.id), default=None)


class Answer(NamedTuple):
    """What one place says to a request.

    `filter`, `reason` and `remedy` are empty where it fits, `score` is None where it does not or where the strategy
    scores nothing; `earliest` is from when on it would fit there, None for never.
    """

    place: Place
    filter: str = ""
    reason: str = ""
    remedy: str = ""
    score: float | None = None
    earliest: datetime | None = None


def explain(fleet: Fleet, request: Request, strategy: str = BIN_PACK) -> Sequence[Answer]:
    """Ask every place: first those that fit, the best first, then the others by when they would."""
    ask = Ask(request)
    return sorted((_answer(line, ask, strategy) for line in fleet.lines()), key=_order)


def _answer(line: Line, ask: Ask, strategy: str) -> Answer:
    rejected = ask.rejection(line)
    earliest = ask.earliest(line)
    if rejected is None:
        score = SCORES.get(strategy)
        return Answer(line.place, score=score(line, ask) if score else None, earliest=earliest)
    name, reason = rejected
    hopeless = name in ROOM.values() and ask.too_large_for(line)
    return Answer(line.place, name, reason, LARGER if hopeless else REMEDIES[name], earliest=earliest)


def _order(answer: Answer) -> tuple[bool, float, bool, float, str]:
    when = answer.earliest.timestamp() if answer.earliest else 0.0
    return bool(answer.filter), -(answer.score or 0.0), answer.earliest is None, when, answer.place.id
