"""Where a session goes and why: assign it to a place, open a seat for it, or let it wait.

The scheduler and the preview call `place`, which holds nothing. Of several decisions from one index each must be held
before the next is made, or they all choose the same place. `evaluate_places` returns every place's answer to a
request, for the preview and `lcm explain`.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from lcm.model.kinds.session import Rejection, SchedulingDecision
from lcm.placement.candidate import IndexedPlace, PackedRequest, format_moment
from lcm.placement.fleet import PlaceIndex
from lcm.placement.preference import Preference, preference
from lcm.placement.request import Place, PlacementRequest, is_unopened_seat
from lcm.placement.rules import FILTER_REMEDIES, ROOM_FILTERS, TOO_LARGE_REMEDY
from lcm.placement.size_class import SizeClass
from lcm.placement.strategies import BIN_PACK, SCORES, choose_place
from lcm.placement.timeline import micros, moment_of

MOST_EXAMPLES: Final = 10


class Placement(msgspec.Struct, frozen=True):
    """A decision with its place: the one assigned, the seat to open, or the place waited for.

    `at` is when the session can begin there: the time asked for, unless it waits.
    """

    decision: SchedulingDecision
    place: Place | None = None
    at: datetime | None = None


def place(fleet: PlaceIndex, request: PlacementRequest, strategy: str = BIN_PACK, *, number: int = 0) -> Placement:
    """Decide about one request. `number` is the turn for RoundRobin, and the number drawn for Random."""
    ask = PackedRequest(request)
    if (assigned := assign(fleet, ask, strategy, number=number)) is not None:
        return assigned
    found = _find_soonest(ask, fleet.workers)
    seat = _find_soonest(ask, fleet.seats)
    opens = seat is not None and (found is None or seat[0] < found[0])
    found = seat if opens else found
    reason = "no open place will ever fit it" if request.movable else "no open place fits it at its time"
    if found is not None:
        name, at = found[1].place.name, format_moment(found[0])
        sooner = f"no worker fits it sooner than planned worker {name} would, at {at}"
        reason = sooner if opens else f"{name} will fit it at {at}"
    decision = SchedulingDecision(
        action="scale_up" if opens else "wait",
        worker_template=found[1].place.template or None if found and opens else None,
        reason=reason,
        candidates_evaluated=len(fleet),
        rejections=count_rejections(fleet, ask),
    )
    return Placement(decision, found[1].place, found[0]) if found else Placement(decision)


def assign(fleet: PlaceIndex, ask: PackedRequest, strategy: str = BIN_PACK, *, number: int = 0) -> Placement | None:
    """Choose a worker that takes a request at the time it asks for; None if there is none."""
    region = ask.request.region_preferred
    choice = choose_place(strategy, fleet.workers, ask, region, number)
    if choice is None and region is not None:
        choice = choose_place(strategy, fleet.workers, ask, None, number)
    if choice is None:
        return None
    fleet.last_request = ask
    place, score = choice[0].place, choice[1]
    decision = SchedulingDecision("assign", place.id, None, f"{strategy} chose {place.name}", score, ask.asked)
    return Placement(decision, place, ask.claim.start)


def count_rejections(fleet: PlaceIndex, ask: PackedRequest) -> tuple[Rejection, ...]:
    """Count the places by the filter that rejected the request, with a few examples of each."""
    counts: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    for line in fleet.indexed_places():
        rejected = ask.rejection(line)
        if rejected is not None:
            name, reason = rejected
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= MOST_EXAMPLES:
                examples.setdefault(name, []).append(f"{line.place.name}: {reason}")
    return tuple(Rejection(filter=name, count=counts[name], examples=tuple(examples[name])) for name in counts)


OpeningOrder = tuple[int, bool, Preference, str]
"""A sort key of places by when they can take a request, in microseconds; the last part is the place's id."""

_RUNS_ANYWAY: Final[Preference] = False, 0.0


def first_opening(moments: Iterable[tuple[int, IndexedPlace]]) -> int:
    """Return when the first of the seats that can be opened for a request can be used; 0 if there are none."""
    return min((at for at, line in moments if _is_opened_for(at, line)), default=0)


def opening_order(at: int, line: IndexedPlace, request: PlacementRequest, opening: int) -> OpeningOrder:
    """Return the sort key of a place that takes a request at a moment.

    Seats whose machine would be started for it count as equally soon: which of them is opened is a matter of
    region and price, and not of a minute. `opening` is when the first of them can be used.
    """
    place = line.place
    wish = preference(place, request) if is_unopened_seat(place) else _RUNS_ANYWAY
    return opening if _is_opened_for(at, line) else at, place.seat, wish, place.id


def _is_opened_for(at: int, line: IndexedPlace) -> bool:
    return is_unopened_seat(line.place) and at <= line.usable


def _find_soonest(ask: PackedRequest, shelves: Sequence[SizeClass]) -> tuple[datetime, IndexedPlace] | None:
    lines = (line for shelf in shelves for line in shelf.places_in(shelf.open_to(ask)))
    moments = ((ask.earliest(line), line) for line in lines)
    asked, request = ask.request.claim.start, ask.request
    found = [(micros(at), line) for at, line in moments if at is not None and (request.movable or at == asked)]
    opening = first_opening(found)
    best = min(found, key=lambda one: opening_order(one[0], one[1], request, opening), default=None)
    return (moment_of(best[0]), best[1]) if best else None


class PlaceEvaluation(NamedTuple):
    """What one place answers to a request.

    `filter`, `reason` and `remedy` are empty where it fits. `score` is None where it does not fit, or where the
    strategy scores nothing. `earliest` is from when on it would fit there, None for never.
    """

    place: Place
    filter: str = ""
    reason: str = ""
    remedy: str = ""
    score: float | None = None
    earliest: datetime | None = None


def evaluate_places(
    fleet: PlaceIndex, request: PlacementRequest, strategy: str = BIN_PACK
) -> Sequence[PlaceEvaluation]:
    """Ask every place: first those that fit, the best first, then the others by when they would."""
    ask = PackedRequest(request)
    return sorted((_evaluate(line, ask, strategy) for line in fleet.indexed_places()), key=_evaluation_order)


def _evaluate(line: IndexedPlace, ask: PackedRequest, strategy: str) -> PlaceEvaluation:
    rejected = ask.rejection(line)
    earliest = ask.earliest(line)
    if rejected is None:
        score = SCORES.get(strategy)
        return PlaceEvaluation(line.place, score=score(line, ask) if score else None, earliest=earliest)
    name, reason = rejected
    hopeless = name in ROOM_FILTERS.values() and not ask.claim.need.within(line.place.capacity)
    return PlaceEvaluation(
        line.place, name, reason, TOO_LARGE_REMEDY if hopeless else FILTER_REMEDIES[name], earliest=earliest
    )


def _evaluation_order(answer: PlaceEvaluation) -> tuple[bool, float, bool, float, str]:
    when = answer.earliest.timestamp() if answer.earliest else 0.0
    return bool(answer.filter), -(answer.score or 0.0), answer.earliest is None, when, answer.place.id
