"""Pauses of pools and other sizes, and the promises that these concern: listed before, kept, or refused as asked.

The pool is changed first, so that nothing more is promised that the change forbids. Then the bookings end, in batches
of what one commit holds; a claim that a reservation still holds becomes a session first, so that its learner is told.
Called by `control.plane.local_operations`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from lcm.control.admission.admit import Admission
from lcm.control.booking.promise import Promises
from lcm.control.booking.reservations import make_sessions
from lcm.control.objects.actions import terminate_session
from lcm.control.objects.records import Record
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.protocol import Ref, ref_of
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.kinds.placement import (
    MAX_PLACES,
    MAX_SESSIONS_PER_COMMIT,
    AffectedPromise,
    PoolChange,
    PoolPauseRequest,
    PoolScaleRequest,
    PromiseChoice,
)
from lcm.model.kinds.pool import LabWorkerPool, PoolPause
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.placement.candidate import format_moment
from lcm.placement.claims import booked_slot
from lcm.placement.request import HeldClaim
from lcm.system.tasks import TimeSlice

PoolRef = Ref[LabWorkerPool]
Concern = Callable[[int, HeldClaim], bool]
"""Tells whether a change concerns a claim on a planned worker."""
T = TypeVar("T")
_ENDABLE: Final = frozenset({SessionPhase.PENDING, SessionPhase.SCHEDULED})


async def resume_pool(writer: Writer, ref: PoolRef, *, dry_run: bool) -> LabWorkerPool:
    """End the pause of a pool, if it is paused."""

    async def attempt() -> LabWorkerPool:
        record = await writer.require(ref)
        if record.resource.status.pause is None:
            return record.resource
        return await _write(writer, record, _with_pause(record.resource, None), "resume", dry_run=dry_run)

    return await retry_conflicts(attempt, unless=lambda _: False)


class PoolChanges:
    """Changes of a pool by one caller."""

    def __init__(self, writer: Writer, promises: Promises, admission: Admission, ids: Callable[[], str]) -> None:
        self._writer = writer
        self._promises = promises
        self._admission = admission
        self._ids = ids

    async def pause(self, ref: PoolRef, wish: PoolPauseRequest, *, dry_run: bool) -> PoolChange:
        """Pause a pool until a moment."""
        now, until = self._writer.clock.now(), wish.until
        if until is not None and until <= now:
            raise Invalid(Fault("until", "it has passed", "use a later moment, or leave it out"))
        pause = PoolPause(since=now, until=until, by=self._writer.author, reason=wish.reason)

        async def attempt() -> LabWorkerPool:
            record = await self._require(ref)
            return await _write(self._writer, record, _with_pause(record.resource, pause), "pause", dry_run=dry_run)

        lasts = f" until {format_moment(until)}" if until else ""
        why = f"pool {ref.name} is paused{lasts}" + (f": {wish.reason}" if wish.reason else "")
        pool = await retry_conflicts(attempt, unless=lambda _: False)

        def concerns(_: int, held: HeldClaim) -> bool:
            return until is None or held.claim.start < until

        return await self._settle(pool, concerns, wish.promises, why, dry_run=dry_run)

    async def scale(self, ref: PoolRef, wish: PoolScaleRequest, *, dry_run: bool) -> PoolChange:
        """Change the minimum or the maximum of a pool."""

        async def attempt() -> LabWorkerPool:
            record = await self._require(ref)
            spec = record.resource.spec
            wanted = msgspec.structs.replace(
                spec,
                min_workers=spec.min_workers if wish.min_workers is None else wish.min_workers,
                max_workers=spec.max_workers if wish.max_workers is None else wish.max_workers,
            )
            draft = await self._admission.admit_change(record, msgspec.structs.replace(record.resource, spec=wanted))
            if draft is None:
                return record.resource
            return self._writer.rehearse(draft.edit) if dry_run else await self._writer.write(draft.edit)

        pool = await retry_conflicts(attempt, unless=lambda _: False)
        most = pool.spec.max_workers
        why = f"pool {ref.name} has {most} planned workers by now"
        return await self._settle(pool, lambda number, _: number > most, wish.promises, why, dry_run=dry_run)

    async def _require(self, ref: PoolRef) -> Record[LabWorkerPool]:
        record = await self._writer.require(ref)
        if record.resource.metadata.deletion_timestamp is not None:
            raise Refused(f"pool {ref.name} is being deleted")
        return record

    async def _settle(
        self, pool: LabWorkerPool, concerns: Concern, choice: PromiseChoice, why: str, *, dry_run: bool
    ) -> PoolChange:
        """Return the promises that a change concerns, and end them if that was asked for."""
        await self._promises.calendar.ready()
        if not dry_run:  # whoever booked before the change is known then
            await self._promises.calendar.wait_for_revision(pool.metadata.resource_version)
        found = await self._find_affected(pool, concerns)
        refused = 0 if dry_run or choice == "keep" else await self._refuse(pool, found, concerns, why)
        left_off = max(0, len(found) - MAX_PLACES)
        return PoolChange(pool=pool, affected=tuple(found[:MAX_PLACES]), affected_left_off=left_off, refused=refused)

    async def _find_affected(self, pool: LabWorkerPool, concerns: Concern) -> Sequence[AffectedPromise]:
        now, time_slice, found = self._writer.clock.now(), TimeSlice(), list[AffectedPromise]()
        for number, held in list(self._promises.calendar.claims(ref_of(pool))):
            if held.claim.end > now and concerns(number, held):
                affected = self._describe_promise(pool, number, held)
                found += [affected] if affected is not None else []
            await time_slice.yield_if_over()
        return sorted(found, key=lambda one: (one.start, one.name, one.number or 0))

    def _describe_promise(self, pool: LabWorkerPool, number: int, held: HeldClaim) -> AffectedPromise | None:
        """Return who was promised a planned worker by a claim; None if nobody is, or the session is on it already."""
        name, _, part = held.holder.partition("/")[2].partition("#")
        kind: type[LabletSession | Reservation] = Reservation if part else LabletSession
        booking = self._promises.calendar.get(Ref(kind, name, pool.metadata.namespace))
        if booking is None or (isinstance(booking, LabletSession) and not _is_open_promise(booking)):
            return None
        start, end = booked_slot(booking, held.claim, int(part) if part else None)
        return AffectedPromise(
            kind=booking.kind,
            name=name,
            owner=booking.spec.owner,
            seat=number,
            start=start,
            end=end,
            number=int(part) if part else None,
        )

    async def _refuse(self, pool: LabWorkerPool, found: Sequence[AffectedPromise], concerns: Concern, why: str) -> int:
        """End bookings with a reason; return how many ended. What was placed or moved meanwhile stays."""
        namespace, names = pool.metadata.namespace, [one.name for one in found if one.number is None]
        reserved: dict[str, list[int]] = {}
        for one in found:
            if one.number is not None:
                reserved.setdefault(one.name, []).append(one.number)
        for name, numbers in reserved.items():
            for batch in _batches(numbers):
                made = await make_sessions(
                    self._writer, self._promises, Ref(Reservation, name, namespace), batch, self._ids
                )
                names += [one.metadata.name for one in made]

        def is_concerned(session: LabletSession) -> bool:
            seat, claim = session.status.seat, session.status.claim
            if seat is None or claim is None or seat.pool != pool.metadata.name or not _is_open_promise(session):
                return False
            return concerns(seat.number, HeldClaim(session.metadata.name, claim))

        return sum([await self._end(batch, namespace, is_concerned, why) for batch in _batches(names)])

    async def _end(
        self, names: Sequence[str], namespace: str, is_concerned: Callable[[LabletSession], bool], why: str
    ) -> int:
        async def attempt() -> int:
            now, author = self._writer.clock.now(), self._writer.author
            records = [await self._writer.find(Ref(LabletSession, name, namespace)) for name in names]
            edits = [
                Edit(record, terminate_session(record.resource, now=now, author=author, reason=why), verb="refuse")
                for record in records
                if record is not None and is_concerned(record.resource)
            ]
            if edits:
                await self._writer.commit_edits(*edits)
            return len(edits)

        return await retry_conflicts(attempt, unless=lambda _: False)


async def _write(
    writer: Writer, record: Record[LabWorkerPool], after: LabWorkerPool, verb: str, *, dry_run: bool
) -> LabWorkerPool:
    edit = Edit(record, after, verb=verb)
    return writer.rehearse(edit) if dry_run else await writer.write(edit)


def _with_pause(pool: LabWorkerPool, pause: PoolPause | None) -> LabWorkerPool:
    return msgspec.structs.replace(pool, status=msgspec.structs.replace(pool.status, pause=pause))


def _is_open_promise(session: LabletSession) -> bool:
    """Return whether a session has a slot that was promised, and no worker yet."""
    return session.status.phase in _ENDABLE and session.status.worker_id is None and not is_asap(session)


def _batches(several: Sequence[T]) -> Iterator[Sequence[T]]:
    size = MAX_SESSIONS_PER_COMMIT
    return (several[first : first + size] for first in range(0, len(several), size))
