"""Every worker and seat that a session could go to, and what each says to it. Used by `explaining`."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from lcm.control.booking.calendar import Calendar
from lcm.control.booking.promise import Desk, offered
from lcm.control.plane.protocol import ref_of
from lcm.model.base.capacity import NOTHING, Amount, Claim
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import PlaceAnswer
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import LabletSession, Rejection, holds
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import declared_capacity
from lcm.placement.candidate import Ask
from lcm.placement.claims import Terms, asap_claim, request_for, slot_claim, usual_boot
from lcm.placement.fleet import Fleet
from lcm.placement.limits import OPENING, Rules, barred, outside_hours
from lcm.placement.place import MOST_EXAMPLES, Answer, explain
from lcm.placement.places import Row, room_of, seat_place, session_holder, template_room, usable_from, worker_place
from lcm.placement.request import BOOTING, Held, Place, Request
from lcm.placement.rules import LARGER, ROOM
from lcm.placement.seat_choice import REMEDIES
from lcm.placement.seats import Seats, least, span_of

FOREIGN: Final = "foreign_labs"
_END_THEM: Final = "end the labs on it that no session made, or add a worker"
_BEYOND: Final = "its seat is beyond the pool's size"
_ENDING: Final = "its pool is being deleted"
_AT_ONCE: Final = 20
_ROOM: Final = frozenset(ROOM.values())


@dataclass(frozen=True, slots=True)
class Asked:
    """A session, or one that somebody thinks about, with what it asks for at a moment."""

    session: LabletSession
    definition: LabletDefinition
    need: Amount
    terms: Terms
    now: datetime
    holder: str = ""
    """Under which name it has claims already, which are not in its own way."""

    def claim(self, at: datetime) -> Claim:
        """Say what it would claim if it were put somewhere at a moment; a slot does not move."""
        whole = self.booked
        if whole is None:
            return asap_claim(self.session, at, self.need, self.terms)
        return msgspec.structs.replace(whole, start=min(max(whole.start, self.now), whole.end))

    @property
    def booked(self) -> Claim | None:
        """What it would claim if its slot were booked now, whatever of that is past; None: it has none."""
        start, end = self.session.spec.timeslot_start, self.session.spec.timeslot_end
        return slot_claim(start, end, self.need, self.terms) if start is not None and end is not None else None

    @property
    def request(self) -> Request:
        """What it asks of a place now."""
        return request_for(self.session, self.definition, self.claim(self.now), self.terms)


class Told(NamedTuple):
    """What a place says; `hopeless`: it is too small even when empty."""

    place: Place
    answer: PlaceAnswer
    hopeless: bool


@dataclass(slots=True)
class Survey:
    """The places of a namespace with their claims."""

    fleet: Fleet = field(default_factory=Fleet)
    pools: dict[str, str] = field(default_factory=dict)
    barred: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Why a seat is not opened, in a word and in a sentence."""
    foreign: dict[str, Amount] = field(default_factory=dict)
    """What a worker would hold if there were no labs on it that no session made."""
    unsized: list[str] = field(default_factory=list)
    """Pools of which it is not known what a seat holds."""
    left_off: int = 0
    """Seats that are alike and of which one is there already."""

    def put(self, place: Place, claims: Sequence[Held], pool: str = "") -> None:
        """Add a place."""
        self.fleet.put(place)
        for held in claims:
            self.fleet.hold(place.id, held)
        self.pools[place.id] = pool

    def ask(self, request: Request, strategy: str) -> Sequence[Told]:
        """Ask every place: first those that fit, then the others by when they would."""
        return [self._told(answer, request) for answer in explain(self.fleet, request, strategy)]

    def _told(self, answer: Answer, request: Request) -> Told:
        place = answer.place
        name, reason, remedy = answer.filter, answer.reason, answer.remedy
        hopeless = name in {BOOTING, *_ROOM} and not request.claim.need.within(place.capacity)
        if name == BOOTING and hopeless:
            name, reason = self._once_up(place, request)
            remedy = LARGER
        elif name == "phase" and place.id in self.barred:
            name, reason = self.barred[place.id]
            remedy = REMEDIES[name]
        elif name in _ROOM and self._in_the_way(place, request):
            name, hopeless, remedy = FOREIGN, False, _END_THEM
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
        return Told(place, said, hopeless)

    def _once_up(self, place: Place, request: Request) -> tuple[str, str]:
        """Say what a place that boots, and is too small, lacks even then."""
        up = Fleet([replace(place, closed="", usable_at=None)])
        rejected = Ask(request).rejection(next(up.lines()))
        assert rejected is not None, "it is too small"
        return rejected

    def _in_the_way(self, place: Place, request: Request) -> bool:
        """Tell whether a request would fit if only our own sessions were on a worker."""
        whole = self.foreign.get(place.id)
        if whole is None:
            return False
        alone = Fleet([replace(place, capacity=whole)], {place.id: self.fleet.held(place.id)})
        return Ask(request).rejection(next(alone.lines())) is None


