"""Placing sessions where the scheduler decided. Called by `control.plane.local_operations`.

The scheduler proposes from what it saw; here the proposal is checked against the current state. The snapshot is read
(`control.booking.snapshot`), worker, seat (`control.booking.seat_moves`) and ports are checked, and one commit writes
claim, worker and ports at exactly the revisions read. If another commit came first, it is checked again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.booking.guards import Guards
from lcm.control.booking.promise import Promises
from lcm.control.booking.seat_moves import (
    PLAN_AGE_TOLERANCE,
    refuse_unless_seat_takes,
    require_seats,
    rules_for_promised,
    without_session,
)
from lcm.control.booking.snapshot import PlacementSnapshot, choose_ports, others_on, read_snapshot, refuse_unless_fits
from lcm.control.booking.step_records import NO_LIMITS, records_for_step
from lcm.control.objects.records import Record, key_of
from lcm.control.objects.steps import require_actor, take_step
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.protocol import Ref, SessionRef, ref_of
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Conflict, Fault, Forbidden, IllegalStep, Invalid, NoRoom, Refused
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.quantity import Quantity
from lcm.model.base.resource import Condition, Truth, find_condition, format_history, with_condition
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import Assignment, PortRequest
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.session import (
    SESSION_MACHINE,
    LabletSession,
    LabletSessionStatus,
    SessionCondition,
    SessionPhase,
    is_asap,
)
from lcm.model.kinds.session_fields import fields_without_worker
from lcm.model.kinds.worker import LabWorker, worker_ref
from lcm.placement.claims import need_of, request_for
from lcm.placement.places import template_place, worker_place
from lcm.placement.request import Place
from lcm.placement.rules import FILTER_REMEDIES, closed_rejection, static_rejection
from lcm.store.base import Op


def with_assignment(session: LabletSession, assignment: Assignment, **fields: object) -> LabletSessionStatus:
    """Return a session's status with what an assignment says about it."""
    changes: dict[str, Any] = {"waiting": assignment.waiting, **fields}
    if assignment.decision is not None:
        changes["last_decision"] = assignment.decision
    return msgspec.structs.replace(session.status, **changes)


def fields_with_worker(
    session: LabletSession, worker: LabWorker, ports: Mapping[str, int], claim: Claim, now: datetime
) -> Mapping[str, object]:
    """Return the status fields of a session that is assigned to a worker."""
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
        "conditions": with_condition(status.conditions, _assigned_condition(Truth.TRUE, "Assigned", now)),
    }


def fields_unassigned(session: LabletSession, now: datetime) -> Mapping[str, Any]:
    """Return the status fields of a session without a worker; they remove the one it has."""
    known = find_condition(session.status.conditions, SessionCondition.WORKER_ASSIGNED)
    changed = with_condition(session.status.conditions, _assigned_condition(Truth.FALSE, "Unassigned", now))
    conditions = changed if known is not None and known.status is Truth.TRUE else session.status.conditions
    return fields_without_worker(conditions)


def _assigned_condition(truth: Truth, reason: str, now: datetime) -> Condition:
    return Condition(type=SessionCondition.WORKER_ASSIGNED, status=truth, last_transition_at=now, reason=reason)


async def commit_status(
    writer: Writer,
    record: Record[LabletSession],
    status: LabletSessionStatus,
    ops: Sequence[Op],
    reason: str,
) -> LabletSession:
    """Commit a session's status with its preconditions.

    A guard that is already among `ops`, at a revision, is not written a second time.
    """
    before, now = record.resource, writer.clock.now()
    after = take_step(before, status, by=writer.caller.actor, author=writer.author, now=now, reason=reason)
    if after is before:
        return before
    made = await records_for_step(writer.store, NO_LIMITS, before, after, now)
    held = {op.key for op in ops}
    rest = [op for op in made.ops if op.key not in held]
    return await writer.write(Edit(record, made.after), *ops, *rest, told=made.events, reported=True)


def illegal_step(session: LabletSession, instead: str) -> IllegalStep:
    """Return the error that says why something cannot be done to a session in its present phase."""
    history = format_history(session.status.history)
    message = f"LabletSession {session.metadata.name} is {session.status.phase}: {instead}"
    return IllegalStep(f"{message}\nits story:\n{history}" if history else message)


