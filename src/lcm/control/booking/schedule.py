"""Putting sessions where the scheduler decided. Called by `local_placing`.

The scheduler proposes by what it saw; here it is held against what is so. The path: what the decision stands on is read
(`scheduling_ground`), the worker, the seat (`scheduling_seats`) and the ports are checked, and one commit writes claim,
worker and ports at exactly what was read. Whoever was faster makes it be checked anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.accounts.step_records import NO_LIMITS, beside
from lcm.control.booking.guards import Guards
from lcm.control.booking.promise import Desk, offered
from lcm.control.booking.seat_moves import LENIENCE, for_promised, refuse_unless_seated, reseat, seats_in, without
from lcm.control.booking.snapshot import Ground, others_on, ports_on, read_ground, refuse_unless_borne
from lcm.control.objects.records import Record, key_of
from lcm.control.objects.steps import permit, stepped
from lcm.control.objects.writer import Edit, Ledger, persistently
from lcm.control.plane.protocol import Ref, SessionRef, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Fault, Forbidden, IllegalStep, Invalid, NoRoom, Refused
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.quantity import Quantity
from lcm.model.base.resource import Condition, Truth, condition, story, with_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment, PortWish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import SESSION, LabletSession, LabletSessionStatus, SessionCondition, SessionPhase, is_asap
from lcm.model.kinds.worker import LabWorker, worker_ref
from lcm.placement.claims import need_of, request_for
from lcm.placement.places import worker_place
from lcm.placement.request import Place
from lcm.placement.rules import REMEDIES, closed_rejection, static_rejection
from lcm.store.base import Op

_OF_WORKER: Final = (
    "worker_id",
    "worker_ref",
    "worker_name",
    "worker_namespace",
    "assigned_at",
    "allocated_ports",
    "resource_allocation",
)


def changed(session: LabletSession, assignment: Assignment, **fields: object) -> LabletSessionStatus:
    """Give a session's status with what an assignment says of it."""
    changes: dict[str, Any] = {"waiting": assignment.waiting, **fields}
    if assignment.decision is not None:
        changes["last_decision"] = assignment.decision
    return msgspec.structs.replace(session.status, **changes)


def assigned(
    session: LabletSession, worker: LabWorker, ports: Mapping[str, int], claim: Claim, now: datetime
) -> Mapping[str, object]:
    """Say of a session which worker it has, and what of it."""
    status, same = session.status, session.status.worker_id == worker.metadata.uid
    return {
        "worker_id": worker.metadata.uid,
        "worker_ref": worker_ref(worker),
        "worker_name": worker.metadata.name,
        "worker_namespace": worker.metadata.namespace,
        "assigned_at": status.assigned_at if same and status.assigned_at else now,
        "allocated_ports": ports,
        "resource_allocation": Quantity(claim.need.cpu_millis, claim.need.memory_mb).limits(),
        "waiting": None,
        "conditions": with_condition(status.conditions, _told(Truth.TRUE, "Assigned", now)),
    }


def unassigned(session: LabletSession, now: datetime) -> Mapping[str, object]:
    """Take its worker away from a session, if it has one."""
    known = condition(session.status.conditions, SessionCondition.WORKER_ASSIGNED)
    told = with_condition(session.status.conditions, _told(Truth.FALSE, "Unassigned", now))
    conditions = told if known is not None and known.status is Truth.TRUE else session.status.conditions
    return {**dict.fromkeys(_OF_WORKER), "conditions": conditions}


def _told(truth: Truth, reason: str, now: datetime) -> Condition:
    return Condition(type=SessionCondition.WORKER_ASSIGNED, status=truth, last_transition_at=now, reason=reason)


async def write(
    book: Ledger,
    record: Record[LabletSession],
    status: LabletSessionStatus,
    ops: Sequence[Op],
    reason: str,
) -> LabletSession:
    """Commit a session's status with what it stands on; a guard that is put at a revision is not put twice."""
    before, now = record.resource, book.clock.now()
    after = stepped(before, status, by=book.caller.actor, author=book.author, now=now, reason=reason)
    if after is before:
        return before
    made = await beside(book.store, NO_LIMITS, before, after, now)
    held = {op.key for op in ops}
    rest = [op for op in made.ops if op.key not in held]
    return await book.write(Edit(record, made.after), *ops, *rest, told=made.told, reported=True)


