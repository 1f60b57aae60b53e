"""Asks the plane, again and again, whether workers that serve are idle. The plane judges, the lifecycle pauses."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog

from lcm.config import Settings
from lcm.control.cache import Cache
from lcm.control.plane import Plane, WorkerRef, ref_of
from lcm.controllers.worker.occupants import Occupants
from lcm.model.errors import Conflict, Gone, Later, Refused
from lcm.model.idle import SESSIONS
from lcm.model.resource import Truth
from lcm.model.worker import HOSTING, LabWorker

_log: Final = structlog.get_logger()


class Idling:
    """Has every worker judged once in an interval, but for those that are plainly in use and were found to be."""

    def __init__(self, plane: Plane, cache: Cache, occupants: Occupants, *, settings: Callable[[], Settings]) -> None:
        self._plane = plane
        self._cache = cache
        self._occupants = occupants
        self._settings = settings
        self._judged: dict[WorkerRef, int] = {}
        """At which version each was judged last."""

    async def run(self) -> None:
        """Judge for ever; what cannot be judged now is judged in the next round."""
        await self._cache.ready()
        while True:
            workers = [one for one in self._cache.all(LabWorker) if one.status.phase in HOSTING]
            span = timedelta(seconds=self._settings().idle_check_interval) / (len(workers) + 1)
            known = {ref_of(one) for one in workers}
            self._judged = {ref: version for ref, version in self._judged.items() if ref in known}
            for worker in workers:
                await asyncio.sleep(span.total_seconds())
                await self._judge(worker)
            await asyncio.sleep(span.total_seconds())

    async def _judge(self, worker: LabWorker) -> None:
        ref = ref_of(worker)
        now = self._cache.get(ref) or worker
        if self._plainly_in_use(now):
            return
        try:
            await self._plane.detect_idle(ref)
            self._judged[ref] = now.metadata.resource_version
        except (Conflict, Gone):
            return
        except (Later, Refused) as error:
            _log.warning("idleness not judged", worker=worker.metadata.name, error=str(error))

    def _plainly_in_use(self, worker: LabWorker) -> bool:
        """Tell whether sessions are on a worker, its verdict says so, and nothing about it changed since."""
        verdict, version = worker.status.idle, worker.metadata.resource_version
        if verdict is None or self._judged.get(ref_of(worker)) != version or not self._occupants.any_on(worker):
            return False
        return any(one.name == SESSIONS and one.active is Truth.TRUE for one in verdict.signals)
