"""Keeps the store small: deletes history, requests, audit records, tokens and sign-in links that have expired.

It also clears the alerts of objects that are well or gone, finishes deletions that were left half-way, and moves
sessions that ended a while ago to the archive. `compose` starts it in every process that serves the plane; several do
no harm. The times at which the store had which revision are kept in the store itself, so that history is compacted even
if no process lives for an hour.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, Self

import structlog

from lcm.control.access import audit, sign_in, tokens
from lcm.control.accounts import stays
from lcm.control.delivery import sinks
from lcm.control.delivery.events import archived_event
from lcm.control.notices import notice_records
from lcm.control.objects import deletion, requests, uploads
from lcm.control.objects.archive import archived_name_key, archived_prefix, archived_removal_ops, find_dependents
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import (
    CODEC,
    DELETED_SESSIONS,
    TRACK_MARKS,
    UIDS,
    Record,
    deletion_moment,
    find_settings,
    forget_cached,
    read_entry,
    removal_ops,
    with_revision,
)
from lcm.control.objects.writer import commit_ops
from lcm.control.plane.protocol import ObjectChange
from lcm.control.telemetry import alerts
from lcm.control.upkeep.forgetting import Retention
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later, StoreFull, TooLarge
from lcm.model.base.event import encode_event
from lcm.model.base.resource import Count, Moment, Part
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store

_SESSION_KIND: Final = KINDS[LabletSession.__name__]
_FINAL_PHASE_BYTES: Final = tuple(f'"phase":"{phase}"'.encode() for phase in SESSION_MACHINE.final)
_BATCH_SIZE: Final = 16
MOST_ENDED: Final = 200
"""How many sessions that have ended stay among the live ones."""
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_PAGE_SIZE: Final = 200


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


class EndedSessions:
    """The sessions among the live ones that have ended, by their keys, in the order in which they ended."""

    def __init__(self) -> None:
        self._ends: dict[str, datetime] = {}
        self._order: list[tuple[datetime, str]] = []

    @classmethod
    def follow(cls, cache: Cache) -> Self:
        """Follow a cache of sessions from its first list on: what has ended is known without another look at all."""
        made = cls()
        cache.subscribe(made._on_change)
        return made

    @classmethod
    async def scan(cls, store: Store) -> Self:
        """Find them in a store."""
        made, page = cls(), await store.scan(_SESSION_KIND.prefix, limit=_PAGE_SIZE)
        while True:
            for entry in page.entries:
                # Searching the bytes for a final phase is much faster than decoding every session.
                if any(phase in entry.value for phase in _FINAL_PHASE_BYTES):
                    made._record(entry.key, ended_at(_read_session(entry).resource))
            if page.next is None:
                return made
            page = await store.scan(_SESSION_KIND.prefix, limit=_PAGE_SIZE, cursor=page.next)

    def find_due(self, before: datetime) -> Sequence[str]:
        """Return those to move: every cache holds the ones that stay, so their number is limited."""
        over = max(bisect_left(self._order, (before, "")), len(self._order) - MOST_ENDED)
        return [key for _, key in self._order[: max(over, 0)]]

    def is_ended(self, record: Record[LabletSession]) -> bool:
        """Return whether a session ended when it is known to have ended."""
        return ended_at(record.resource) == self._ends.get(record.key, _NEVER)

    def _on_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is LabletSession:
            self._record(seen.ref.key, ended_at(seen.resource) if isinstance(seen.resource, LabletSession) else None)

    def _record(self, key: str, ended: datetime | None) -> None:
        known = self._ends.pop(key, None)
        if known is not None:
            del self._order[bisect_left(self._order, (known, key))]
        if ended is not None:
            self._ends[key] = ended
            insort(self._order, (ended, key))


async def archive_ended(store: Store, now: datetime, before: datetime, ended: EndedSessions | None = None) -> int:
    """Move the sessions that ended before a moment into the archive, and all but those that ended last.

    Return how many were moved. May be repeated. Without `ended` all sessions are looked at.
    """
    ended = ended or await EndedSessions.scan(store)
    due, moved = ended.find_due(before), 0
    for first in range(0, len(due), _BATCH_SIZE):
        found = [await store.get(key) for key in due[first : first + _BATCH_SIZE]]
        # One that is no longer as it was seen is looked at the next time.
        same = [one for one in map(_read_session, filter(None, found)) if ended.is_ended(one)]
        moved += await _archive_batch(store, same, now) if same else 0
    return moved


def _read_session(entry: Entry) -> Record[LabletSession]:
    return Record(with_revision(CODEC.decode(entry.value, LabletSession), entry.revision), entry)


async def _archive_batch(store: Store, several: Sequence[Record[LabletSession]], now: datetime) -> int:
    ops, told = list[Op](), list[bytes]()
    for record in several:
        hangs = await find_dependents(store, record.resource, now)
        ops += [*_archive_ops(record), *hangs.ops]
        told += map(encode_event, (*hangs.events, archived_event(record.resource, now=now)))
    try:
        await commit_ops(store, *ops, events=told)
    except (Conflict, TooLarge):
        # One of them was changed meanwhile, or the batch is too large: move the others without it.
        return sum([await _archive_batch(store, [one], now) for one in several]) if len(several) > 1 else 0
    for record in several:
        forget_cached(record.key)
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


INTERVAL: Final = timedelta(minutes=10)
UPLOADS_INTERVAL: Final = timedelta(hours=1)
FORGET_INTERVAL: Final = timedelta(hours=1)
ARCHIVE_INTERVAL: Final = timedelta(minutes=1)
HISTORY_RETENTION: Final = timedelta(hours=1)
"""How long a watch may be disconnected and still resume."""
ARCHIVE_AFTER: Final = timedelta(days=1)
"""How long a session that has ended stays among the live ones."""
ARCHIVE_RETENTION: Final = timedelta(days=365)
"""How long an archived session is kept after its end."""
STAYS_KEPT: Final = timedelta(days=400)
"""How long it is kept who used the machines, to whole months; the bills themselves stay."""
SAMPLES_KEY: Final = "housekeeping/samples"

_MOST_SAMPLES: Final = 100
_SWEEP_PAGE_SIZE: Final = 100
_LONGEST_REST: Final = timedelta(days=1)
"""Records are read at least so often: one that is new may tell of a moment long ago."""
_OLDEST_FIRST: Final = frozenset({audit.AUDIT_PREFIX, stays.STAYS, stays.STAY_COSTS})
"""Records whose keys are in the order of their age: behind the first that is kept, all are."""

_log: Final = structlog.get_logger()


def _is_older_stay(entry: Entry, before: datetime) -> bool:
    return stays.is_older_stay(entry.key, before)


class RevisionSample(Part):
    """The store's revision at a moment."""

    at: Moment
    revision: Count


