"""One plan for all waiting sessions: which one goes where, and when. Pure; `PlacementLoop` carries it out.

Each session is placed and its claim held before the next one is planned, also where it has to wait. So a smaller
session goes before a larger one only if that delays nobody. All holds are rolled back afterwards. Owners take turns
(`order_fairly`), and priorities grow by one a minute, so every session's turn comes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heapreplace
from typing import Final

import msgspec

from lcm.model.base.capacity import Claim
from lcm.model.base.clock import Stopwatch
from lcm.model.kinds.session import LabletSession, Rejection, SchedulingDecision, is_asap
from lcm.placement.candidate import IndexedPlace, PackedRequest, accepts_sessions, format_moment
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import OpeningOrder, Placement, assign, count_rejections, first_opening, opening_order
from lcm.placement.places import session_holder
from lcm.placement.request import HeldClaim, Place, PlacementRequest, is_unopened_seat
from lcm.placement.rules import request_facts, static_rejection
from lcm.placement.timeline import micros, moment_of

MINUTE: Final = timedelta(minutes=1)
"""A place better by no more than this is no reason to move. Waiting this long is worth a priority of one."""

FAIR_STEP: Final = timedelta(hours=2)
"""How much later a session's turn comes for each session that its owner has already.

It is more than the highest priority is worth, so a priority orders only what is equally fair. It is not endless, so
that somebody who has much gets more when he has waited long enough.
"""


@dataclass(frozen=True, slots=True)
class Seeker:
    """A session that needs a place: its request from now on, and the place on which it already has a claim.

    `start_up` is how long it usually takes to run. `likely` is how long it will likely stay; None means all its
    claim. A session that was `turned_away` because of a pool's limits keeps no room from others meanwhile. `served` is
    how many sessions its owner has on workers. `wish` is what it has in common with all sessions that get the same
    answers.
    """

    session: LabletSession
    request: PlacementRequest
    start_up: timedelta = timedelta(0)
    kept: str | None = None
    likely: timedelta | None = None
    turned_away: bool = False
    served: int = 0
    wish: object = None

    @property
    def holder(self) -> str:
        """Its name as the holder of a claim."""
        return session_holder(self.session)

    @property
    def order(self) -> tuple[bool, bool, datetime, datetime, str]:
        """The sort key among the sessions of one owner: promised ones first, then by priority and the minutes waited.

        Of those that were turned away, the ones that end soonest are the likeliest to be admitted.
        """
        metadata, claim = self.session.metadata, self.request.claim
        created = metadata.created_at or datetime.min.replace(tzinfo=UTC)
        first = created - self.session.spec.priority * MINUTE if is_asap(self.session) else claim.start
        turn = claim.end if self.turned_away else first
        return is_asap(self.session), self.turned_away, turn, created, metadata.uid


def order_fairly(seekers: Iterable[Seeker]) -> Sequence[Seeker]:
    """Return sessions in the order of the queue: promised ones first, then the owners of the others take turns.

    A session comes later by FAIR_STEP for each one that its owner has on a worker or before it in the queue.
    """
    ahead = Counter[str]()
    turns = list[tuple[tuple[bool, bool, datetime, datetime, str], Seeker]]()
    for one in sorted(seekers, key=lambda one: one.order):
        waits, turned_away, turn, created, uid = one.order
        owner = one.session.spec.owner
        if waits:
            turn += (one.served + ahead[owner]) * FAIR_STEP
            ahead[owner] += 1
        turns.append(((waits, turned_away, turn, created, uid), one))
    return [one for _, one in sorted(turns, key=lambda turn: turn[0])]


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """Where a session goes. `at` is when it can begin there, None for never; `behind` names the holder in its way."""

    seeker: Seeker
    decision: SchedulingDecision
    place: Place | None = None
    at: datetime | None = None
    behind: str = ""
    position: int = 0
    rejections: Callable[[], tuple[Rejection, ...]] = tuple

    @property
    def is_assigned(self) -> bool:
        """Whether it goes there now, or at the time it asked for."""
        return self.decision.action == "assign"

    @property
    def full_decision(self) -> SchedulingDecision:
        """The decision including its rejections, for whoever reads it."""
        return msgspec.structs.replace(self.decision, rejections=self.rejections())

    @property
    def claim(self) -> Claim:
        """Its claim on the place; the end of a slot does not move."""
        assert self.at is not None, "only what has a place claims it"
        claim = self.seeker.request.claim
        end = claim.end + (self.at - claim.start) if is_asap(self.seeker.session) else claim.end
        return Claim(start=self.at, end=end, need=claim.need)


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How to plan: which of the fitting places is chosen, and whose turn it is for round robin."""

    strategy: str
    stopwatch: Stopwatch
    turn: Callable[[], int] = lambda: 0