def illegal(session: LabletSession, instead: str) -> IllegalStep:
    """Say why something cannot be done to a session as it is."""
    told = story(session.status.history)
    message = f"LabletSession {session.metadata.name} is {session.status.phase}: {instead}"
    return IllegalStep(f"{message}\nits story:\n{told}" if told else message)


__all__ = ["allocate_ports", "reseat", "schedule"]

_PLACEABLE: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})
_NOTHING_READ: Final = Ground(Guards([]))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A session, where it is to go, and the claim it would have there."""

    session: LabletSession
    definition: LabletDefinition
    assignment: Assignment
    claim: Claim

    @property
    def adds(self) -> bool:
        """Whether a seat would be claimed for a time for which the session has no claim on it."""
        held, seat = self.session.status.claim, self.assignment.seat
        if seat is None:
            return False
        within = held is not None and held.start <= self.claim.start and self.claim.end <= held.end
        return seat != self.session.status.seat or not within

    @property
    def pool(self) -> Ref[LabWorkerPool] | None:
        """Whose seat it is to get."""
        seat = self.assignment.seat
        return Ref(LabWorkerPool, seat.pool, self.session.metadata.namespace) if seat else None

    def ahead(self, now: datetime) -> Claim:
        """Give what of the claim is not past."""
        return msgspec.structs.replace(self.claim, start=max(self.claim.start, now))


async def schedule(book: Ledger, desk: Desk, session: LabletSession, assignment: Assignment) -> LabletSession:
    """Put a session where the scheduler decided, at exactly its revision."""
    if book.caller.actor != SCHEDULER:
        raise Forbidden(f"only {SCHEDULER} may schedule sessions")
    if assignment.start >= assignment.end:
        raise Invalid(Fault("end", "not after start", "use a later moment"))
    await desk.calendar.ready()
    key, wanted = key_of(session), session.metadata.resource_version

    async def attempt() -> LabletSession:
        record = await book.need(ref_of(session))
        if record.revision != wanted:
            raise Conflict(record.key, wanted=wanted, found=record.revision)
        return await _schedule(book, desk, record, assignment)

    return await persistently(attempt, unless=lambda error: error.key == key, pause=desk.breathe)


async def allocate_ports(book: Ledger, desk: Desk, ref: SessionRef, wish: PortWish) -> LabletSession:
    """Give a session that has a worker its ports; one that has them keeps them."""
    permit(LabletSession, book.caller.actor)
    await desk.calendar.ready()

    async def attempt() -> LabletSession:
        record = await book.need(ref)
        session = record.resource
        if session.status.phase in SESSION.final or session.status.worker_id is None:
            raise illegal(session, "it has no worker: ports are those of one")
        if session.status.allocated_ports is not None:
            return session
        ground = await read_ground(book.store, desk.calendar, worker_id=session.status.worker_id)
        definition = await _definition(book, desk, session)
        ports = _ports(desk, ground.worker, session, definition, wish.preferred)
        status = msgspec.structs.replace(session.status, allocated_ports=ports)
        return await write(book, record, status, ground.ops(session.metadata.uid), "")

    return await persistently(attempt, unless=lambda _: False, pause=desk.breathe)


async def _schedule(book: Ledger, desk: Desk, record: Record[LabletSession], assignment: Assignment) -> LabletSession:
    session, now = record.resource, book.clock.now()
    _refuse(session, assignment)
    if assignment.seat is None and assignment.worker_id is None:
        nowhere = {"phase": SessionPhase.PENDING, "claim": None, "seat": None}
        status = changed(session, assignment, **nowhere, **unassigned(session, now))
        return await write(book, record, status, (), assignment.reason)
    proposal = await _proposal(book, desk, session, assignment)
    ground = await _checked(book, desk, proposal)
    fields: Mapping[str, Any] = unassigned(session, now)
    if ground.worker is not None:
        before = session.status.allocated_ports or {}
        ports = _ports(desk, ground.worker, session, proposal.definition, before)
        fields = assigned(session, ground.worker, ports, proposal.claim, now)
    phase = SessionPhase.PENDING if is_asap(session) and ground.worker is None else SessionPhase.SCHEDULED
    status = changed(session, assignment, phase=phase, claim=proposal.claim, seat=assignment.seat, **fields)
    return await write(book, record, status, ground.ops(session.metadata.uid), assignment.reason)


def _refuse(session: LabletSession, assignment: Assignment) -> None:
    """Raise what speaks against placing a session at all."""
    if session.status.phase not in _PLACEABLE:
        raise illegal(session, "only what waits or is scheduled is placed")
    if session.metadata.deletion_timestamp is not None:
        raise Refused(f"{session.metadata.name} is being deleted")
    if assignment.seat is None and assignment.worker_id is None and not is_asap(session):
        raise illegal(session, "a slot keeps its promise: name a seat or a worker")


async def _proposal(book: Ledger, desk: Desk, session: LabletSession, assignment: Assignment) -> Proposal:
    definition, held = await _definition(book, desk, session), session.status.claim
    need = held.need if held is not None else need_of(session, definition)
    if need is None:
        name = definition.metadata.name
        raise Refused(f"{name} does not say what it needs: give it resource_requirements and node_count")
    claim = Claim(start=assignment.start, end=assignment.end, need=need)
    return Proposal(session, definition, assignment, claim)


async def _checked(book: Ledger, desk: Desk, proposal: Proposal) -> Ground:
    """Hold a proposal against what is so, and say what that was; NoRoom with the reason."""
    assignment, session = proposal.assignment, proposal.session
    if assignment.worker_id is None and not proposal.adds:
        return _NOTHING_READ  # it has this claim
    ground = await read_ground(
        book.store,
        desk.calendar,
        pool=proposal.pool,
        worker_id=assignment.worker_id,
        adds=proposal.adds,
        known=session.metadata.resource_version,
    )
    now = book.clock.now()
    if proposal.claim.end <= now:
        raise NoRoom("its claim would be over already: decide again", why="too_soon")
    if ground.worker is not None:
        _check_worker(desk, proposal, ground.worker, now)
    if proposal.adds:
        await _check_seat(desk, proposal, ground, now)
    return ground


def _check_worker(desk: Desk, proposal: Proposal, worker: LabWorker, now: datetime) -> None:
    terms, seat = desk.calendar.terms, proposal.assignment.seat
    found = desk.calendar.row_at(worker.metadata.uid)
    fills = (ref_of(found[0].pool), found[1]) if found else None
    if fills != ((proposal.pool, seat.number) if seat else None):
        told = f"fills seat {fills[1]} of pool {fills[0].name}" if fills else "fills no seat"
        raise NoRoom(f"worker {worker.metadata.name} {told}: decide again", why="seat")
    _check_place(desk, proposal, worker_place(worker, now, boot=terms.boot))
    refuse_unless_borne(worker, others_on(desk.calendar, worker, proposal.session), proposal.claim, now)


async def _check_seat(desk: Desk, proposal: Proposal, ground: Ground, now: datetime) -> None:
    session, seat = proposal.session, proposal.assignment.seat
    assert seat is not None, "what adds a claim to a pool names its seat"
    row = seats_in(desk, ground.row)[0]
    rules = await desk.rules(row, now - LENIENCE)
    if session.status.claim is not None and not is_asap(session):
        rules = for_promised(rules)
    place = offered(row)
    if place is not None and ground.worker is None:
        _check_place(desk, proposal, place)
    row, seats = seats_in(desk, row)
    with without(seats, row, session):
        refuse_unless_seated(row, seats, seat.number, proposal.ahead(now), rules)


def _check_place(desk: Desk, proposal: Proposal, place: Place) -> None:
    asked = request_for(proposal.session, proposal.definition, proposal.claim, desk.calendar.terms)
    turned_away = static_rejection(place, asked)
    if not place.seat:
        turned_away = closed_rejection(place, asked) or turned_away
    if turned_away is not None:
        name, reason = turned_away
        raise NoRoom(f"{place.name}: {reason}; {REMEDIES[name]}", why=name)


def _ports(
    desk: Desk, worker: LabWorker | None, session: LabletSession, definition: LabletDefinition, wish: Mapping[str, int]
) -> Mapping[str, int]:
    assert worker is not None, "ports are a worker's"
    names = definition.spec.port_template or {}
    return ports_on(worker, others_on(desk.calendar, worker, session), session, names, wish)


async def _definition(book: Ledger, desk: Desk, session: LabletSession) -> LabletDefinition:
    """Look up what a session is made of; what the calendar does not know may be new."""
    ref = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    return desk.calendar.get(ref) or (await book.need(ref)).resource
