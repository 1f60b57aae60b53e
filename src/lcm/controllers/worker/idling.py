"""Asks the plane, again and again, whether workers that serve are idle. The plane judges, the lifecycle pauses."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from lcm.config import Settings
from lcm.control.cache import Cache
from lcm.control.plane import Plane, ref_of
from lcm.model.errors import Conflict, Gone, Later, Refused
from lcm.model.worker import HOSTING, LabWorker

_log: Final = structlog.get_logger()


class Idling:
    """Has every worker judged once in an interval."""

    def __init__(self, plane: Plane, cache: Cache, *, settings: Callable[[], Settings]) -> None:
        self._plane = plane
        self._cache = cache
        self._settings = settings

    async def run(self) -> None:
        """Judge for ever; what cannot be judged now is judged in the next round."""
        await self._cache.ready()
        while True:
            workers = [one for one in self._cache.all(LabWorker) if one.status.phase in HOSTING]
            span = timedelta(seconds=self._settings().idle_check_interval) / (len(workers) + 1)
            for worker in workers:
                await asyncio.sleep(span.total_seconds())
                await self._judge(worker)
            await asyncio.sleep(span.total_seconds())

    async def _judge(self, worker: LabWorker) -> None:
        try:
            await self._plane.detect_idle(ref_of(worker))
        except (Conflict, Gone):
            return
        except (Later, Refused) as error:
            _log.warning("idleness not judged", worker=worker.metadata.name, error=str(error))
