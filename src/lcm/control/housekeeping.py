"""Keeps the store small: forgets history of more than an hour ago and requests of more than a day ago.

Started by `compose` in every process that serves the plane; several do no harm.
"""

import asyncio
from collections import deque
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control import requests
from lcm.model.clock import Clock
from lcm.model.errors import Conflict, Later
from lcm.store.base import Store

EVERY: Final = timedelta(minutes=10)
HISTORY: Final = timedelta(hours=1)
"""How long a watch may be away and still resume."""

_log: Final = structlog.get_logger()


class Housekeeping:
    """Compacts and sweeps one store."""

    def __init__(self, store: Store, *, clock: Clock, every: timedelta = EVERY, history: timedelta = HISTORY) -> None:
        self._store = store
        self._clock = clock
        self._every = every
        self._history = history
        self._samples: deque[tuple[datetime, int]] = deque()
        """When the store was at which revision, oldest first."""

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
        page = await self._store.scan(requests.PREFIX, limit=1)
        self._samples.append((now, page.revision))
        if (revision := self._old_enough(now)) is not None:
            await self._store.compact(revision)
        if swept := await requests.sweep(self._store, now - requests.KEPT):
            _log.info("old requests forgotten", count=swept)

    def _old_enough(self, now: datetime) -> int | None:
        """Take the newest revision that is older than the history to keep."""
        revision = None
        while self._samples and self._samples[0][0] <= now - self._history:
            revision = self._samples.popleft()[1]
        return revision
