"""The archive: where sessions go that ended a while ago. No watch, no cache and no list of live objects holds it.

`housekeeping` moves them there, each in one commit, and forgets them much later. Whoever reads one object finds it by
its name or uid as before; nothing changes it any more, and its name is free. Read by `ledger`, `listing`, `deletion`.
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
    at_revision,
    history_prefix,
    kind_of,
    nameable,
    observations_key,
    opened,
    removal,
    telemetry_key,
)
from lcm.control.plane.protocol import R, Ref
from lcm.control.telemetry.alert_records import Alerts, board
from lcm.model.base.errors import Conflict, TooLarge
from lcm.model.base.event import Event, encode
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import SESSION, LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import ABSENT, Check, Delete, Entry, Op, Put, Store, everything


@dataclass(frozen=True, slots=True)
class Hanging:
    """How the store forgets what hangs on an object, and what that means to the outside."""

    ops: Sequence[Op] = ()
    told: Sequence[Event] = ()


def hangs(key: str) -> bool:
    """Tell whether a key holds what hangs on an object."""
    return key.startswith((TELEMETRY, ALERTS, OBSERVATIONS))


async def hanging(store: Store, resource: Resource, now: datetime) -> Hanging:
    """Find what goes with an object."""
    raised = await board(store, alerts_key(resource))
    gone: list[Op] = [Delete(raised.key, at=raised.revision)] if raised.revision else [Check(raised.key, 0)]
    if isinstance(resource, LabWorker):
        # Each report writes the newest measurements: unless those changed, there is no other history than this.
        newest = await store.get(key := telemetry_key(resource))
        gone.append(Delete(key, at=newest.revision) if newest else Check(key, 0))
        chunks = await everything(store, history_prefix(resource))
        gone += [Delete(entry.key) for entry in chunks.entries]
    if isinstance(resource, LabletDefinition):
        samples = await store.get(key := observations_key(resource))
        gone.append(Delete(key, at=samples.revision) if samples else Check(key, 0))
    return Hanging(gone, raised.told(Alerts(), now))


PREFIX: Final = "archive/"
"""By when they ended, so that the oldest are found first."""
NAMES: Final = "archive-names/"
"""Where those of one name are, the newest last."""
_KIND: Final = KINDS[LabletSession.__name__]
_ENDED: Final = tuple(f'"phase":"{phase}"'.encode() for phase in SESSION.final)
_AT_ONCE: Final = 16
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_PAGE: Final = 200


class End(NamedTuple):
    """When a session ended, as one state of it says."""

    state: int
    """A hash of its bytes: a store that was restored may use a revision again."""
    at: datetime


Ends = dict[str, End]
"""By key."""


def archived_prefix(kind: type[R]) -> str:
    """Say below which keys the archived objects of a kind are."""
    return f"{PREFIX}{KINDS[kind.__name__].plural}/"


def ended_at(session: LabletSession) -> datetime | None:
    """Say when a session ended; None while it lives, or is to be deleted with its end."""
    status = session.status
    if status.phase not in SESSION.final or not status.history or session.metadata.deletion_timestamp is not None:
        return None
    return status.history[-1].at


def is_archived(record: Record[R]) -> bool:
    """Tell whether an object was found in the archive."""
    return record.key.startswith(PREFIX)


async def recalled(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read an archived object by its uid, or else the newest of its name; None means that there is none."""
    if ref.kind is not LabletSession or not nameable(ref):
        return None
    named = await store.get(UIDS + ref.name)
    key = named.value.decode() if named else ""
    if not key.startswith(archived_prefix(ref.kind)):
        return await latest(store, ref)
    record = await _read(store, key, ref)
    return record if record and record.resource.metadata.namespace == ref.namespace else None


async def latest(store: Store, ref: Ref[R]) -> Record[R] | None:
    """Read the archived object of a name that ended last; None means that there is none."""
    if ref.kind is not LabletSession:
        return None
    prefix = f"{NAMES}{ref.known.plural}/{ref.namespace}/{ref.name}/"
    page = await store.scan(prefix)
    while page.next is not None:
        page = await store.scan(prefix, cursor=page.next)
    return await _read(store, page.entries[-1].value.decode(), ref) if page.entries else None


