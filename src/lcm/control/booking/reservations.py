"""The sessions of reservations. Called by `control.plane.local_operations`.

A session takes its claim over in the commit that makes it: at no moment do both hold it, or neither. Several are made
in one commit, because a reservation of hundreds takes long to read and to write.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from lcm.control.booking.guards import owner_guard_key
from lcm.control.booking.promise import Promises
from lcm.control.booking.snapshot import pool_guard_keys
from lcm.control.objects.records import Record, with_revision
from lcm.control.objects.steps import TEARDOWN, take_step
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import Fault, Forbidden, IllegalStep, Invalid
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata, Owner, PhaseChange
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.placement import MAX_SESSIONS_PER_COMMIT
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.reservation import Reservation, ReservationClaim, ReservationPhase, held_slot, learner_of
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, LabletSessionStatus, SessionPhase
from lcm.model.kinds.worker import LabType
from lcm.store.base import Op, Put

_P = ReservationPhase
_LONGEST_NAME: Final = 63
_SUFFIX_LENGTH: Final = 5


async def fulfil(
    writer: Writer, promises: Promises, ref: Ref[Reservation], numbers: Sequence[int], *, ids: Callable[[], str]
) -> Sequence[LabletSession]:
    """Make the sessions that take over some of a reservation's claims; return them and those made before.

    Sessions that were made and are gone are left out. Raises IllegalStep once the reservation is cancelled or over.
    """
    if writer.caller.actor != SCHEDULER:
        raise Forbidden(f"only the {SCHEDULER} makes the sessions of reservations")
    if len(numbers) > MAX_SESSIONS_PER_COMMIT:
        raise Invalid(Fault("numbers", f"{len(numbers)} at once", f"ask for at most {MAX_SESSIONS_PER_COMMIT}"))
    return await make_sessions(writer, promises, ref, numbers, ids)


async def make_sessions(
    writer: Writer, promises: Promises, ref: Ref[Reservation], numbers: Sequence[int], ids: Callable[[], str]
) -> Sequence[LabletSession]:
    """Make sessions as `fulfil` does, whoever asks for it."""

    async def attempt() -> Sequence[LabletSession]:
        record = await writer.require(ref)
        several = _requested_claims(record.resource, numbers)
        made = await _make_sessions(writer, promises, record, [one for one in several if one.session is None], ids)
        before = [
            await _find_made_session(writer, record.resource, one.session) for one in several if one.session is not None
        ]
        return [*(one for one in before if one is not None), *made]

    await promises.calendar.ready()
    # A reservation of hundreds takes long to read, and the lock only avoids conflicts: the calendar's copy will do.
    known = promises.calendar.get(ref)
    async with promises.lock_guards([known if known is not None else (await writer.require(ref)).resource]):
        return await retry_conflicts(attempt, unless=lambda _: False, pause=promises.back_off)


def session_name(reservation: Reservation, number: int) -> str:
    """Return the name of the session that takes over one of a reservation's claims."""
    return f"{reservation.metadata.name}-{number}"


async def _make_sessions(
    writer: Writer,
    promises: Promises,
    record: Record[Reservation],
    several: Sequence[ReservationClaim],
    ids: Callable[[], str],
) -> Sequence[LabletSession]:
    if not several:
        return ()
    booked, phase = record.resource, record.resource.status.phase
    if phase not in {_P.PROMISED, _P.ACTIVE} or booked.metadata.deletion_timestamp is not None:
        problem = f"Reservation {booked.metadata.name} is {phase}"
        raise IllegalStep(f"{problem}: its sessions are made only while it is {_P.PROMISED} or {_P.ACTIVE}")
    found = await writer.find(Ref(LabletDefinition, booked.spec.definition, booked.metadata.namespace))
    kind = found.resource.spec.lab_type if found else LabType.CML
    made = [await _with_free_name(writer, _build_session(writer, booked, one, ids(), kind)) for one in several]
    after = _hand_over_claims(writer, booked, {held.number: one for held, one in zip(several, made, strict=True)})
    edits: list[Edit[Any]] = [*(Edit(None, one) for one in made), Edit(record, after, verb="fulfil")]
    revision = await writer.commit_edits(*edits, ops=_guard_ops(promises, record, several))
    return [with_revision(one, revision) for one in made]