def plan(fleet: PlaceIndex, seekers: Sequence[Seeker], rules: QueueRules) -> Sequence[PlacementOutcome]:
    """Decide about all waiting sessions in their order. The fleet is left unchanged."""
    lifted = [(one.kept, held) for one in seekers if one.kept for held in _claims_of(fleet, one.kept, one.holder)]
    for place_id, held in lifted:
        fleet.release(place_id, held.holder)
    planning = _QueuePlanner(fleet, rules)
    try:
        ordered = order_fairly(seekers)
        # Promised sessions that can stay are placed first, so nobody takes their place.
        stay = {one.holder: found for one in ordered if (found := planning.stay(one))}
        return _number_queue([stay.get(one.holder) or planning.decide(one) for one in ordered])
    finally:
        for place_id, holder in planning.held:
            fleet.release(place_id, holder)
        for place_id, held in lifted:
            fleet.hold(place_id, held)


class _QueuePlanner:
    """The decisions so far, held as claims on the fleet."""

    def __init__(self, fleet: PlaceIndex, rules: QueueRules) -> None:
        self._fleet = fleet
        self._rules = rules
        shelves = (*fleet.workers, *fleet.seats)
        self._lines = {line.place.id: line for shelf in shelves for line in shelf.lines.values()}
        self._searches: dict[object, _PlaceSearch] = {}
        self.held: list[tuple[str, str]] = []

    def stay(self, seeker: Seeker) -> PlacementOutcome | None:
        """Leave a promised session where it is, if that keeps the promise; otherwise return None."""
        if is_asap(seeker.session):
            return None
        own = self._search_for(seeker).earliest_at(seeker.kept, promised=True)
        stays = own is not None and own[0] <= seeker.request.claim.start
        return self._hold(_keep_place(seeker, own[1].place)) if own and stays else None

    def decide(self, seeker: Seeker) -> PlacementOutcome:
        began = self._rules.stopwatch.seconds()
        outcome = self._hold(self._decide(seeker))
        latency = (self._rules.stopwatch.seconds() - began) * 1000
        decision = msgspec.structs.replace(outcome.decision, latency_ms=round(latency, 3))
        return replace(outcome, decision=decision)

    def _hold(self, outcome: PlacementOutcome) -> PlacementOutcome:
        holder, likely = outcome.seeker.holder, outcome.seeker.likely
        if outcome.place is not None and outcome.claim.start < outcome.claim.end:
            claim = outcome.claim
            if likely is not None:  # what the sessions behind have to expect
                claim = msgspec.structs.replace(claim, end=min(claim.end, claim.start + likely))
            self._fleet.hold(outcome.place.id, HeldClaim(holder, claim))
            self.held.append((outcome.place.id, holder))
        return outcome

    def _decide(self, seeker: Seeker) -> PlacementOutcome:
        request, search = seeker.request, self._search_for(seeker)
        own = search.earliest_at(seeker.kept, promised=not is_asap(seeker.session))
        if own is not None and own[0] <= request.claim.start and not (own[1].place.seat and is_asap(seeker.session)):
            return _keep_place(seeker, own[1].place)
        found = search.find_now(self._rules)
        if found is not None:
            return PlacementOutcome(seeker, found.decision, found.place, found.at)
        best = search.find_soonest()
        if own is not None and (best is None or own[0] <= best[0] + MINUTE):
            best = own
        return _place_later(seeker, search, best)

    def _search_for(self, seeker: Seeker) -> "_PlaceSearch":
        request = seeker.request
        asks = request_facts(request), request.claim, request.region_preferred
        shape = asks, request.movable, frozenset(request.refused)
        if shape not in self._searches:
            self._searches[shape] = _PlaceSearch(self._fleet, self._lines, request)
        return self._searches[shape]