async def _read(store: Store, key: str, ref: Ref[R]) -> Record[R] | None:
    entry = await store.get(key)
    return Record(opened(entry, ref.kind), entry) if entry else None


def forgetting(record: Record[R]) -> Sequence[Op]:
    """Say how the store forgets an archived object, which nobody can have changed, and the ways to it."""
    resource, place = record.resource, record.key.removeprefix(archived_prefix(type(record.resource)))
    ways = Delete(UIDS + resource.metadata.uid), Delete(_name_key(resource, place))
    return Delete(record.key), *ways


async def move(store: Store, now: datetime, before: datetime, ends: Ends | None = None) -> int:
    """Move the sessions that ended before a moment into the archive, and say how many. May be repeated.

    Who repeats it gives the same `ends` each time, and reads each state of a session once.
    """
    moved, seen = 0, Ends()
    page = await store.scan(f"{_KIND.plural}/", limit=_PAGE)
    while True:
        seen.update((entry.key, _end(entry, ends or {})) for entry in page.entries)
        due = [_session(entry) for entry in page.entries if seen[entry.key].at < before]
        for first in range(0, len(due), _AT_ONCE):
            moved += await _move(store, due[first : first + _AT_ONCE], now)
        if page.next is None:
            break
        page = await store.scan(f"{_KIND.plural}/", limit=_PAGE, cursor=page.next)
    if ends is not None:
        ends.clear()
        ends.update(seen)
    return moved


def _end(entry: Entry, ends: Ends) -> End:
    end, state = ends.get(entry.key), hash(entry.value)
    if end is not None and end.state == state:
        return end
    # What has ended says so somewhere, which is found out far sooner than what else it says.
    ended = ended_at(_session(entry).resource) if any(phase in entry.value for phase in _ENDED) else None
    return End(state, ended or _NEVER)


def _session(entry: Entry) -> Record[LabletSession]:
    return Record(at_revision(CODEC.decode(entry.value, LabletSession), entry.revision), entry)


async def _move(store: Store, several: Sequence[Record[LabletSession]], now: datetime) -> int:
    ops, told = list[Op](), list[bytes]()
    for record in several:
        hangs = await hanging(store, record.resource, now)
        ops += [*_moving(record), *hangs.ops]
        told += map(encode, hangs.told)
    try:
        await store.commit(*ops, events=told)
    except (Conflict, TooLarge):
        # Somebody changed one of them meanwhile, or they are large: the others do not wait for that one.
        return sum([await _move(store, [one], now) for one in several]) if len(several) > 1 else 0
    return len(several)


def _moving(record: Record[LabletSession]) -> Iterator[Op]:
    session, ended = record.resource, ended_at(record.resource)
    assert ended is not None, "only what has ended goes there"
    place = f"{ended.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}-{session.metadata.uid}"
    key = archived_prefix(LabletSession) + place
    yield from (op for op in removal(record) if op.key != UIDS + session.metadata.uid)
    yield Put(UIDS + session.metadata.uid, key.encode())
    yield Put(key, record.entry.value, record.entry.labels, at=ABSENT)
    yield Put(_name_key(session, place), key.encode())


async def sweep(store: Store, before: datetime) -> int:
    """Forget the archived sessions that ended before a moment, and say how many those were. May be repeated."""
    swept, prefix = 0, archived_prefix(LabletSession)
    end = f"{prefix}{before.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
    while True:
        page = await store.scan(prefix, limit=_AT_ONCE)
        old = [Record(opened(entry, LabletSession), entry) for entry in page.entries if entry.key < end]
        if old:
            await store.commit(*(op for one in old for op in forgetting(one)))
        swept += len(old)
        if len(old) < _AT_ONCE:
            return swept


def _name_key(resource: Resource, place: str) -> str:
    metadata = resource.metadata
    return f"{NAMES}{kind_of(resource).plural}/{metadata.namespace}/{metadata.name}/{place}"
