"""Every worker and seat that a session could go to, and what each answers. Used by `control.booking.explain`."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lcm.control.booking.calendar import Calendar
from lcm.control.booking.promise import Promises
from lcm.control.plane.protocol import ref_of
from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import PlaceAnswer
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import LabletSession, Rejection, get_claim
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import declared_capacity
from lcm.placement.candidate import PackedRequest
from lcm.placement.claims import Terms, asap_claim, request_for, slot_claim, usual_boot
from lcm.placement.fleet import PlaceIndex
from lcm.placement.limits import OPENING_POLICIES, PromiseRules, find_closed_time
from lcm.placement.place import MOST_EXAMPLES, PlaceEvaluation, evaluate_places
from lcm.placement.places import (
    PoolSnapshot,
    room_of,
    seat_place,
    session_holder,
    template_room,
    usable_from,
    worker_place,
)
from lcm.placement.request import BOOTING, HeldClaim, Place, PlacementRequest
from lcm.placement.rules import ROOM_FILTERS, TOO_LARGE_REMEDY
from lcm.placement.seat_choice import SEAT_REMEDIES, find_limit, is_plain
from lcm.placement.seats import Seats, smaller_amount, span_of

FOREIGN_LABS: Final = "foreign_labs"
_FOREIGN_LABS_REMEDY: Final = "end the labs on it that no session made, or add a worker"
_BEYOND_SIZE: Final = "its place is beyond the pool's size"
_POOL_ENDING: Final = "its pool is being deleted"
_PLACES_PER_TURN: Final = 20
_ROOM_FILTER_NAMES: Final = frozenset(ROOM_FILTERS.values())


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """A session, existing or only considered, with what it asks for at a moment."""

    session: LabletSession
    definition: LabletDefinition
    need: Amount
    terms: Terms
    now: datetime
    holder: str = ""
    """The name under which it already has claims; these are not in its own way."""

    def claim(self, at: datetime) -> Claim:
        """Return what it would claim if it were placed at a moment; a slot does not move."""
        whole = self.booked_claim
        if whole is None:
            return asap_claim(self.session, at, self.need, self.terms)
        return msgspec.structs.replace(whole, start=min(max(whole.start, self.now), whole.end))

    @property
    def booked_claim(self) -> Claim | None:
        """What it would claim if its slot were booked now, past parts included; None if it has no slot."""
        start, end = self.session.spec.timeslot_start, self.session.spec.timeslot_end
        return slot_claim(start, end, self.need, self.terms) if start is not None and end is not None else None

    @property
    def request(self) -> PlacementRequest:
        """What it asks of a place now."""
        return request_for(self.session, self.definition, self.claim(self.now), self.terms)


class ExplainedPlace(NamedTuple):
    """What a place answers to a session; `hopeless` means it is too small even when empty."""

    place: Place
    answer: PlaceAnswer
    hopeless: bool


@dataclass(slots=True)
class PlaceSurvey:
    """The places of a namespace with their claims."""

    fleet: PlaceIndex = field(default_factory=PlaceIndex)
    pools: dict[str, str] = field(default_factory=dict)
    barred: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Why a seat is not opened, in a word and in a sentence."""
    foreign: dict[str, Amount] = field(default_factory=dict)
    """What a worker would hold without the labs on it that no session made."""
    unsized: list[str] = field(default_factory=list)
    """Pools whose seats have no known size."""
    left_off: int = 0
    """How many seats were left out because a seat like them is included."""

    def ask_places(self, request: PlacementRequest, strategy: str) -> Sequence[ExplainedPlace]:
        """Ask every place: first those that fit, then the others by when they would."""
        return [self._explain_answer(answer, request) for answer in evaluate_places(self.fleet, request, strategy)]

    def _explain_answer(self, answer: PlaceEvaluation, request: PlacementRequest) -> ExplainedPlace:
        place = answer.place
        name, reason, remedy = answer.filter, answer.reason, answer.remedy
        hopeless = name in {BOOTING, *_ROOM_FILTER_NAMES} and not request.claim.need.within(place.capacity)
        if name == BOOTING and hopeless:
            name, reason = self._rejection_once_up(place, request)
            remedy = TOO_LARGE_REMEDY
        elif name == "phase" and place.id in self.barred:
            name, reason = self.barred[place.id]
            remedy = SEAT_REMEDIES[name]
        elif name in _ROOM_FILTER_NAMES and self._blocked_by_foreign_labs(place, request):
            name, hopeless, remedy = FOREIGN_LABS, False, _FOREIGN_LABS_REMEDY
            reason = f"labs that no session made are in the way: {reason}"
        said = PlaceAnswer(
            place=place.name,
            kind="seat" if place.seat else "worker",
            pool=self.pools[place.id],
            fits=not name,
            filter=name,
            reason=reason,
            remedy=remedy,
            score=answer.score,
            earliest=answer.earliest,
        )
        return ExplainedPlace(place, said, hopeless)

    def _rejection_once_up(self, place: Place, request: PlacementRequest) -> tuple[str, str]:
        """Return what a place that boots, and is too small, lacks even once it is up."""
        up = PlaceIndex([replace(place, closed="", usable_at=None)])
        rejected = PackedRequest(request).rejection(next(up.indexed_places()))
        assert rejected is not None, "it is too small"
        return rejected

    def _blocked_by_foreign_labs(self, place: Place, request: PlacementRequest) -> bool:
        """Return whether a request would fit if only sessions' labs were on a worker."""
        whole = self.foreign.get(place.id)
        if whole is None:
            return False
        alone = PlaceIndex([replace(place, capacity=whole)], {place.id: self.fleet.claims_on(place.id)})
        return PackedRequest(request).rejection(next(alone.indexed_places())) is None


