"""Moves sessions that ended a while ago to the archive, each in one commit, and deletes them much later.

Called by `control.upkeep.housekeeping`. `control.objects.archive` reads what is there.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from lcm.control.objects.archive import archived_name_key, archived_prefix, archived_removal_ops, find_dependents
from lcm.control.objects.records import CODEC, UIDS, Record, read_entry, removal_ops, with_revision
from lcm.control.objects.writer import commit_ops
from lcm.model.base.errors import Conflict, TooLarge
from lcm.model.base.event import encode_event
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.store.base import ABSENT, Entry, Op, Put, Store

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
        await commit_ops(store, *ops, events=told)
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
    yield Put(archived_name_key(session, place), key.encode())


async def sweep_archive(store: Store, before: datetime) -> int:
    """Delete the archived sessions that ended before a moment; return how many there were. May be repeated."""
    swept, prefix = 0, archived_prefix(LabletSession)
    end = f"{prefix}{before.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
    while True:
        page = await store.scan(prefix, limit=_BATCH_SIZE)
        old = [Record(read_entry(entry, LabletSession), entry) for entry in page.entries if entry.key < end]
        if old:
            await commit_ops(store, *(op for one in old for op in archived_removal_ops(one)))
        swept += len(old)
        if len(old) < _BATCH_SIZE:
            return swept
