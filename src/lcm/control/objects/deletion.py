"""Asking objects to go.

What has a life of its own is told to end it and is removed with its last step. What others refer to is marked first,
then its users are looked for, then it is removed or unmarked again: whoever refers to it in between sees the mark.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.admission.references import Sought, Target, lingers, refers_to, stored
from lcm.control.objects.actions import drained, terminated
from lcm.control.objects.records import Record, mentions, opened
from lcm.control.objects.steps import moved, over
from lcm.control.objects.writer import Edit, Ledger, missing, persistently
from lcm.control.plane.protocol import R, Ref, ref_of
from lcm.control.upkeep.archive import forgetting, is_archived
from lcm.model.access.identity import Caller, Role, sees
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Refused
from lcm.model.base.machine import CONTROL_PLANE
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import POOL, LabWorkerPool, PoolPhase, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation, ReservationPhase
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import HOSTING, LabWorker
from lcm.store.base import Store, everything

_USERS: Final[Mapping[type, tuple[type[Resource], ...]]] = {
    WorkerTemplate: (LabWorkerPool,),
    LabletDefinition: (LabletSession, Reservation),
}
PLANE: Final = Caller(name=CONTROL_PLANE, role=Role.SERVICE, actor=CONTROL_PLANE)
_NAMED: Final = 5
_DELETED: Final = "deleted"
_CANCELLABLE: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})


async def delete(ledger: Ledger, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    """Ask for an object to go, and return it as it is then."""
    if ref.kind in _USERS:
        return await _delete_unused(ledger, ref, at=at, dry_run=dry_run)

    async def attempt() -> R:
        record = await _found(ledger, ref, at)
        if is_archived(record):
            return await _forgotten(ledger, record, dry_run=dry_run)
        after = dismissed(record.resource, now=ledger.clock.now(), author=ledger.author)
        if dry_run or after is record.resource:
            return after
        return await ledger.write(Edit(record, after, removed=over(after), verb="delete"))

    return await persistently(attempt, unless=lambda _: at is not None)


async def _delete_unused(ledger: Ledger, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    async def attempt() -> R:
        nonlocal at
        record = await _found(ledger, ref, at)
        if record.resource.metadata.deletion_timestamp is None:
            await _refuse_if_used(ledger, record)
            if dry_run:
                return marked(record.resource, ledger.clock.now())
            record, at = await _remarked(ledger, record, ledger.clock.now()), None
        try:
            await _refuse_if_used(ledger, record)
        except Refused:
            if not dry_run:
                await _remarked(ledger, record, None)
            raise
        # At the revision of the mark: had somebody taken it away, users could have come unseen.
        return record.resource if dry_run else await ledger.write(Edit(record, record.resource, removed=True))

    return await persistently(attempt, unless=lambda _: at is not None)


async def finish_deletions(store: Store, *, clock: Clock) -> int:
    """Finish the deletions whose callers were stopped half-way, and say how many those were. May be repeated."""
    finished, ledger = 0, Ledger(store, clock, PLANE)
    for kind in _USERS:
        page = await everything(store, f"{KINDS[kind.__name__].plural}/")
        for entry in page.entries:
            if b'"deletion_timestamp":"' in entry.value:
                finished += await _finish(ledger, opened(entry, kind))
    return finished


async def present(ledger: Ledger, wanted: Sought) -> Sequence[Target]:
    """Read every object that a name may mean, after deletions that were left half-way are finished."""
    found = await stored(ledger.store, wanted)
    finished = [await _finish(ledger, one) for one in found]
    return await stored(ledger.store, wanted) if any(finished) else found


async def _finish(ledger: Ledger, resource: Resource) -> bool:
    """Remove a marked object whose deleter was stopped, or take the mark away if it is used; False for all others."""
    if not lingers(resource, ledger.clock.now()):
        return False
    ours = Ledger(ledger.store, ledger.clock, PLANE, record_ids=ledger.record_ids)
    with suppress(Conflict, Gone, Refused):  # then somebody else was faster, or it is used
        await delete(ours, ref_of(resource), at=resource.metadata.resource_version, dry_run=False)
    return True


async def _found(ledger: Ledger, ref: Ref[R], at: int | None) -> Record[R]:
    record = await ledger.recall(ref)
    if record is None:
        raise missing(ref)
    if at is not None and record.revision != at:
        raise Conflict(record.key, wanted=at, found=record.revision)
    return record


async def _forgotten(ledger: Ledger, record: Record[R], *, dry_run: bool) -> R:
    """Take an object out of the archive. What is live under its name has nothing to do with it."""
    if not dry_run:
        deed = Edit(record, record.resource, removed=True).deed()
        await ledger.submit(forgetting(record), deeds=[deed])
    return record.resource


def dismissed(resource: R, *, now: datetime, author: str) -> R:
    """Mark an object as one that is to go and take the step that leads to its end; the very same if that was done."""
    made: Resource = marked(resource, now)
    match made:
        case LabWorker() if made.status.phase in HOSTING:
            span = timedelta(minutes=made.spec.drain_deadline_minutes)
            made = drained(made, span, now=now, author=author, reason=_DELETED)
        case LabWorkerPool() if POOL.find(made.status.phase, PoolPhase.DRAINING):
            made = moved(made, PoolPhase.DRAINING, author=author, now=now, reason=_DELETED)
        case LabletSession():
            made = terminated(made, now=now, author=author, reason=_DELETED)
        case Reservation() if made.status.phase in _CANCELLABLE:
            made = moved(made, ReservationPhase.CANCELLING, author=author, now=now, reason=_DELETED)
        case Reservation() if made.status.phase is ReservationPhase.PENDING:
            made = _released(made)
    assert isinstance(made, type(resource))
    return made


def marked(resource: R, now: datetime | None) -> R:
    """Set the mark of an object that is to go, or take it away."""
    if now is not None and resource.metadata.deletion_timestamp is not None:
        return resource
    metadata = msgspec.structs.replace(resource.metadata, deletion_timestamp=now)
    return msgspec.structs.replace(resource, metadata=metadata)


def _released(resource: R) -> R:
    metadata = msgspec.structs.replace(resource.metadata, finalizers=())
    return msgspec.structs.replace(resource, metadata=metadata)


async def _remarked(ledger: Ledger, record: Record[R], now: datetime | None) -> Record[R]:
    """Set the mark, or take it away."""
    verb = "mark" if now else "unmark"
    resource = await ledger.write(Edit(record, marked(record.resource, now), quiet=True, verb=verb))
    return Record(resource, msgspec.structs.replace(record.entry, revision=resource.metadata.resource_version))


async def _refuse_if_used(ledger: Ledger, record: Record[R]) -> None:
    """Raise Refused while others refer to an object that have not ended."""
    target = record.resource
    assert isinstance(target, WorkerTemplate | LabletDefinition)
    users: list[Resource] = []
    for kind in _USERS[type(target)]:
        known = KINDS[kind.__name__]
        page = await everything(ledger.store, f"{known.plural}/{target.metadata.namespace}/")
        some = (opened(entry, kind) for entry in page.entries if mentions(entry, target.metadata.name))
        users += [one for one in some if refers_to(one, target) and _lives(one)]
    if users:
        told = _told(users, ledger.caller)
        raise Refused(f"{target.kind} {target.metadata.name} is used by {told}; those must be deleted or changed first")


def _told(users: Sequence[Resource], caller: Caller) -> str:
    """Name users of something, as far as they exist for the caller, and count the rest."""
    shown = [f"{one.kind} {one.metadata.name}" for one in users if sees(caller, one)][:_NAMED]
    rest = len(users) - len(shown)
    if not shown:
        return f"{rest} of other people's objects"
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _lives(resource: Resource) -> bool:
    machine = KINDS[resource.kind].machine
    return machine is None or getattr(resource.status, "phase", None) not in machine.final