class _PlaceSearch:
    """The search for requests of one shape: what does not fit now does not fit after further holds either."""

    def __init__(self, fleet: PlaceIndex, lines: Mapping[str, IndexedPlace], request: PlacementRequest) -> None:
        self._fleet = fleet
        self._lines = lines
        self._ask = PackedRequest(request)
        self.candidate_count = len(lines)
        self._heap: list[OpeningOrder] | None = None
        self._opening = 0
        """When the first of the seats without a worker could be used, if its machine were started now."""
        self._rejections: tuple[Rejection, ...] | None = None

    def earliest_at(self, place_id: str | None, *, promised: bool) -> tuple[datetime, IndexedPlace] | None:
        """Return from when on a place would take the request; None if never, or if there is no such place.

        A session that was promised a place may use it even if it is closed to others.
        """
        line = self._lines.get(place_id) if place_id else None
        if line is None or static_rejection(line.place, self._ask.request):
            return None
        if not promised and (not accepts_sessions(line.place) or place_id in self._ask.request.refused):
            return None
        found = self._earliest(line)
        return None if found is None else (moment_of(found), line)

    def find_now(self, rules: QueueRules) -> Placement | None:
        """Choose a worker that takes the request at the time asked for; None if there is none."""
        if self._heap is None:
            found = assign(self._fleet, self._ask, rules.strategy, number=rules.turn())
            if found is not None:
                return found
            shelves = (*self._fleet.workers, *self._fleet.seats)
            lines = (line for shelf in shelves for line in shelf.places_in(shelf.open_to(self._ask)))
            moments = [(at, line) for line in lines if (at := self._earliest(line)) is not None]
            self._opening = first_opening(moments)
            self._heap = [self._order(at, line) for at, line in moments]
            heapify(self._heap)
        return None

    def find_soonest(self) -> tuple[datetime, IndexedPlace] | None:
        """Find the place that takes the request first. Holds were only added since, so places only became later."""
        while self._heap:
            known = self._heap[0]
            line = self._lines[known[-1]]
            moment = self._earliest(line)
            if moment is None:
                heappop(self._heap)
            elif (order := self._order(moment, line)) == known:
                return moment_of(moment), line
            else:
                heapreplace(self._heap, order)
        return None

    def _order(self, at: int, line: IndexedPlace) -> OpeningOrder:
        return opening_order(at, line, self._ask.request, self._opening)

    def rejections(self) -> tuple[Rejection, ...]:
        """Count what is in the way of requests like this; computed only when somebody is told."""
        if self._rejections is None:
            self._rejections = count_rejections(self._fleet, self._ask)
        return self._rejections

    def _earliest(self, line: IndexedPlace) -> int | None:
        """Return from when on a place that is open to the request has the room."""
        ask = self._ask
        found = line.timeline.earliest(max(ask.start, line.usable), ask.end - ask.start, ask.pack_need(line.lanes))
        return found if ask.request.movable or found == ask.start else None


def _keep_place(seeker: Seeker, found: Place) -> PlacementOutcome:
    decision = SchedulingDecision(
        action="assign", worker_id=found.id, reason=f"{found.name} is where it has its claim", candidates_evaluated=1
    )
    return PlacementOutcome(seeker, decision, found, seeker.request.claim.start)


def _place_later(seeker: Seeker, search: _PlaceSearch, best: tuple[datetime, IndexedPlace] | None) -> PlacementOutcome:
    if best is None:
        reason = "no open place will ever fit it" if seeker.request.movable else "no open place fits it at its time"
        decision = SchedulingDecision(action="wait", reason=reason, candidates_evaluated=search.candidate_count)
        return PlacementOutcome(seeker, decision, rejections=search.rejections)
    at, line = best
    found = line.place
    opened = is_unopened_seat(found)
    told = f"no worker fits it sooner than planned worker {found.name} would" if opened else f"{found.name} will fit it"
    decision = SchedulingDecision(
        action="scale_up" if opened else "wait",
        worker_template=found.template or None if opened else None,
        reason=f"{told} at {format_moment(at)}",
        candidates_evaluated=search.candidate_count,
    )
    ends = micros(at)
    behind = next((holder for holder, one in line.held.items() if one.end == ends), "")
    return PlacementOutcome(seeker, decision, found, at, behind, rejections=search.rejections)


def _number_queue(outcomes: Sequence[PlacementOutcome]) -> Sequence[PlacementOutcome]:
    """Return the outcomes with queue positions for those that have to wait."""
    made, position = [], 0
    for one in outcomes:
        position += not one.is_assigned
        made.append(one if one.is_assigned else replace(one, position=position))
    return made


def _claims_of(fleet: PlaceIndex, place_id: str, holder: str) -> Sequence[HeldClaim]:
    return [one for one in fleet.claims_on(place_id) if one.holder == holder] if place_id in fleet else []
