"""Keeps the store small: deletes history, requests, audit records, tokens and sign-in links that have expired.

It also finishes deletions that were left half-way, and moves sessions that ended a while ago to the archive. `compose`
starts it in every process that serves the plane; several do no harm. The times at which the store had which revision
are kept in the store itself, so that history is compacted even if no process lives for an hour.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.access import audit, sign_in, tokens
from lcm.control.delivery import sinks
from lcm.control.objects import deletion, requests
from lcm.control.objects.writer import commit_ops
from lcm.control.upkeep import archive
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later
from lcm.model.base.resource import Count, Moment, Part
from lcm.store.base import ABSENT, Delete, Entry, Put, Store
from lcm.store.codec import Codec

INTERVAL: Final = timedelta(minutes=10)
HISTORY_RETENTION: Final = timedelta(hours=1)
"""How long a watch may be disconnected and still resume."""
ARCHIVE_AFTER: Final = timedelta(days=1)
"""How long a session that has ended stays among the live ones."""
ARCHIVE_RETENTION: Final = timedelta(days=365)
"""How long an archived session is kept after its end."""
SAMPLES_KEY: Final = "housekeeping/samples"

_MOST_SAMPLES: Final = 100
_SWEEP_PAGE_SIZE: Final = 100
_OLDEST_FIRST: Final = frozenset({audit.AUDIT_PREFIX})
"""Records whose keys are in the order of their age: behind the first that is kept, all are."""
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


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
        history: timedelta = HISTORY_RETENTION,
        audit_kept: timedelta = audit.AUDIT_KEPT,
        linger: timedelta = ARCHIVE_AFTER,
        archived: timedelta = ARCHIVE_RETENTION,
    ) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._history = history
        self._audit_kept = audit_kept
        self._linger = linger
        self._archived = archived
        self._ends = archive.SessionEnds()

    async def run(self) -> None:
        """Tidy up periodically, until cancelled."""
        while True:
            try:
                await self.tidy()
            except (Later, Conflict) as error:
                _log.warning("housekeeping put off", error=str(error))
            await asyncio.sleep(self._every.total_seconds())

    async def tidy(self) -> None:
        """Delete once what is old enough."""
        now = self._clock.now()
        if (revision := await self._find_compactable(now)) is not None:
            needed = await sinks.oldest_needed_revision(self._store, now)
            await self._store.compact(revision if needed is None else min(revision, needed))
        swept = {
            "deletions_left_half_way": await deletion.finish_deletions(self._store, clock=self._clock),
            "requests": await self._sweep(requests.PREFIX, requests.is_older_request, now - requests.RETENTION),
            "tokens": await self._sweep(tokens.TOKENS_PREFIX, tokens.is_expired_token, now),
            "sign_in_links": await self._sweep(sign_in.SIGN_INS_PREFIX, sign_in.is_expired_code, now),
            "sessions_archived": await archive.archive_ended(self._store, now, now - self._linger, self._ends),
            "archived_sessions": await archive.sweep_archive(self._store, now - self._archived),
            "audit_records": await self._sweep(audit.AUDIT_PREFIX, audit.is_older_record, now - self._audit_kept),
        }
        if any(swept.values()):
            _log.info("store tidied", **swept)

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
        known = self._usable_samples(entry.value if entry else None, now)
        old = [sample for sample in known if sample.at <= now - self._history]
        kept = [*old[-1:], *known[len(old) :]]
        if not kept or kept[-1].at <= now - self._every / 2:
            fresh = RevisionSamples(
                epoch=self._store.epoch,
                samples=(*kept[1 - _MOST_SAMPLES :], RevisionSample(at=now, revision=page.revision)),
            )
            at = entry.revision if entry else ABSENT
            await commit_ops(self._store, Put(SAMPLES_KEY, _CODEC.encode(fresh), at=at))
        return old[-1].revision if old else None

    def _usable_samples(self, value: bytes | None, now: datetime) -> Sequence[RevisionSample]:
        """Read the stored samples, without those from a clock that was far ahead or from another history."""
        found = _CODEC.decode(value, RevisionSamples) if value else None
        if found is None or found.epoch != self._store.epoch:
            return []
        return [sample for sample in found.samples if sample.at <= now + self._every]