_PLACEABLE_PHASES: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})
_EMPTY_SNAPSHOT: Final = PlacementSnapshot(Guards([]))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A session, the place proposed for it, and the claim it would have there.

    `taken` is the prebuilt session whose lab, and room, it takes over.
    """

    session: LabletSession
    definition: LabletDefinition
    assignment: Assignment
    claim: Claim
    taken: LabletSession | None = None

    @property
    def adds_claim(self) -> bool:
        """Whether a seat would be claimed for a time that the session's present claim on it does not cover."""
        held, seat = self.session.status.claim, self.assignment.seat
        if seat is None:
            return False
        within = held is not None and held.start <= self.claim.start and self.claim.end <= held.end
        return seat != self.session.status.seat or not within

    @property
    def pool(self) -> Ref[LabWorkerPool] | None:
        """The pool of the proposed seat."""
        seat = self.assignment.seat
        return Ref(LabWorkerPool, seat.pool, self.session.metadata.namespace) if seat else None


async def schedule(writer: Writer, promises: Promises, session: LabletSession, assignment: Assignment) -> LabletSession:
    """Place a session where the scheduler decided; raise Conflict if it is not at the given revision any more."""
    if writer.caller.actor != SCHEDULER:
        raise Forbidden(f"only {SCHEDULER} may schedule sessions")
    if assignment.start >= assignment.end:
        raise Invalid(Fault("end", "not after start", "use a later moment"))
    await promises.calendar.ready()
    key, wanted = key_of(session), session.metadata.resource_version

    async def attempt() -> LabletSession:
        record = await writer.require(ref_of(session))
        if record.revision != wanted:
            raise Conflict(record.key, wanted=wanted, found=record.revision)
        return await _schedule(writer, promises, record, assignment)

    return await retry_conflicts(attempt, unless=lambda error: error.key == key, pause=promises.back_off)


async def allocate_ports(writer: Writer, promises: Promises, ref: SessionRef, request: PortRequest) -> LabletSession:
    """Allocate ports for a session that has a worker; a session that has ports keeps them."""
    require_actor(LabletSession, writer.caller.actor)
    await promises.calendar.ready()

    async def attempt() -> LabletSession:
        record = await writer.require(ref)
        session = record.resource
        if session.status.phase in SESSION_MACHINE.final or session.status.worker_id is None:
            raise illegal_step(session, "it has no worker, and ports belong to a worker")
        if session.status.allocated_ports is not None:
            return session
        snapshot = await read_snapshot(writer.store, promises.calendar, worker_id=session.status.worker_id)
        definition = await _find_definition(writer, promises, session)
        assert snapshot.worker is not None, "it was read"
        ports = choose_ports(promises.calendar, snapshot.worker, session, definition, request.preferred)
        status = msgspec.structs.replace(session.status, allocated_ports=ports)
        return await commit_status(writer, record, status, snapshot.ops(session.metadata.uid), "")

    return await retry_conflicts(attempt, unless=lambda _: False, pause=promises.back_off)


async def _schedule(
    writer: Writer, promises: Promises, record: Record[LabletSession], assignment: Assignment
) -> LabletSession:
    session, now = record.resource, writer.clock.now()
    _refuse_unplaceable(session, assignment)
    if assignment.seat is None and assignment.worker_id is None:
        nowhere = {"phase": SessionPhase.PENDING, "claim": None, "seat": None}
        status = with_assignment(session, assignment, **nowhere, **fields_unassigned(session, now))
        return await commit_status(writer, record, status, (), assignment.reason)
    proposal = await _read_proposal(writer, promises, session, assignment)
    snapshot = await check_proposal(writer, promises, proposal)
    fields: Mapping[str, Any] = fields_unassigned(session, now)
    if snapshot.worker is not None:
        before = session.status.allocated_ports or {}
        ports = choose_ports(promises.calendar, snapshot.worker, session, proposal.definition, before)
        fields = fields_with_worker(session, snapshot.worker, ports, proposal.claim, now)
    phase = SessionPhase.PENDING if is_asap(session) and snapshot.worker is None else SessionPhase.SCHEDULED
    status = with_assignment(session, assignment, phase=phase, claim=proposal.claim, seat=assignment.seat, **fields)
    return await commit_status(writer, record, status, snapshot.ops(session.metadata.uid), assignment.reason)


