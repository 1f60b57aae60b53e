"""Who of those that wait goes where, and when: one plan for all of them. Pure; `placing` carries it out.

Each is placed and held before the next one is, also where it has to wait: a smaller one goes before a larger one only
if that delays nobody. All is taken back afterwards. Priorities grow by one a minute, so that everybody's turn comes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from typing import Final

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.clock import Stopwatch
from lcm.model.kinds.session import LabletSession, Rejection, SchedulingDecision, is_asap
from lcm.placement.candidate import Ask, Line, accepts, clock
from lcm.placement.fleet import Fleet
from lcm.placement.place import Placement, assign, rejections
from lcm.placement.places import session_holder
from lcm.placement.request import BOOTING, Held, Place, Request
from lcm.placement.rules import asked_of, static_rejection
from lcm.placement.timeline import micros, moment_of

MINUTE: Final = timedelta(minutes=1)
"""What is better by no more than this is no reason to move. It is also how long a priority of one is worth."""


@dataclass(frozen=True, slots=True)
class Seeker:
    """A session that needs a place: what it asks for from now on, and the place on which it has a claim already.

    `start_up` is how long it usually takes to run, `likely` how long it will likely be there, None for all its claim.
    One that was `turned_away` for what a pool must not go beyond keeps no room from others meanwhile.
    """

    session: LabletSession
    request: Request
    start_up: timedelta = timedelta(0)
    kept: str | None = None
    likely: timedelta | None = None
    turned_away: bool = False

    @property
    def holder(self) -> str:
        """Its name as one who holds a claim."""
        return session_holder(self.session)

    @property
    def order(self) -> tuple[bool, bool, datetime, datetime, str]:
        """Say whose turn it is: what was promised first, then by priority and the minutes waited.

        Of those who were turned away the ones that end soonest are the likeliest to be let in.
        """
        metadata, claim = self.session.metadata, self.request.claim
        created = metadata.created_at or datetime.min.replace(tzinfo=UTC)
        first = created - self.session.spec.priority * MINUTE if is_asap(self.session) else claim.start
        turn = claim.end if self.turned_away else first
        return is_asap(self.session), self.turned_away, turn, created, metadata.uid


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a session goes. `at` is when it can begin there, None for never; `behind` names who is in its way."""

    seeker: Seeker
    decision: SchedulingDecision
    place: Place | None = None
    at: datetime | None = None
    behind: str = ""
    position: int = 0
    rejections: Callable[[], tuple[Rejection, ...]] = tuple

    @property
    def now(self) -> bool:
        """Whether it goes there now, or at the time it asked for."""
        return self.decision.action == "assign"

    @property
    def explained(self) -> SchedulingDecision:
        """The decision with what was in the way, for who is told."""
        return msgspec.structs.replace(self.decision, rejections=self.rejections())

    @property
    def claim(self) -> Claim:
        """What it claims there."""
        assert self.at is not None, "only what has a place claims it"
        return claim_at(self.seeker, self.at)


@dataclass(frozen=True, slots=True)
class Rules:
    """How it is planned: which of the places that fit is taken, and whose turn it is where that is by turns."""

    strategy: str
    stopwatch: Stopwatch
    turn: Callable[[], int] = lambda: 0


def plan(fleet: Fleet, seekers: Sequence[Seeker], rules: Rules) -> Sequence[Outcome]:
    """Decide about all who wait, in their order; the fleet is left as it was."""
    lifted = [(one.kept, held) for one in seekers if one.kept for held in _held(fleet, one.kept, one.holder)]
    for place_id, held in lifted:
        fleet.release(place_id, held.holder)
    planning = _Planning(fleet, rules)
    try:
        ordered = sorted(seekers, key=lambda one: one.order)
        # Nobody is promised away from where it can stay.
        stay = {one.holder: found for one in ordered if (found := planning.stay(one))}
        return _numbered([stay.get(one.holder) or planning.decide(one) for one in ordered])
    finally:
        planning.take_back()
        for place_id, held in lifted:
            fleet.hold(place_id, held)


def claim_at(seeker: Seeker, at: datetime) -> Claim:
    """Give a session's claim if it begins at a moment; a slot's end stays where it is."""
    claim = seeker.request.claim
    end = claim.end + (at - claim.start) if is_asap(seeker.session) else claim.end
    return Claim(start=at, end=end, need=claim.need)


def opens(found: Place) -> bool:
    """Tell whether a place is a seat whose worker nobody has started."""
    return found.seat and found.closed != BOOTING


class _Planning:
    """What was decided so far, held on the fleet."""

    def __init__(self, fleet: Fleet, rules: Rules) -> None:
        self._fleet = fleet
        self._rules = rules
        shelves = (*fleet.shelves(seats=False), *fleet.shelves(seats=True))
        self._lines = {line.place.id: line for shelf in shelves for line in shelf.lines}
        self._searches: dict[object, _Search] = {}
        self._held: list[tuple[str, str]] = []

    def stay(self, seeker: Seeker) -> Outcome | None:
        """Leave a promise where it is, if that keeps it."""
        if is_asap(seeker.session):
            return None
        own = self._search(seeker).at(seeker.kept, promised=True)
        stays = own is not None and own[0] <= seeker.request.claim.start
        return self._hold(_own(seeker, own[1].place)) if own and stays else None

    def decide(self, seeker: Seeker) -> Outcome:
        began = self._rules.stopwatch.seconds()
        outcome = self._hold(self._decide(seeker))
        latency = (self._rules.stopwatch.seconds() - began) * 1000
        decision = msgspec.structs.replace(outcome.decision, latency_ms=round(latency, 3))
        return replace(outcome, decision=decision)

    def _hold(self, outcome: Outcome) -> Outcome:
        holder = outcome.seeker.holder
        if outcome.place is not None and outcome.claim.start < outcome.claim.end:
            self._fleet.hold(outcome.place.id, Held(holder, _likely(outcome)))
            self._held.append((outcome.place.id, holder))
        return outcome

    def take_back(self) -> None:
        for place_id, holder in self._held:
            self._fleet.release(place_id, holder)

    def _decide(self, seeker: Seeker) -> Outcome:
        request, search = seeker.request, self._search(seeker)
        own = search.at(seeker.kept, promised=not is_asap(seeker.session))
        if own is not None and own[0] <= request.claim.start and not (own[1].place.seat and is_asap(seeker.session)):
            return _own(seeker, own[1].place)
        found = search.now(self._rules)
        if found is not None:
            return Outcome(seeker, found.decision, found.place, found.at)
        best = search.soonest()
        if own is not None and (best is None or own[0] <= best[0] + MINUTE):
            best = own
        return _later(seeker, search, best)

    def _search(self, seeker: Seeker) -> "_Search":
        shape = _shape(seeker.request)
        if shape not in self._searches:
            self._searches[shape] = _Search(self._fleet, self._lines, seeker.request)
        return self._searches[shape]