async def survey_places(promises: Promises, asked: PlacementQuery) -> PlaceSurvey:
    """Collect every place of a session's namespace."""
    calendar, namespace = promises.calendar, asked.session.metadata.namespace
    ruled = [(row, await promises.read_rules(row, asked.now)) for row in calendar.pools(namespace)]
    looking = _Surveyor(calendar, asked)
    for row, rules in ruled:
        await looking.add_pool(row, rules)
    pooled = {seat.worker_id for pool in calendar.all(LabWorkerPool) for seat in pool.status.seats}
    for worker in calendar.all(LabWorker):
        if worker.metadata.uid not in pooled and worker.metadata.namespace == namespace:
            await looking.add_worker(worker)
    return looking.found


def count_rejections(explained: Sequence[ExplainedPlace]) -> tuple[Rejection, ...]:
    """Count the places by the filter that rejected the session, with a few examples of each."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in explained:
        if one.answer.filter:
            found[one.answer.filter].append(f"{one.place.name}: {one.answer.reason}")
    return tuple(
        Rejection(filter=name, count=len(texts), examples=tuple(texts[:MOST_EXAMPLES])) for name, texts in found.items()
    )


class _Surveyor:
    """Collects the places. A seat counts as the place of its worker while that serves or boots."""

    def __init__(self, calendar: Calendar, asked: PlacementQuery) -> None:
        self.found = PlaceSurvey()
        self._calendar = calendar
        self._asked = asked

    async def add_pool(self, row: PoolSnapshot, rules: PromiseRules) -> None:
        """Add a pool's workers, and its seats without a worker; of seats that are all alike only the first."""
        asked, seats, most = self._asked, self._calendar.seats(row), row.pool.spec.max_workers
        claims, boot = self._claims_by_seat(row), usual_boot(row.pool, asked.terms)
        opened = set[int]()
        for number, worker in row.workers.items():
            if usable_from(worker, asked.now, boot) is None:
                await self.add_worker(worker, row.pool)
                continue
            room = seats[number].machine_room if seats is not None and number <= len(seats) else None
            place = worker_place(worker, asked.now, boot=boot, room=room)
            closed = _POOL_ENDING if _is_ending(row) else _BEYOND_SIZE if number > most else ""
            why = None
            if not closed and seats is not None and asked.booked_claim is None:  # a promised slot keeps its worker
                why = _limit_violation(seats, number, asked.claim(place.usable_at or asked.now), rules)
            reason = closed or (why[1] if why else place.closed)
            await self._add_place(
                replace(place, closed=reason), self._claims_on_worker(worker, claims[number]), row.pool
            )
            self.found.barred |= {place.id: why} if why else {}
            self._note_foreign(worker, template_room(row))
            opened.add(number)
        if seats is not None:
            await self._add_seats(row, seats, rules, claims, opened)
        else:
            self.found.unsized.append(row.name)

    async def add_worker(self, worker: LabWorker, pool: LabWorkerPool | None = None) -> None:
        """Add a worker that fills no usable seat; until it reports its capacity, that is taken from its spec."""
        room = None if room_of(worker) else declared_capacity(worker.spec)
        place = worker_place(worker, self._asked.now, boot=usual_boot(pool, self._asked.terms), room=room)
        await self._add_place(place, self._claims_on_worker(worker, []), pool)
        self._note_foreign(worker, None)

    async def _add_seats(
        self,
        row: PoolSnapshot,
        seats: Seats,
        rules: PromiseRules,
        claims: Mapping[int, list[HeldClaim]],
        opened: Collection[int],
    ) -> None:
        fresh = False
        for number in range(1, min(row.pool.spec.max_workers, len(seats)) + 1):
            plain = number not in row.workers and is_plain(seats, number) and number not in seats.always
            if number not in opened and not (plain and fresh):
                await self._add_seat(row, seats, number, rules, claims[number])
            elif number not in opened:
                self.found.left_off += 1
            fresh = fresh or plain

    async def _add_seat(
        self, row: PoolSnapshot, seats: Seats, number: int, rules: PromiseRules, claims: Sequence[HeldClaim]
    ) -> None:
        asked = self._asked
        usable = asked.now + usual_boot(row.pool, asked.terms)
        why = None if _is_ending(row) else _opening_refusal(seats, number, asked.claim(usable), rules)
        closed = _POOL_ENDING if _is_ending(row) else why[1] if why else ""
        place = seat_place(row, number, seats[number].machine_room, usable, closed=closed)
        await self._add_place(place, claims, row.pool)
        if why is not None:
            self.found.barred[place.id] = why

    async def _add_place(self, place: Place, claims: Sequence[HeldClaim], pool: LabWorkerPool | None) -> None:
        """Add a place, and let other tasks run now and then: a large fleet takes a second."""
        self.found.fleet.put(place)
        for held in claims:
            self.found.fleet.hold(place.id, held)
        self.found.pools[place.id] = pool.metadata.name if pool else ""
        if len(self.found.fleet) % _PLACES_PER_TURN == 0:
            await asyncio.sleep(0)

    def _claims_by_seat(self, row: PoolSnapshot) -> Mapping[int, list[HeldClaim]]:
        found: dict[int, list[HeldClaim]] = defaultdict(list)
        for number, held in self._calendar.claims(ref_of(row.pool)):
            if held.holder != self._asked.holder and held.claim.end > self._asked.now:
                found[number].append(held)
        return found

    def _claims_on_worker(self, worker: LabWorker, claims: Sequence[HeldClaim]) -> list[HeldClaim]:
        """Return what is held on a worker: these claims, and those of the other sessions that are on it."""
        asked, known = self._asked, {held.holder for held in claims} | {self._asked.holder}
        sessions = ((session_holder(one), get_claim(one)) for one in self._calendar.sessions_on(worker.metadata.uid))
        loose = [(name, claim) for name, claim in sessions if claim and claim.end > asked.now and name not in known]
        return [*claims, *(HeldClaim(name, claim) for name, claim in loose)]

    def _note_foreign(self, worker: LabWorker, room: Amount | None) -> None:
        whole = worker.status.capacity
        if whole is not None and (worker.status.foreign != ZERO_AMOUNT or worker.status.foreign_ports):
            self.found.foreign[worker.metadata.uid] = smaller_amount(whole, room) if room else whole


def _is_ending(row: PoolSnapshot) -> bool:
    return row.pool.metadata.deletion_timestamp is not None


def _opening_refusal(seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> tuple[str, str] | None:
    """Return why a seat may not be opened for a claim, in a word and in a sentence; None if it may."""
    if not claim.need.within(seats[number].capacity):
        return None  # the place's own answer says so already
    if rules.policy not in OPENING_POLICIES:
        return ("no_worker", f"it is not running, and with the policy {rules.policy} none is started for a session")
    return _limit_violation(seats, number, claim, rules)


def _limit_violation(seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> tuple[str, str] | None:
    span = span_of(claim)
    closed = find_closed_time([span], rules)
    return closed or find_limit(seats, number, span, seats.added_runtime(number, span), rules)