def _requested_claims(reservation: Reservation, numbers: Iterable[int]) -> Sequence[ReservationClaim]:
    known = {one.number: one for one in reservation.status.held}
    wanted = dict.fromkeys(numbers)
    if wanted.keys() <= known.keys():
        return [known[number] for number in wanted]
    problem = f"{reservation.metadata.name} has {len(known)} claims"
    raise Invalid(Fault("numbers", problem, "use the numbers of its claims"))


async def _find_made_session(writer: Writer, reservation: Reservation, name: str) -> LabletSession | None:
    found = await writer.find(Ref(LabletSession, name, reservation.metadata.namespace))
    # Another session may have the name by now.
    return found.resource if found and found.resource.metadata.owner == _owner_of(reservation) else None


async def _with_free_name(writer: Writer, session: LabletSession) -> LabletSession:
    """Return the session under another name if its own is in use; its promise does not wait for the other to go."""
    metadata = session.metadata
    if await writer.store.get(Ref(LabletSession, metadata.name, metadata.namespace).key) is None:
        return session
    other = f"{metadata.name[: _LONGEST_NAME - _SUFFIX_LENGTH - 1]}-{metadata.uid[:_SUFFIX_LENGTH]}"
    return msgspec.structs.replace(session, metadata=msgspec.structs.replace(metadata, name=other))


def _build_session(
    writer: Writer, booked: Reservation, held: ReservationClaim, uid: str, kind: LabType
) -> LabletSession:
    """Build the session as it was reserved, whatever became of the definition and the settings since."""
    spec, (start, end), now = booked.spec, held_slot(booked.spec, held), writer.clock.now()
    reason = f"reserved by {booked.metadata.name}"
    return LabletSession(
        metadata=_session_metadata(booked, held, uid, now),
        spec=LabletSessionSpec(
            definition=spec.definition,
            owner=spec.owner,
            student_email=learner_of(spec, held),
            learner_may=spec.learner_may,
            lab_instance_type=kind,
            lab_track=spec.lab_track,
            timeslot_start=start,
            timeslot_end=end,
            region_required=spec.region_required,
            region_preferred=spec.region_preferred,
            priority=spec.priority,
        ),
        status=LabletSessionStatus(
            expires_at=end,
            ends_at=end,
            claim=held.claim,
            seat=held.seat,
            requirements=booked.status.requirements,
            history=(PhaseChange(phase=SessionPhase.PENDING, at=now, by=writer.author, reason=reason),),
        ),
    )


def _session_metadata(booked: Reservation, held: ReservationClaim, uid: str, now: datetime) -> Metadata:
    return Metadata(
        name=session_name(booked, held.number),
        namespace=booked.metadata.namespace,
        uid=uid,
        generation=1,
        created_at=now,
        finalizers=(TEARDOWN,),
        owner=_owner_of(booked),
    )


def _owner_of(reservation: Reservation) -> Owner:
    return Owner(kind=reservation.kind, name=reservation.metadata.name, uid=reservation.metadata.uid)


def _hand_over_claims(writer: Writer, booked: Reservation, made: Mapping[int, LabletSession]) -> Reservation:
    held = tuple(
        msgspec.structs.replace(one, session=made[one.number].metadata.name) if one.number in made else one
        for one in booked.status.held
    )
    count = booked.status.sessions_made + len(made)
    status = msgspec.structs.replace(booked.status, phase=_P.ACTIVE, held=held, sessions_made=count)
    now, reason = writer.clock.now(), "its first session exists"
    return take_step(booked, status, by=SCHEDULER, author=writer.author, now=now, reason=reason)


def _guard_ops(promises: Promises, record: Record[Reservation], several: Iterable[ReservationClaim]) -> Sequence[Op]:
    """Return writes of the guards of these claims and of their owner.

    A calendar that lists again may know the session without the reservation, or the reverse; a reader of the guards
    waits until it knows both.
    """
    metadata = record.resource.metadata
    keys = {owner_guard_key(record.resource.spec.owner)}
    for pool in {held.seat.pool for held in several if held.seat is not None}:
        keys.update(pool_guard_keys(promises.calendar, Ref(LabWorkerPool, pool, metadata.namespace)))
    return [Put(key, metadata.uid.encode()) for key in sorted(keys)]