class _Search:
    """The search for requests of one shape: what does not fit now will not fit after others were held either."""

    def __init__(self, fleet: Fleet, lines: Mapping[str, Line], request: Request) -> None:
        self._fleet = fleet
        self._lines = lines
        self._ask = Ask(request)
        self.looked = len(lines)
        self._heap: list[tuple[int, bool, str]] | None = None
        self._rejections: tuple[Rejection, ...] | None = None

    def at(self, place_id: str | None, *, promised: bool) -> tuple[datetime, Line] | None:
        """Say from when on a place would take it; None if never, or if there is no such place.

        Who was promised a place has it even if it is closed to others.
        """
        line = self._lines.get(place_id) if place_id else None
        if line is None or not (promised or accepts(line.place)) or static_rejection(line.place, self._ask.request):
            return None
        found = self._earliest(line)
        return None if found is None else (moment_of(found), line)

    def now(self, rules: Rules) -> Placement | None:
        """Choose a worker that takes it at the time asked for; None if there is none."""
        if self._heap is None:
            found = assign(self._fleet, self._ask, rules.strategy, number=rules.turn())
            if found is not None:
                return found
            shelves = (*self._fleet.shelves(seats=False), *self._fleet.shelves(seats=True))
            lines = (line for shelf in shelves for line in shelf.of(shelf.open_to(self._ask.request)))
            moments = ((self._earliest(line), line.place) for line in lines)
            self._heap = [(at, one.seat, one.id) for at, one in moments if at is not None]
            heapify(self._heap)
        return None

    def soonest(self) -> tuple[datetime, Line] | None:
        """Find the place that takes it first. Others were held since, so a place may only have become later."""
        while self._heap:
            known, seat, place_id = self._heap[0]
            moment = self._earliest(self._lines[place_id])
            if moment == known:
                return moment_of(known), self._lines[place_id]
            if moment is None:
                heappop(self._heap)
            else:
                heapreplace(self._heap, (moment, seat, place_id))
        return None

    def rejections(self) -> tuple[Rejection, ...]:
        """Count what is in the way of requests like this; asked for only where somebody is told."""
        if self._rejections is None:
            self._rejections = rejections(self._fleet, self._ask)
        return self._rejections

    def _earliest(self, line: Line) -> int | None:
        """Say from when on a place that is open to it has the room."""
        ask = self._ask
        found = line.timeline.earliest(max(ask.start, line.usable), ask.end - ask.start, ask.packed(line.lanes))
        return found if ask.request.movable or found == ask.start else None


def _likely(outcome: Outcome) -> Claim:
    """Give what those behind have to reckon with."""
    claim, likely = outcome.claim, outcome.seeker.likely
    return claim if likely is None else msgspec.structs.replace(claim, end=min(claim.end, claim.start + likely))


def _own(seeker: Seeker, found: Place) -> Outcome:
    decision = SchedulingDecision(
        action="assign", worker_id=found.id, reason=f"{found.name} is where it has its claim", candidates_evaluated=1
    )
    return Outcome(seeker, decision, found, seeker.request.claim.start)


def _later(seeker: Seeker, search: _Search, best: tuple[datetime, Line] | None) -> Outcome:
    if best is None:
        reason = "no open place will ever fit it" if seeker.request.movable else "no open place fits it at its time"
        decision = SchedulingDecision(action="wait", reason=reason, candidates_evaluated=search.looked)
        return Outcome(seeker, decision, rejections=search.rejections)
    at, line = best
    found = line.place
    opened = opens(found)
    told = f"no worker fits it sooner than the seat {found.name} would" if opened else f"{found.name} will fit it"
    decision = SchedulingDecision(
        action="scale_up" if opened else "wait",
        worker_template=found.template or None if opened else None,
        reason=f"{told} at {clock(at)}",
        candidates_evaluated=search.looked,
    )
    ends = micros(at)
    behind = next((holder for holder, one in line.held.items() if one.end == ends), "")
    return Outcome(seeker, decision, found, at, behind, rejections=search.rejections)


def _numbered(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Say of each that has to wait which in the queue it is."""
    made, position = [], 0
    for one in outcomes:
        position += not one.now
        made.append(one if one.now else replace(one, position=position))
    return made


def _shape(request: Request) -> object:
    return asked_of(request), request.claim, request.region_preferred, request.movable


def _held(fleet: Fleet, place_id: str, holder: str) -> Sequence[Held]:
    return [one for one in fleet.held(place_id) if one.holder == holder] if place_id in fleet else []
