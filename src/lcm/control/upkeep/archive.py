"""The archive of sessions that ended a while ago, and the dependents that are removed with an object.

No watch, no cache and no list of live objects includes the archive. `control.upkeep.housekeeping` moves sessions there,
each in one commit, and deletes them much later. An archived session is still found by its name or uid; it cannot be
changed any more, and its name is free. Read by `control.objects.writer`, `control.objects.reads` and
`control.objects.deletion`.

Dependents are measurements, their history, alerts and samples. Each is removed at the revision at which it was found,
so that nothing that comes meanwhile is left behind. Called by `control.objects.writer`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from lcm.control.objects.records import (
    ALERTS,
    CODEC,
    OBSERVATIONS,
    TELEMETRY,
    UIDS,
    Record,
    alerts_key,
    history_prefix,
    is_nameable,
    kind_of,
    observations_key,
    read_entry,
    removal_ops,
    telemetry_key,
    with_revision,
)
from lcm.control.plane.protocol import R, Ref
from lcm.control.telemetry.alert_records import Alerts, read_alerts
from lcm.model.base.errors import Conflict, TooLarge
from lcm.model.base.event import Event, encode_event
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import ABSENT, CheckRevision, Delete, Entry, Op, Put, Store, scan_all


@dataclass(frozen=True, slots=True)
class Dependents:
    """The operations that remove an object's dependents, and the events that this causes."""

    ops: Sequence[Op] = ()
    events: Sequence[Event] = ()


def is_dependent_key(key: str) -> bool:
    """Return whether a key holds a dependent of an object."""
    return key.startswith((TELEMETRY, ALERTS, OBSERVATIONS))


async def find_dependents(store: Store, resource: Resource, now: datetime) -> Dependents:
    """Find what is removed together with an object."""
    raised = await read_alerts(store, alerts_key(resource))
    gone: list[Op] = [Delete(raised.key, at=raised.revision)] if raised.revision else [CheckRevision(raised.key, 0)]
    if isinstance(resource, LabWorker):
        # Every report writes the newest measurements: while those are unchanged, this is the complete history.
        newest = await store.get(key := telemetry_key(resource))
        gone.append(Delete(key, at=newest.revision) if newest else CheckRevision(key, 0))
        chunks = await scan_all(store, history_prefix(resource))
        gone += [Delete(entry.key) for entry in chunks.entries]
    if isinstance(resource, LabletDefinition):
        samples = await store.get(key := observations_key(resource))
        gone.append(Delete(key, at=samples.revision) if samples else CheckRevision(key, 0))
    return Dependents(gone, raised.change_events(Alerts(), now))


ARCHIVE_PREFIX: Final = "archive/"
"""Archived sessions by the time at which they ended, so that the oldest come first."""
NAMES_PREFIX: Final = "archive-names/"
"""Index of the archived sessions of one name, the newest last."""
_SESSION_KIND: Final = KINDS[LabletSession.__name__]
_FINAL_PHASE_BYTES: Final = tuple(f'"phase":"{phase}"'.encode() for phase in SESSION_MACHINE.final)
_BATCH_SIZE: Final = 16
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_PAGE_SIZE: Final = 200


class SessionEnd(NamedTuple):
    """When a session ended, according to one state of it."""

    state: int
    """A hash of the state's bytes: a restored store may use a revision again."""
    at: datetime


SessionEnds = dict[str, SessionEnd]
"""The ends of sessions by key."""


def archived_prefix(kind: type[R]) -> str:
    """Return the key prefix of the archived objects of a kind."""
    return f"{ARCHIVE_PREFIX}{KINDS[kind.__name__].plural}/"


def ended_at(session: LabletSession) -> datetime | None:
    """Return when a session ended; None while it lives, or when it is to be deleted with its end."""
    status = session.status
    if (
        status.phase not in SESSION_MACHINE.final
        or not status.history
        or session.metadata.deletion_timestamp is not None
    ):
        return None
    return status.history[-1].at


def is_archived(record: Record[R]) -> bool:
    """Return whether an object was found in the archive."""
    return record.key.startswith(ARCHIVE_PREFIX)


