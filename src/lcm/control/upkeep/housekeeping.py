"""Keeps the store small: forgets history, requests, audit records, tokens and sign-in links whose time is over.

It also finishes deletions that were left half-way, and moves sessions that ended a while ago to the archive. Started by
`compose` in every process that serves the plane; several do no harm. When the store was at which revision is kept in
the store itself, so that processes that never live for an hour forget as well.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.access import audit, sign_in, tokens
from lcm.control.delivery import sinks
from lcm.control.objects import deletion, requests
from lcm.control.upkeep import archive
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Later
from lcm.model.base.resource import Count, Moment, Part
from lcm.store.base import ABSENT, Put, Store
from lcm.store.codec import Codec

EVERY: Final = timedelta(minutes=10)
HISTORY: Final = timedelta(hours=1)
"""How long a watch may be away and still resume."""
LINGER: Final = timedelta(days=1)
"""How long a session that has ended stays among the live ones."""
ARCHIVED: Final = timedelta(days=365)
"""How long it is kept after its end."""
SAMPLES: Final = "housekeeping/samples"

_MOST: Final = 100
_CODEC: Final = Codec()
_log: Final = structlog.get_logger()


class Sample(Part):
    """When the store was at which revision."""

    at: Moment
    revision: Count


class Samples(Part):
    """Samples of one history, oldest first."""

    epoch: str
    samples: tuple[Sample, ...] = ()


class Housekeeping:
    """Compacts and sweeps one store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        every: timedelta = EVERY,
        history: timedelta = HISTORY,
        audit_kept: timedelta = audit.KEPT,
        linger: timedelta = LINGER,
        archived: timedelta = ARCHIVED,
    ) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._history = history
        self._audit_kept = audit_kept
        self._linger = linger
        self._archived = archived
        self._ends = archive.Ends()

    async def run(self) -> None:
        """Tidy up again and again, until it is cancelled."""
        while True:
            try:
                await self.tidy()
            except (Later, Conflict) as error:
                _log.warning("housekeeping put off", error=str(error))
            await asyncio.sleep(self._every.total_seconds())

    async def tidy(self) -> None:
        """Forget what is old enough, once."""
        now = self._clock.now()
        if (revision := await self._old_enough(now)) is not None:
            needed = await sinks.oldest_needed(self._store, now)
            await self._store.compact(revision if needed is None else min(revision, needed))
        swept = {
            "deletions_left_half_way": await deletion.finish_deletions(self._store, clock=self._clock),
            "requests": await requests.sweep(self._store, now - requests.KEPT),
            "tokens": await tokens.sweep(self._store, now),
            "sign_in_links": await sign_in.sweep(self._store, now),
            "sessions_archived": await archive.move(self._store, now, now - self._linger, self._ends),
            "archived_sessions": await archive.sweep(self._store, now - self._archived),
            "audit_records": await audit.sweep(self._store, now - self._audit_kept),
        }
        if any(swept.values()):
            _log.info("store tidied", **swept)

    async def _old_enough(self, now: datetime) -> int | None:
        """Take the newest revision that is known to be older than the history to keep; None when there is none."""
        page = await self._store.scan(SAMPLES, limit=1)
        entry = page.entries[0] if page.entries else None
        known = self._known(entry.value if entry else None, now)
        old = [sample for sample in known if sample.at <= now - self._history]
        kept = [*old[-1:], *known[len(old) :]]
        if not kept or kept[-1].at <= now - self._every / 2:
            fresh = Samples(
                epoch=self._store.epoch, samples=(*kept[1 - _MOST :], Sample(at=now, revision=page.revision))
            )
            at = entry.revision if entry else ABSENT
            await self._store.commit(Put(SAMPLES, _CODEC.encode(fresh), at=at))
        return old[-1].revision if old else None

    def _known(self, value: bytes | None, now: datetime) -> Sequence[Sample]:
        """Read what was sampled; what a clock wrote that was far ahead says nothing, nor does another history."""
        found = _CODEC.decode(value, Samples) if value else None
        if found is None or found.epoch != self._store.epoch:
            return []
        return [sample for sample in found.samples if sample.at <= now + self._every]