class RevisionSamples(Part):
    """Samples of one history, oldest first."""

    epoch: str
    samples: tuple[RevisionSample, ...] = ()


class Housekeeping:
    """Compacts and sweeps one store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        every: timedelta = INTERVAL,
        archive_every: timedelta = ARCHIVE_INTERVAL,
        history: timedelta = HISTORY_RETENTION,
        audit_kept: timedelta = audit.AUDIT_KEPT,
        linger: timedelta = ARCHIVE_AFTER,
        archived: timedelta = ARCHIVE_RETENTION,
        artifacts: Artifacts | None = None,
        cache: Cache | None = None,
    ) -> None:
        """Keep a store; `cache` is one of its sessions that is not run yet, without which all are read each time."""
        self._store = store
        self._clock = clock
        self._every = every
        self._archive_every = archive_every
        self._history = history
        self._audit_kept = audit_kept
        self._linger = linger
        self._archived = archived
        self._ended = EndedSessions.follow(cache) if cache else None
        self._artifacts = artifacts
        self._uploads_swept_at: datetime | None = None
        self._retention = Retention(store, artifacts)
        self._forgot_at: datetime | None = None
        self._due: dict[str, datetime] = {}
        """When the first record below a prefix can be too old, of those that are kept for a time."""

    async def run(self) -> None:
        """Tidy up periodically, and archive more often, until cancelled."""
        turns = max(self._every // self._archive_every, 1)
        for turn in count():
            try:
                await (self.tidy() if turn % turns == 0 else self.archive())
            except (Later, Conflict) as error:
                _log.warning("housekeeping put off", error=str(error))
            await asyncio.sleep(self._every.total_seconds() / turns)

    async def archive(self) -> int:
        """Move sessions that ended to the archive, and return how many."""
        now = self._clock.now()
        return await archive_ended(self._store, now, now - self._linger, self._ended)

    async def tidy(self) -> None:
        """Delete once what is old enough."""
        now = self._clock.now()
        if (revision := await self._find_compactable(now)) is not None:
            needed = await sinks.oldest_needed_revision(self._store, now)
            await self._store.compact(revision if needed is None else min(revision, needed))
        swept = {
            "alerts": await alerts.sweep_alerts(self._store, now),
            "deletions_left_half_way": await deletion.finish_deletions(self._store, clock=self._clock),
            "requests": await self._sweep_old(requests.PREFIX, requests.request_moment, requests.RETENTION),
            "tokens": await self._sweep(tokens.TOKENS_PREFIX, tokens.is_expired_token, now),
            "sign_in_links": await self._sweep(tokens.SIGN_INS_PREFIX, sign_in.is_expired_code, now),
            "used_sign_ins": await self._sweep(tokens.USED_SIGN_INS_PREFIX, sign_in.is_expired_use, now),
            "sessions_archived": await self.archive(),
            "archived_sessions": await sweep_archive(self._store, now - self._archived),
            "deleted_sessions": await self._sweep_old(DELETED_SESSIONS, deletion_moment, self._archived),
            "notices": await self._sweep(
                notice_records.NOTICES, notice_records.is_old_record, now - notice_records.RECORDS_KEPT
            ),
            "audit_records": await self._sweep(audit.AUDIT_PREFIX, audit.is_older_record, now - self._audit_kept),
            "stays": await self._sweep(stays.STAYS, _is_older_stay, now - STAYS_KEPT),
            "stay_costs": await self._sweep(stays.STAY_COSTS, _is_older_stay, now - STAYS_KEPT),
            "uploads": await self._sweep_uploads(now),
            "documents_without_names": await self._forget_old(now),
            "track_marks": await self._sweep(TRACK_MARKS, lambda *_: True, now),
        }
        if any(swept.values()):
            _log.info("store tidied", **swept)

    async def _sweep_uploads(self, now: datetime) -> int:
        """Remove the uploads that nothing refers to, if that was not done lately: it lists every file."""
        last = self._uploads_swept_at
        if self._artifacts is None or (last is not None and now - last < UPLOADS_INTERVAL):
            return 0
        self._uploads_swept_at = now
        return await uploads.sweep_uploads(self._store, self._artifacts, now)

    async def _forget_old(self, now: datetime) -> int:
        """Forget those who are named in what ended long ago, if the settings say so and it was not done lately."""
        last = self._forgot_at
        if last is not None and now - last < FORGET_INTERVAL:
            return 0
        self._forgot_at = now
        settings = await find_settings(self._store)
        days = settings.spec.privacy.retention_days if settings else None
        return await self._retention.forget_before(now - timedelta(days=days)) if days else 0

    async def _sweep_old(self, prefix: str, moment_of: Callable[[Entry], datetime], kept: timedelta) -> int:
        """Delete the records that are older than they are kept; return how many. None is read before one can be."""
        now = oldest = self._clock.now()
        if now < self._due.get(prefix, now):
            return 0

        def is_over(entry: Entry, moment: datetime) -> bool:
            nonlocal oldest
            at = moment_of(entry)
            oldest = oldest if at < moment else min(oldest, at)
            return at < moment

        swept = await self._sweep(prefix, is_over, now - kept)
        self._due[prefix] = now + min(oldest + kept - now, _LONGEST_REST)
        return swept

    async def _sweep(self, prefix: str, is_over: Callable[[Entry, datetime], bool], moment: datetime) -> int:
        """Delete the records that are over by a moment, a page in a commit; return how many there were."""
        swept, page = 0, await self._store.scan(prefix, limit=_SWEEP_PAGE_SIZE)
        while True:
            over = [entry for entry in page.entries if is_over(entry, moment)]
            if over:
                await commit_ops(self._store, *(Delete(entry.key, at=entry.revision) for entry in over))
            swept += len(over)
            if page.next is None or (prefix in _OLDEST_FIRST and len(over) < len(page.entries)):
                return swept
            page = await self._store.scan(prefix, limit=_SWEEP_PAGE_SIZE, cursor=page.next)

    async def _find_compactable(self, now: datetime) -> int | None:
        """Return the newest revision known to be older than the history to keep; None when there is none."""
        page = await self._store.scan(SAMPLES_KEY, limit=1)
        entry = page.entries[0] if page.entries else None
        found = CODEC.decode(entry.value, RevisionSamples) if entry else None
        # Samples from another history, or from a clock that was far ahead, are of no use.
        usable = found.samples if found and found.epoch == self._store.epoch else ()
        known = [sample for sample in usable if sample.at <= now + self._every]
        old = [sample for sample in known if sample.at <= now - self._history]
        kept = [*old[-1:], *known[len(old) :]]
        if not kept or kept[-1].at <= now - self._every / 2:
            fresh = RevisionSamples(
                epoch=self._store.epoch,
                samples=(*kept[1 - _MOST_SAMPLES :], RevisionSample(at=now, revision=page.revision)),
            )
            at = entry.revision if entry else ABSENT
            with suppress(StoreFull):  # what makes room in a full store must not wait for a write
                await commit_ops(self._store, Put(SAMPLES_KEY, CODEC.encode(fresh), at=at))
        return old[-1].revision if old else None