async def survey(desk: Desk, asked: Asked) -> Survey:
    """Look at every place of a session's namespace."""
    calendar, namespace = desk.calendar, asked.session.metadata.namespace
    ruled = [(row, await desk.rules(row, asked.now)) for row in calendar.rows(namespace)]
    looking = _Surveyor(calendar, asked)
    for row, rules in ruled:
        await looking.at_pool(row, rules)
    pooled = {seat.worker_id for pool in calendar.all(LabWorkerPool) for seat in pool.status.seats}
    for worker in calendar.all(LabWorker):
        if worker.metadata.uid not in pooled and worker.metadata.namespace == namespace:
            await looking.at_worker(worker)
    return looking.found


def rejections(told: Sequence[Told]) -> tuple[Rejection, ...]:
    """Count the places by what they turned the session away for, with a few examples of each."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in told:
        if one.answer.filter:
            found[one.answer.filter].append(f"{one.place.name}: {one.answer.reason}")
    return tuple(
        Rejection(filter=name, count=len(texts), examples=tuple(texts[:MOST_EXAMPLES])) for name, texts in found.items()
    )


class _Surveyor:
    """Goes round and adds up the places. A seat counts as its worker's place while that serves or boots."""

    def __init__(self, calendar: Calendar, asked: Asked) -> None:
        self.found = Survey()
        self._calendar = calendar
        self._asked = asked

    async def at_pool(self, row: Row, rules: Rules) -> None:
        """Add a pool's workers, and its seats without a worker: of those that are all alike only the first."""
        asked, seats, most = self._asked, self._calendar.seats(row), row.pool.spec.max_workers
        claims, boot = self._claims(row), usual_boot(row.pool, asked.terms)
        opened = set[int]()
        for number, worker in row.workers.items():
            if usable_from(worker, asked.now, boot) is None:
                await self.at_worker(worker, row.pool)
                continue
            room = seats[number].capacity if seats is not None and number <= len(seats) else None
            place = worker_place(worker, asked.now, boot=boot, room=room)
            closed = _ENDING if _ends(row) else _BEYOND if number > most else ""
            why = None if closed or seats is None else self._limited(seats, number, place.usable_at, rules)
            told = closed or (why[1] if why else place.closed)
            await self._put(replace(place, closed=told), self._beside(worker, claims[number]), row.pool)
            self.found.barred |= {place.id: why} if why else {}
            self._note_foreign(worker, template_room(row))
            opened.add(number)
        if seats is not None:
            await self._at_seats(row, seats, rules, claims, opened)
        else:
            self.found.unsized.append(row.name)

    async def at_worker(self, worker: LabWorker, pool: LabWorkerPool | None = None) -> None:
        """Add a worker that fills no seat now; what it will hold is taken from its spec until it has said so."""
        room = None if room_of(worker) else declared_capacity(worker.spec)
        place = worker_place(worker, self._asked.now, boot=usual_boot(pool, self._asked.terms), room=room)
        await self._put(place, self._beside(worker, []), pool)
        self._note_foreign(worker, None)

    async def _at_seats(
        self, row: Row, seats: Seats, rules: Rules, claims: Mapping[int, list[Held]], opened: Collection[int]
    ) -> None:
        fresh = False
        for number in range(1, min(row.pool.spec.max_workers, len(seats)) + 1):
            plain = number not in row.workers and not seats[number].held and number not in seats.always
            if number not in opened and not (plain and fresh):
                await self._at_seat(row, seats, number, rules, claims[number])
            elif number not in opened:
                self.found.left_off += 1
            fresh = fresh or plain

    async def _at_seat(self, row: Row, seats: Seats, number: int, rules: Rules, claims: Sequence[Held]) -> None:
        asked, alike = self._asked, offered(row)
        usable = asked.now + usual_boot(row.pool, asked.terms)
        why = None if _ends(row) else _barred(seats, number, asked.claim(usable), rules)
        closed = _ENDING if _ends(row) else why[1] if why else ""
        place = seat_place(row, number, seats[number].capacity, usable, closed=closed)
        await self._put(replace(place, version=alike.version if alike else ""), claims, row.pool)
        if why is not None:
            self.found.barred[place.id] = why

    def _limited(self, seats: Seats, number: int, at: datetime | None, rules: Rules) -> tuple[str, str] | None:
        """Say why a worker may not run for as long as a session would be on it; what was promised is not asked."""
        asked = self._asked
        if asked.booked is not None:
            return None
        return _beyond_limits(seats, number, asked.claim(at or asked.now), rules)

    async def _put(self, place: Place, claims: Sequence[Held], pool: LabWorkerPool | None) -> None:
        """Add a place; others get their turn meanwhile, for a large fleet takes a second."""
        self.found.put(place, claims, pool.metadata.name if pool else "")
        if len(self.found.fleet) % _AT_ONCE == 0:
            await asyncio.sleep(0)

    def _claims(self, row: Row) -> Mapping[int, list[Held]]:
        found: dict[int, list[Held]] = defaultdict(list)
        for number, held in self._calendar.claims(ref_of(row.pool)):
            if held.holder != self._asked.holder and held.claim.end > self._asked.now:
                found[number].append(held)
        return found

    def _beside(self, worker: LabWorker, claims: Sequence[Held]) -> list[Held]:
        """Give what is held on a worker: these claims, and those of sessions that are on it besides."""
        asked, known = self._asked, {held.holder for held in claims} | {self._asked.holder}
        sessions = ((session_holder(one), holds(one)) for one in self._calendar.sessions_on(worker.metadata.uid))
        loose = [(name, claim) for name, claim in sessions if claim and claim.end > asked.now and name not in known]
        return [*claims, *(Held(name, claim) for name, claim in loose)]

    def _note_foreign(self, worker: LabWorker, room: Amount | None) -> None:
        whole = worker.status.capacity
        if whole is not None and (worker.status.foreign != NOTHING or worker.status.foreign_ports):
            self.found.foreign[worker.metadata.uid] = least(whole, room) if room else whole


def _ends(row: Row) -> bool:
    return row.pool.metadata.deletion_timestamp is not None


def _barred(seats: Seats, number: int, claim: Claim, rules: Rules) -> tuple[str, str] | None:
    """Say why a seat may not be opened for a claim, in a word and in a sentence."""
    if not claim.need.within(seats[number].capacity):
        return None  # it says so itself
    if rules.policy not in OPENING:
        return "no_worker", f"it has no worker, and with the policy {rules.policy} the pool opens no seat for a session"
    return _beyond_limits(seats, number, claim, rules)


def _beyond_limits(seats: Seats, number: int, claim: Claim, rules: Rules) -> tuple[str, str] | None:
    span = span_of(claim)
    closed = outside_hours([span], rules)
    return ("hours", closed) if closed else barred(seats, seats.added(number, span), rules)
