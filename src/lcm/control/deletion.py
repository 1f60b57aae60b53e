"""Asking objects to go.

What has a life of its own is told to end it and is removed with its last step. What others refer to is marked first,
then its users are looked for, then it is removed or unmarked again: whoever refers to it in between sees the mark.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.actions import drained, terminated
from lcm.control.ledger import Edit, Ledger, persistently
from lcm.control.plane import R, Ref
from lcm.control.records import Record, opened
from lcm.control.references import Target, refers_to
from lcm.control.stepping import moved, over
from lcm.model.definition import LabletDefinition
from lcm.model.errors import Conflict, Refused
from lcm.model.kinds import KINDS, Resource
from lcm.model.pool import POOL, LabWorkerPool, PoolPhase, WorkerTemplate
from lcm.model.reservation import Reservation, ReservationPhase
from lcm.model.session import LabletSession
from lcm.model.worker import HOSTING, LabWorker
from lcm.store.base import everything

_USERS: Final[Mapping[type[Target], tuple[type[Resource], ...]]] = {
    WorkerTemplate: (LabWorkerPool,),
    LabletDefinition: (LabletSession, Reservation),
}
_NAMED: Final = 5
_DELETED: Final = "deleted"
_CANCELLABLE: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})


async def delete(ledger: Ledger, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    """Ask for an object to go, and return it as it is then."""

    async def attempt() -> R:
        record = await ledger.need(ref)
        if at is not None and record.revision != at:
            raise Conflict(record.key, wanted=at, found=record.revision)
        if isinstance(record.resource, WorkerTemplate | LabletDefinition):
            return await _mark(ledger, record, dry_run=dry_run)
        after = dismissed(record.resource, now=ledger.clock.now(), author=ledger.author)
        if dry_run or after is record.resource:
            return after
        return await ledger.write(Edit(record, after, removed=over(after)))

    resource = await persistently(attempt, unless=lambda _: at is not None)
    if dry_run or not isinstance(resource, WorkerTemplate | LabletDefinition):
        return resource
    return await persistently(lambda: _settle(ledger, ref), unless=lambda _: False)


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


async def _mark(ledger: Ledger, record: Record[R], *, dry_run: bool) -> R:
    resource = record.resource
    if users := await _users(ledger, resource):
        if resource.metadata.deletion_timestamp is not None and not dry_run:
            await ledger.write(Edit(record, _marked(resource, None), quiet=True))
        raise _in_use(resource, users)
    marked = _marked(resource, ledger.clock.now())
    if dry_run or marked is resource:
        return marked
    return await ledger.write(Edit(record, marked, quiet=True))


async def _settle(ledger: Ledger, ref: Ref[R]) -> R:
    """Remove what is marked, or take the mark away if somebody has come to use it before they could see it."""
    record = await ledger.need(ref)
    if users := await _users(ledger, record.resource):
        await ledger.write(Edit(record, _marked(record.resource, None), quiet=True))
        raise _in_use(record.resource, users)
    return await ledger.write(Edit(record, record.resource, removed=True))


async def _users(ledger: Ledger, target: Resource) -> Sequence[str]:
    """Name those that refer to an object and have not ended."""
    assert isinstance(target, WorkerTemplate | LabletDefinition)
    names: list[str] = []
    for kind in _USERS[type(target)]:
        known = KINDS[kind.__name__]
        page = await everything(ledger.store, f"{known.plural}/{target.metadata.namespace}/")
        users = (opened(entry, kind) for entry in page.entries)
        names += [f"{known.name} {user.metadata.name}" for user in users if refers_to(user, target) and _lives(user)]
    return names


def _lives(resource: Resource) -> bool:
    machine = KINDS[resource.kind].machine
    return machine is None or getattr(resource.status, "phase", None) not in machine.final


def _in_use(target: Resource, users: Sequence[str]) -> Refused:
    named = ", ".join(users[:_NAMED]) + (f" and {len(users) - _NAMED} more" if len(users) > _NAMED else "")
    return Refused(f"{target.kind} {target.metadata.name} is used by {named}; delete or change those first")
