"""Making the sessions of reservations. Called by `local_placing`.

A session takes its claim over in the commit that makes it: at no moment do both hold it, or neither. Several are made
in one commit, for a reservation of hundreds is long to read and to write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.booking.guards import pool_guard, token_guard
from lcm.control.booking.promise import Desk
from lcm.control.objects.records import Record, at_revision
from lcm.control.objects.steps import TEARDOWN, stepped
from lcm.control.objects.writer import Edit, Ledger, persistently
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Fault, Forbidden, IllegalStep, Invalid
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata, Owner, PhaseChange
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import FULFILLED_AT_ONCE
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Held, Reservation, ReservationPhase
from lcm.model.kinds.session import CLEAN_UP, LabletSession, LabletSessionSpec, LabletSessionStatus, SessionPhase
from lcm.model.kinds.worker import LabType
from lcm.store.base import Op, Put

_P = ReservationPhase
_LONGEST_NAME: Final = 63
_SUFFIX: Final = 5


async def fulfil(
    book: Ledger, desk: Desk, ref: Ref[Reservation], numbers: Sequence[int], *, ids: Callable[[], str]
) -> Sequence[LabletSession]:
    """Make the sessions that take over some of a reservation's claims; give them and those that did before.

    What was made and is gone is left out. IllegalStep once the reservation is cancelled or over.
    """
    if book.caller.actor != SCHEDULER:
        raise Forbidden(f"only the {SCHEDULER} makes the sessions of reservations")
    if len(numbers) > FULFILLED_AT_ONCE:
        raise Invalid(Fault("numbers", f"{len(numbers)} at once", f"ask for at most {FULFILLED_AT_ONCE}"))

    async def attempt() -> Sequence[LabletSession]:
        record = await book.need(ref)
        several = _claims(record.resource, numbers)
        made = await _make(book, desk, record, [one for one in several if one.session is None], ids)
        before = [await _made(book, record.resource, one.session) for one in several if one.session is not None]
        return [*(one for one in before if one is not None), *made]

    await desk.calendar.ready()
    # One of hundreds is long to read, and a turn only spares conflicts: what the calendar knows will do.
    known = desk.calendar.get(ref)
    async with desk.turn([known if known is not None else (await book.need(ref)).resource]):
        return await persistently(attempt, unless=lambda _: False, pause=desk.breathe)


def session_name(reservation: Reservation, number: int) -> str:
    """Name the session that takes over one of a reservation's claims."""
    return f"{reservation.metadata.name}-{number}"


async def _make(
    book: Ledger, desk: Desk, record: Record[Reservation], several: Sequence[Held], ids: Callable[[], str]
) -> Sequence[LabletSession]:
    if not several:
        return ()
    booked = record.resource
    _permit(booked)
    found = await book.find(Ref(LabletDefinition, booked.spec.definition, booked.metadata.namespace))
    kind = found.resource.spec.lab_type if found else LabType.CML
    made = [await _named(book, _session(book, booked, one, ids(), kind)) for one in several]
    after = _taken_over(book, booked, {held.number: one for held, one in zip(several, made, strict=True)})
    edits: list[Edit[Any]] = [*(Edit(None, one) for one in made), Edit(record, after, verb="fulfil")]
    revision = await book.commit(*edits, ops=_announced(desk, record, several))
    return [at_revision(one, revision) for one in made]


def _claims(reservation: Reservation, numbers: Iterable[int]) -> Sequence[Held]:
    known = {one.number: one for one in reservation.status.held}
    wanted = dict.fromkeys(numbers)
    if wanted.keys() <= known.keys():
        return [known[number] for number in wanted]
    told = f"{reservation.metadata.name} has {len(known)} claims"
    raise Invalid(Fault("numbers", told, "use the numbers of some of them"))


def _permit(reservation: Reservation) -> None:
    phase, name = reservation.status.phase, reservation.metadata.name
    if phase not in {_P.PROMISED, _P.ACTIVE} or reservation.metadata.deletion_timestamp is not None:
        raise IllegalStep(f"Reservation {name} is {phase}: only what is {_P.PROMISED} or {_P.ACTIVE} has sessions made")


async def _made(book: Ledger, reservation: Reservation, name: str) -> LabletSession | None:
    found = await book.find(Ref(LabletSession, name, reservation.metadata.namespace))
    # The name may have passed to another session since.
    return found.resource if found and found.resource.metadata.owner == _owner(reservation) else None


async def _named(book: Ledger, session: LabletSession) -> LabletSession:
    """Give the session another name if somebody else's has its own: a promise does not wait for that one to go."""
    metadata = session.metadata
    if await book.store.get(Ref(LabletSession, metadata.name, metadata.namespace).key) is None:
        return session
    other = f"{metadata.name[: _LONGEST_NAME - _SUFFIX - 1]}-{metadata.uid[:_SUFFIX]}"
    return msgspec.structs.replace(session, metadata=msgspec.structs.replace(metadata, name=other))


def _session(book: Ledger, booked: Reservation, held: Held, uid: str, kind: LabType) -> LabletSession:
    """Say what the session is like: what was reserved, whatever became of definition and settings since."""
    spec, end = booked.spec, held.claim.end - CLEAN_UP
    return LabletSession(
        metadata=_metadata(booked, held, uid, book.clock.now()),
        spec=LabletSessionSpec(
            definition=spec.definition,
            owner=spec.owner,
            student_email=spec.student_emails[(held.number - 1) % spec.count] if spec.student_emails else None,
            lab_instance_type=kind,
            lab_track=spec.lab_track,
            timeslot_start=end - (spec.timeslot_end - spec.timeslot_start),
            timeslot_end=end,
            region_required=spec.region_required,
            priority=spec.priority,
        ),
        status=LabletSessionStatus(
            expires_at=end,
            ends_at=end,
            claim=held.claim,
            seat=held.seat,
            requirements=booked.status.requirements,
            history=(_beginning(book, booked),),
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


def _taken_over(book: Ledger, booked: Reservation, made: Mapping[int, LabletSession]) -> Reservation:
    status = msgspec.structs.replace(
        booked.status,
        phase=_P.ACTIVE,
        held=tuple(_given(one, made.get(one.number)) for one in booked.status.held),
        sessions_made=booked.status.sessions_made + len(made),
    )
    now, reason = book.clock.now(), "its first session exists"
    return stepped(booked, status, by=SCHEDULER, author=book.author, now=now, reason=reason)


def _given(held: Held, session: LabletSession | None) -> Held:
    return msgspec.structs.replace(held, session=session.metadata.name) if session else held


def _announced(desk: Desk, record: Record[Reservation], several: Iterable[Held]) -> Sequence[Op]:
    """Put the guards of what is claimed: a calendar that lists anew may know one of the two objects without the other.

    Whoever decides by the guards then waits until it knows both.
    """
    metadata = record.resource.metadata
    keys = set[str]()
    for pool in {held.seat.pool for held in several if held.seat is not None}:
        ref = Ref(LabWorkerPool, pool, metadata.namespace)
        row = desk.calendar.row(ref)
        token = desk.calendar.shared(row) if row else None
        keys |= {pool_guard(ref)} if token is None else {pool_guard(ref), token_guard(token)}
    return [Put(key, metadata.uid.encode()) for key in sorted(keys)]