def _refuse_unplaceable(session: LabletSession, assignment: Assignment) -> None:
    """Raise an error if a session must not be placed at all."""
    if session.status.phase not in _PLACEABLE_PHASES:
        raise illegal_step(session, "only a waiting or scheduled session can be placed")
    if session.metadata.deletion_timestamp is not None:
        raise Refused(f"{session.metadata.name} is being deleted")
    if assignment.seat is None and assignment.worker_id is None and not is_asap(session):
        raise illegal_step(session, "a booked slot keeps its promise: name a planned worker or a worker")


async def _read_proposal(
    writer: Writer, promises: Promises, session: LabletSession, assignment: Assignment
) -> Proposal:
    definition, held = await _find_definition(writer, promises, session), session.status.claim
    need = held.need if held is not None else need_of(session, definition)
    if need is None:
        name = definition.metadata.name
        raise Refused(f"{name} does not say what it needs: set its resource_requirements and node_count")
    claim = Claim(start=assignment.start, end=assignment.end, need=need)
    return Proposal(session, definition, assignment, claim)


async def check_proposal(writer: Writer, promises: Promises, proposal: Proposal) -> PlacementSnapshot:
    """Check a proposal against the current state and return what was read; raise NoRoom with the reason."""
    assignment, session = proposal.assignment, proposal.session
    if assignment.worker_id is None and not proposal.adds_claim:
        return _EMPTY_SNAPSHOT  # the session already has this claim
    snapshot = await read_snapshot(
        writer.store,
        promises.calendar,
        pool=proposal.pool,
        worker_id=assignment.worker_id,
        adds=proposal.adds_claim,
        known=session.metadata.resource_version,
    )
    now = writer.clock.now()
    if proposal.claim.end <= now:
        raise NoRoom("its claim would be over already: decide again", why="too_soon")
    if snapshot.worker is not None:
        _check_worker(promises, proposal, snapshot.worker, now)
    if proposal.adds_claim:
        await _check_seat(promises, proposal, snapshot, now)
    return snapshot


def _check_worker(promises: Promises, proposal: Proposal, worker: LabWorker, now: datetime) -> None:
    terms, seat = promises.calendar.terms, proposal.assignment.seat
    found = promises.calendar.pool_seat_of(worker.metadata.uid)
    fills = (ref_of(found[0]), found[1]) if found else None
    beside = proposal.session.spec.prebuilt  # it holds no time of a planned worker
    if not beside and fills != ((proposal.pool, seat.number) if seat else None):
        problem = f"is planned worker {fills[1]} of pool {fills[0].name}" if fills else "is no planned worker"
        raise NoRoom(f"worker {worker.metadata.name} {problem}: decide again", why="seat")
    _check_place(promises, proposal, worker_place(worker, now, boot=terms.boot))
    left = ref_of(proposal.taken) if proposal.taken else None
    others = [one for one in others_on(promises.calendar, worker, proposal.session) if ref_of(one) != left]
    refuse_unless_fits(worker, others, proposal.claim, now)


async def _check_seat(promises: Promises, proposal: Proposal, snapshot: PlacementSnapshot, now: datetime) -> None:
    session, seat = proposal.session, proposal.assignment.seat
    assert seat is not None, "what adds a claim to a pool names its seat"
    row = require_seats(promises, snapshot.row)[0]
    rules = await promises.read_rules(row, now - PLAN_AGE_TOLERANCE)
    if session.status.claim is not None and not is_asap(session):
        rules = rules_for_promised(rules)
    place = template_place(row)
    if place is not None and snapshot.worker is None:
        _check_place(promises, proposal, msgspec.structs.replace(place, name=f"{place.name}/{seat.number}"))
    row, seats = require_seats(promises, row)
    with without_session(seats, row, session):
        remaining = msgspec.structs.replace(proposal.claim, start=max(proposal.claim.start, now))
        refuse_unless_seat_takes(row, seats, seat.number, remaining, rules)


def _check_place(promises: Promises, proposal: Proposal, place: Place) -> None:
    asked = request_for(proposal.session, proposal.definition, proposal.claim, promises.calendar.terms)
    turned_away = static_rejection(place, asked)
    if not place.seat:
        turned_away = closed_rejection(place, asked) or turned_away
    if turned_away is not None:
        name, reason = turned_away
        raise NoRoom(f"{place.name}: {reason}; {FILTER_REMEDIES[name]}", why=name)


async def _find_definition(writer: Writer, promises: Promises, session: LabletSession) -> LabletDefinition:
    """Look up a session's definition; one that the calendar does not know may be new and is read from the store."""
    ref = Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)
    return promises.calendar.get(ref) or (await writer.require(ref)).resource
