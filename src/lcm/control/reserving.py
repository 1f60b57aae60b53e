"""Making the sessions of reservations. Called by `local_placing`.

A session takes its claim over in the commit that makes it: at no moment do both hold it, or neither.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.desk import Desk
from lcm.control.guards import pool_guard, token_guard
from lcm.control.ledger import Edit, Ledger, persistently
from lcm.control.plane import Ref
from lcm.control.records import Record, at_revision
from lcm.control.stepping import TEARDOWN, stepped
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Fault, Forbidden, Gone, IllegalStep, Invalid
from lcm.model.machine import SCHEDULER
from lcm.model.pool import LabWorkerPool
from lcm.model.reservation import Held, Reservation, ReservationPhase
from lcm.model.resource import Metadata, Owner, PhaseChange
from lcm.model.session import CLEAN_UP, LabletSession, LabletSessionSpec, LabletSessionStatus, SessionPhase
from lcm.model.worker import LabType
from lcm.store.base import Op, Put

_P = ReservationPhase
_LONGEST_NAME: Final = 63
_SUFFIX: Final = 5


async def fulfil(
    book: Ledger, desk: Desk, ref: Ref[Reservation], number: int, *, ids: Callable[[], str]
) -> LabletSession:
    """Make the session that takes over a reservation's claim, or give the one that did; Gone if that is no more.

    IllegalStep once the reservation is cancelled or over.
    """
    if book.caller.actor != SCHEDULER:
        raise Forbidden(f"only the {SCHEDULER} makes the sessions of reservations")

    async def attempt() -> LabletSession:
        record = await book.need(ref)
        held = _claim(record.resource, number)
        if held.session is not None:
            return await _made(book, record.resource, held.session)
        _permit(record.resource)
        session = await _named(book, await _session(book, record.resource, held, ids()))
        after = _taken_over(book, record.resource, held, session)
        edits: list[Edit[Any]] = [Edit(None, session), Edit(record, after, verb="fulfil")]
        revision = await book.commit(*edits, ops=_announced(desk, record, held))
        return at_revision(session, revision)

    await desk.calendar.ready()
    # One of hundreds is long to read, and a turn only spares conflicts: what the calendar knows will do.
    known = desk.calendar.get(ref)
    async with desk.turn([known if known is not None else (await book.need(ref)).resource]):
        return await persistently(attempt, unless=lambda _: False, pause=desk.breathe)


def session_name(reservation: Reservation, number: int) -> str:
    """Name the session that takes over one of a reservation's claims."""
    return f"{reservation.metadata.name}-{number}"


def _claim(reservation: Reservation, number: int) -> Held:
    for held in reservation.status.held:
        if held.number == number:
            return held
    count = len(reservation.status.held)
    raise Invalid(Fault("number", f"{reservation.metadata.name} has {count} claims", "use the number of one of them"))


def _permit(reservation: Reservation) -> None:
    phase, name = reservation.status.phase, reservation.metadata.name
    if phase not in {_P.PROMISED, _P.ACTIVE} or reservation.metadata.deletion_timestamp is not None:
        raise IllegalStep(f"Reservation {name} is {phase}: only what is {_P.PROMISED} or {_P.ACTIVE} has sessions made")


async def _made(book: Ledger, reservation: Reservation, name: str) -> LabletSession:
    found = await book.find(Ref(LabletSession, name, reservation.metadata.namespace))
    # The name may have passed to another session since.
    if found is None or found.resource.metadata.owner != _owner(reservation):
        raise Gone(f"the session {name} of reservation {reservation.metadata.name} was made, and is gone")
    return found.resource


async def _named(book: Ledger, session: LabletSession) -> LabletSession:
    """Give the session another name if somebody else's has its own: a promise does not wait for that one to go."""
    metadata = session.metadata
    if await book.store.get(Ref(LabletSession, metadata.name, metadata.namespace).key) is None:
        return session
    other = f"{metadata.name[: _LONGEST_NAME - _SUFFIX - 1]}-{metadata.uid[:_SUFFIX]}"
    return msgspec.structs.replace(session, metadata=msgspec.structs.replace(metadata, name=other))


async def _session(book: Ledger, booked: Reservation, held: Held, uid: str) -> LabletSession:
    """Say what the session is like: what was reserved, whatever became of definition and settings since."""
    namespace, spec = booked.metadata.namespace, booked.spec
    definition = await book.find(Ref(LabletDefinition, spec.definition, namespace))
    end = held.claim.end - CLEAN_UP
    return LabletSession(
        metadata=_metadata(booked, held, uid, book.clock.now()),
        spec=LabletSessionSpec(
            definition=spec.definition,
            owner=spec.owner,
            student_email=spec.student_emails[(held.number - 1) % spec.count] if spec.student_emails else None,
            lab_instance_type=definition.resource.spec.lab_type if definition else LabType.CML,
            lab_track=spec.lab_track,
            timeslot_start=end - (spec.timeslot_end - spec.timeslot_start),
            timeslot_end=end,
            region_required=spec.region_required,
            priority=spec.priority,
        ),
        status=LabletSessionStatus(
            expires_at=end, ends_at=end, claim=held.claim, seat=held.seat, history=(_beginning(book, booked),)
        ),
    )


def _metadata(booked: Reservation, held: Held, uid: str, now: datetime) -> Metadata:
    return Metadata(
        name=session_name(booked, held.number),
        namespace=booked.metadata.namespace,
        uid=uid,
        generation=1,
        created_at=now,
        finalizers=(TEARDOWN,),
        owner=_owner(booked),
    )


def _beginning(book: Ledger, booked: Reservation) -> PhaseChange:
    reason = f"reserved by {booked.metadata.name}"
    return PhaseChange(phase=SessionPhase.PENDING, at=book.clock.now(), by=book.author, reason=reason)


def _owner(reservation: Reservation) -> Owner:
    return Owner(kind=reservation.kind, name=reservation.metadata.name, uid=reservation.metadata.uid)


def _taken_over(book: Ledger, booked: Reservation, held: Held, session: LabletSession) -> Reservation:
    given = msgspec.structs.replace(held, session=session.metadata.name)
    status = msgspec.structs.replace(
        booked.status,
        phase=_P.ACTIVE,
        held=tuple(given if one.number == held.number else one for one in booked.status.held),
        sessions_made=booked.status.sessions_made + 1,
    )
    now, reason = book.clock.now(), "its first session exists"
    return stepped(booked, status, by=SCHEDULER, author=book.author, now=now, reason=reason)


def _announced(desk: Desk, record: Record[Reservation], held: Held) -> Sequence[Op]:
    """Put the guards of what is claimed: a calendar that lists anew may know one of the two objects without the other.

    Whoever decides by the guards then waits until it knows both.
    """
    if held.seat is None:
        return ()
    ref = Ref(LabWorkerPool, held.seat.pool, record.resource.metadata.namespace)
    row = desk.calendar.row(ref)
    token = desk.calendar.shared(row) if row else None
    keys = [pool_guard(ref)] if token is None else [pool_guard(ref), token_guard(token)]
    return [Put(key, record.resource.metadata.uid.encode()) for key in keys]
