"""Deletion of objects. Called by `control.plane.local`, and by `control.upkeep.housekeeping` for interrupted ones.

An object with a lifecycle is told to end, and is removed with its last step. An object that others may refer to is
marked first, then its users are searched, then it is removed or unmarked: whoever refers to it in between sees the
mark.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.admission.references import Reference, Target, is_abandoned_deletion, read_targets, refers_to
from lcm.control.delivery.sinks import delete_dead_letters
from lcm.control.objects.actions import begin_drain, terminate_session
from lcm.control.objects.archive import archived_removal_ops, is_archived
from lcm.control.objects.records import Record, deletion_ops, mentions, read_entry
from lcm.control.objects.steps import is_removable, take_plane_step
from lcm.control.objects.writer import Edit, Writer, missing_error, retry_conflicts
from lcm.control.plane.protocol import R, Ref, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.access.learner import can_see
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Gone, Refused
from lcm.model.base.machine import CONTROL_PLANE
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import POOL_MACHINE, LabWorkerPool, PoolPhase, WorkerTemplate
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.reservation import Reservation, ReservationPhase
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.sink import Sink
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker
from lcm.store.base import Store, scan_all

USER_KINDS: Final[Mapping[type, tuple[type[Resource], ...]]] = {
    WorkerTemplate: (LabWorkerPool,),
    LabletDefinition: (LabletSession, Reservation),
}
"""Kinds that others refer to, with those that do."""
PLANE_CALLER: Final = Caller(name=CONTROL_PLANE, role=Role.SERVICE, actor=CONTROL_PLANE)
_NAMED_USERS: Final = 5
_DELETED_REASON: Final = "deleted"
_CANCELLABLE: Final = frozenset({ReservationPhase.PROMISED, ReservationPhase.ACTIVE})


async def delete(writer: Writer, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    """Request the deletion of an object, and return the object as it is then."""
    if ref.kind in USER_KINDS:
        return await _delete_unused(writer, ref, at=at, dry_run=dry_run)

    async def attempt() -> R:
        record = await _read_for_deletion(writer, ref, at)
        if is_archived(record):
            if not dry_run:  # a live object of the same name is not touched
                deed = Edit(record, record.resource, removed=True).audited_action()
                ops = [*archived_removal_ops(record), *deletion_ops(record.resource)]
                await writer.submit(ops, deeds=[deed])
            return record.resource
        after = request_deletion(record.resource, now=writer.clock.now(), author=writer.author)
        if dry_run or after is record.resource:
            return after
        return await writer.write(Edit(record, after, removed=is_removable(after), verb="delete"))

    gone = await retry_conflicts(attempt, unless=lambda _: at is not None)
    if isinstance(gone, Sink) and not dry_run:
        await delete_dead_letters(writer.store, gone.metadata.name)
    return gone


async def _delete_unused(writer: Writer, ref: Ref[R], *, at: int | None, dry_run: bool) -> R:
    async def attempt() -> R:
        nonlocal at
        record = await _read_for_deletion(writer, ref, at)
        if record.resource.metadata.deletion_timestamp is None:
            await _refuse_if_used(writer, record)
            if dry_run:
                return with_deletion_mark(record.resource, writer.clock.now())
            record, at = await _write_deletion_mark(writer, record, writer.clock.now()), None
        try:
            await _refuse_if_used(writer, record)
        except Refused:
            if not dry_run:
                await _write_deletion_mark(writer, record, None)
            raise
        # At the revision of the mark: if somebody had removed it, new users could have gone unnoticed.
        return record.resource if dry_run else await writer.write(Edit(record, record.resource, removed=True))

    return await retry_conflicts(attempt, unless=lambda _: at is not None)


async def finish_deletions(store: Store, *, clock: Clock) -> int:
    """Finish deletions whose callers were stopped half-way; return how many there were. May be repeated."""
    finished, writer = 0, Writer(store, clock, PLANE_CALLER)
    for kind in USER_KINDS:
        page = await scan_all(store, KINDS[kind.__name__].prefix)
        for entry in page.entries:
            if b'"deletion_timestamp":"' in entry.value:
                finished += await _finish_deletion(writer, read_entry(entry, kind))
    return finished


async def find_targets(writer: Writer, wanted: Reference) -> Sequence[Target]:
    """Read every object that a reference may mean, after finishing deletions that were left half-way."""
    found = await read_targets(writer.store, wanted)
    finished = [await _finish_deletion(writer, one) for one in found]
    return await read_targets(writer.store, wanted) if any(finished) else found


async def _finish_deletion(writer: Writer, resource: Resource) -> bool:
    """Remove a marked object whose deleter was stopped, or unmark it if it is used; False for all others."""
    if not is_abandoned_deletion(resource, writer.clock.now()):
        return False
    ours = Writer(writer.store, writer.clock, PLANE_CALLER, record_ids=writer.record_ids)
    with suppress(Conflict, Gone, Refused):  # another process finished it first, or it is used
        await delete(ours, ref_of(resource), at=resource.metadata.resource_version, dry_run=False)
    return True


async def _read_for_deletion(writer: Writer, ref: Ref[R], at: int | None) -> Record[R]:
    record = await writer.find_anywhere(ref)
    if record is None:
        raise missing_error(ref)
    writer.require_managed(record.resource, "delete")
    if at is not None and record.revision != at:
        raise Conflict(record.key, wanted=at, found=record.revision)
    return record


def request_deletion(resource: R, *, now: datetime, author: str) -> R:
    """Mark an object for deletion and take the step that leads to its end; the same object if that was done before."""
    made: Resource = with_deletion_mark(resource, now)
    match made:
        case LabWorker() if made.status.phase in HOSTING_PHASES:
            span = timedelta(minutes=made.spec.drain_deadline_minutes)
            made = begin_drain(made, span, now=now, author=author, reason=_DELETED_REASON)
        case LabWorkerPool() if POOL_MACHINE.find(made.status.phase, PoolPhase.DRAINING):
            made = take_plane_step(made, PoolPhase.DRAINING, author=author, now=now, reason=_DELETED_REASON)
        case LabletSession():
            made = terminate_session(made, now=now, author=author, reason=_DELETED_REASON)
        case Reservation() if made.status.phase in _CANCELLABLE:
            made = take_plane_step(made, ReservationPhase.CANCELLING, author=author, now=now, reason=_DELETED_REASON)
        case Reservation() if made.status.phase is ReservationPhase.PENDING:
            metadata = msgspec.structs.replace(made.metadata, finalizers=())
            made = msgspec.structs.replace(made, metadata=metadata)
    assert isinstance(made, type(resource))
    return made


def with_deletion_mark(resource: R, now: datetime | None) -> R:
    """Return an object with the deletion timestamp set, or removed when `now` is None."""
    if now is not None and resource.metadata.deletion_timestamp is not None:
        return resource
    metadata = msgspec.structs.replace(resource.metadata, deletion_timestamp=now)
    return msgspec.structs.replace(resource, metadata=metadata)


async def _write_deletion_mark(writer: Writer, record: Record[R], now: datetime | None) -> Record[R]:
    """Set the deletion mark in the store, or remove it when `now` is None."""
    verb = "mark" if now else "unmark"
    resource = await writer.write(Edit(record, with_deletion_mark(record.resource, now), quiet=True, verb=verb))
    return Record(resource, msgspec.structs.replace(record.entry, revision=resource.metadata.resource_version))


async def _refuse_if_used(writer: Writer, record: Record[R]) -> None:
    """Raise Refused while live objects refer to this one."""
    target = record.resource
    assert isinstance(target, WorkerTemplate | LabletDefinition)
    users: list[Resource] = []
    for kind in USER_KINDS[type(target)]:
        page = await scan_all(writer.store, KINDS[kind.__name__].prefix_in(target.metadata.namespace))
        some = (read_entry(entry, kind) for entry in page.entries if mentions(entry, target.metadata.name))
        users += [one for one in some if refers_to(one, target) and _is_live(one)]
    if users:
        names = _describe_users(users, writer.caller)
        raise Refused(
            f"{target.kind} {target.metadata.name} is used by {names}; those must be deleted or changed first"
        )


def _describe_users(users: Sequence[Resource], caller: Caller) -> str:
    """Name the users that the caller may see, and count the rest."""
    shown = [f"{one.kind} {one.metadata.name}" for one in users if can_see(caller, one)][:_NAMED_USERS]
    rest = len(users) - len(shown)
    if not shown:
        return f"{rest} objects of other people"
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _is_live(resource: Resource) -> bool:
    machine = KINDS[resource.kind].machine
    return machine is None or getattr(resource.status, "phase", None) not in machine.final