async def find_archived(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read an archived object by its uid, or else the newest of its name; None means that there is none."""
    if ref.kind is not LabletSession or not is_nameable(ref):
        return None
    named = await store.get(UIDS + ref.name)
    key = named.value.decode() if named else ""
    if not key.startswith(archived_prefix(ref.kind)):
        return await find_newest_archived(store, ref)
    record = await _read_record(store, key, ref)
    return record if record and record.resource.metadata.namespace == ref.namespace else None


async def find_newest_archived(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read the archived object of a name that ended last; None means that there is none."""
    if ref.kind is not LabletSession:
        return None
    prefix = f"{NAMES_PREFIX}{ref.kind_info.plural}/{ref.namespace}/{ref.name}/"
    page = await store.scan(prefix)
    while page.next is not None:
        page = await store.scan(prefix, cursor=page.next)
    return await _read_record(store, page.entries[-1].value.decode(), ref) if page.entries else None


async def _read_record(store: Store, key: str, ref: Ref[R]) -> Record[R] | None:
    entry = await store.get(key)
    return Record(read_entry(entry, ref.kind), entry) if entry else None


def archived_removal_ops(record: Record[R]) -> Sequence[Op]:
    """Return the operations that remove an archived object, which nobody can have changed, and its index entries."""
    resource, place = record.resource, record.key.removeprefix(archived_prefix(type(record.resource)))
    ways = Delete(UIDS + resource.metadata.uid), Delete(_name_key(resource, place))
    return Delete(record.key), *ways


async def archive_ended(store: Store, now: datetime, before: datetime, ends: SessionEnds | None = None) -> int:
    """Move the sessions that ended before a moment into the archive; return how many. May be repeated.

    A caller that repeats it passes the same `ends` each time, so that each state of a session is decoded once.
    """
    moved, seen = 0, SessionEnds()
    page = await store.scan(f"{_SESSION_KIND.plural}/", limit=_PAGE_SIZE)
    while True:
        seen.update((entry.key, _read_end(entry, ends or {})) for entry in page.entries)
        due = [_read_session(entry) for entry in page.entries if seen[entry.key].at < before]
        for first in range(0, len(due), _BATCH_SIZE):
            moved += await _archive_batch(store, due[first : first + _BATCH_SIZE], now)
        if page.next is None:
            break
        page = await store.scan(f"{_SESSION_KIND.plural}/", limit=_PAGE_SIZE, cursor=page.next)
    if ends is not None:
        ends.clear()
        ends.update(seen)
    return moved


def _read_end(entry: Entry, ends: SessionEnds) -> SessionEnd:
    end, state = ends.get(entry.key), hash(entry.value)
    if end is not None and end.state == state:
        return end
    # Searching the bytes for a final phase is much faster than decoding every session.
    ended = (
        ended_at(_read_session(entry).resource) if any(phase in entry.value for phase in _FINAL_PHASE_BYTES) else None
    )
    return SessionEnd(state, ended or _NEVER)


def _read_session(entry: Entry) -> Record[LabletSession]:
    return Record(with_revision(CODEC.decode(entry.value, LabletSession), entry.revision), entry)


async def _archive_batch(store: Store, several: Sequence[Record[LabletSession]], now: datetime) -> int:
    ops, told = list[Op](), list[bytes]()
    for record in several:
        hangs = await find_dependents(store, record.resource, now)
        ops += [*_archive_ops(record), *hangs.ops]
        told += map(encode_event, hangs.events)
    try:
        await store.commit(*ops, events=told)
    except (Conflict, TooLarge):
        # One of them was changed meanwhile, or the batch is too large: move the others without it.
        return sum([await _archive_batch(store, [one], now) for one in several]) if len(several) > 1 else 0
    return len(several)


def _archive_ops(record: Record[LabletSession]) -> Iterator[Op]:
    session, ended = record.resource, ended_at(record.resource)
    assert ended is not None, "only what has ended goes there"
    place = f"{ended.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{session.metadata.uid}"
    key = archived_prefix(LabletSession) + place
    yield from (op for op in removal_ops(record) if op.key != UIDS + session.metadata.uid)
    yield Put(UIDS + session.metadata.uid, key.encode())
    yield Put(key, record.entry.value, record.entry.labels, at=ABSENT)
    yield Put(_name_key(session, place), key.encode())


async def sweep_archive(store: Store, before: datetime) -> int:
    """Delete the archived sessions that ended before a moment; return how many there were. May be repeated."""
    swept, prefix = 0, archived_prefix(LabletSession)
    end = f"{prefix}{before.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
    while True:
        page = await store.scan(prefix, limit=_BATCH_SIZE)
        old = [Record(read_entry(entry, LabletSession), entry) for entry in page.entries if entry.key < end]
        if old:
            await store.commit(*(op for one in old for op in archived_removal_ops(one)))
        swept += len(old)
        if len(old) < _BATCH_SIZE:
            return swept


def _name_key(resource: Resource, place: str) -> str:
    metadata = resource.metadata
    return f"{NAMES_PREFIX}{kind_of(resource).plural}/{metadata.namespace}/{metadata.name}/{place}"
