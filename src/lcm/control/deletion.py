"""Asking objects to go.

What has a life of its own is told to end it and is removed with its last step. What others refer to is marked first,
then its users are looked for, then it is removed or unmarked again: whoever refers to it in between sees the mark.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.actions import drained, terminated
from lcm.control.ledger import Edit, Ledger, persistently
from lcm.control.plane import R, Ref
from lcm.control.records import Record, mentions, opened
from lcm.control.references import refers_to
from lcm.control.stepping import moved, over
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Conflict, Refused
from lcm.model.kinds import KINDS, Resource
from lcm.model.pool import POOL, LabWorkerPool, PoolPhase, WorkerTemplate
from lcm.model.reservation import Reservation, ReservationPhase
from lcm.model.session import LabletSession
from lcm.model.worker import HOSTING, LabWorker
from lcm.store.base import everything

_USERS: Final[Mapping[type, tuple[type[Resource], ...]]] = {
    WorkerTemplate: (LabWorkerPool,),
    LabletDefinition: (LabletSession, Reservation),
}
_NAMED: Final = 5
_DELETED: Final = "deleted"
_CANCELLABLE: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})


async def delete(ledger: Ledger, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    """Ask for an object to go, and return it as it is then."""
    if ref.kind in _USERS:
        return await _delete_unused(ledger, ref, at=at, dry_run=dry_run)

    async def attempt() -> R:
        record = await _found(ledger, ref, at)
        after = dismissed(record.resource, now=ledger.clock.now(), author=ledger.author)
        if dry_run or after is record.resource:
            return after
        return await ledger.write(Edit(record, after, removed=over(after)))

    return await persistently(attempt, unless=lambda _: at is not None)


async def _delete_unused(ledger: Ledger, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    async def attempt() -> R:
        nonlocal at
        record = await _found(ledger, ref, at)
        if record.resource.metadata.deletion_timestamp is None:
            await _refuse_if_used(ledger, record)
            if dry_run:
                return _marked(record.resource, ledger.clock.now())
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


async def _found(ledger: Ledger, ref: Ref[R], at: int | None) -> Record[R]:
    record = await ledger.need(ref)
    if at is not None and record.revision != at:
        raise Conflict(record.key, wanted=at, found=record.revision)
    return record


def dismissed(resource: R, *, now: datetime, author: str) -> R:
    """Mark an object as one that is to go and take the step that leads to its end; the very same if that was done."""
    made: Resource = _marked(resource, now)
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


def _marked(resource: R, now: datetime | None) -> R:
    if now is not None and resource.metadata.deletion_timestamp is not None:
        return resource
    metadata = msgspec.structs.replace(resource.metadata, deletion_timestamp=now)
    return msgspec.structs.replace(resource, metadata=metadata)


def _released(resource: R) -> R:
    metadata = msgspec.structs.replace(resource.metadata, finalizers=())
    return msgspec.structs.replace(resource, metadata=metadata)


async def _remarked(ledger: Ledger, record: Record[R], now: datetime | None) -> Record[R]:
    """Set the mark, or take it away."""
    resource = await ledger.write(Edit(record, _marked(record.resource, now), quiet=True))
    return Record(resource, msgspec.structs.replace(record.entry, revision=resource.metadata.resource_version))


async def _refuse_if_used(ledger: Ledger, record: Record[R]) -> None:
    """Raise Refused while others refer to an object that have not ended."""
    target = record.resource
    assert isinstance(target, WorkerTemplate | LabletDefinition)
    users: list[str] = []
    for kind in _USERS[type(target)]:
        known = KINDS[kind.__name__]
        page = await everything(ledger.store, f"{known.plural}/{target.metadata.namespace}/")
        some = (opened(entry, kind) for entry in page.entries if mentions(entry, target.metadata.name))
        users += [f"{known.name} {one.metadata.name}" for one in some if refers_to(one, target) and _lives(one)]
    if users:
        named = ", ".join(users[:_NAMED]) + (f" and {len(users) - _NAMED} more" if len(users) > _NAMED else "")
        raise Refused(f"{target.kind} {target.metadata.name} is used by {named}; delete or change those first")


def _lives(resource: Resource) -> bool:
    machine = KINDS[resource.kind].machine
    return machine is None or getattr(resource.status, "phase", None) not in machine.final
