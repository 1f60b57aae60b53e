"""Asks the plane, again and again, whether workers that serve are idle. The plane judges, the lifecycle pauses."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, Ref, Seen, WorkerRef, ref_of
from lcm.model.base.errors import Conflict, Gone, Later, Refused
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import ON_WORKER, LabletSession, SessionPhase, needs_its_worker
from lcm.model.kinds.worker import HOSTING, LabWorker
from lcm.model.telemetry.idle import SESSIONS
from lcm.settings.load import Settings

LIVE: Final = ON_WORKER | {SessionPhase.SCHEDULED}
"""Phases in which a session needs its worker."""


class Occupants:
    """Sessions by the uid of their worker."""

    def __init__(self, cache: Cache) -> None:
        """Follow a cache of sessions and workers, which is ready."""
        self._on: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._where: dict[Ref[LabletSession], str] = {}
        self._told: Callable[[Ref[LabWorker]], object] | None = None
        self._workers: dict[str, Ref[LabWorker]] = {}
        self._uids: dict[Ref[LabWorker], str] = {}
        for worker in cache.all(LabWorker):
            self._know(ref_of(worker), worker)
        for session in cache.all(LabletSession):
            self._place(ref_of(session), session)
        self.stop = cache.subscribe(self._note)

    def tell(self, changed: Callable[[Ref[LabWorker]], object]) -> None:
        """Say from now on of each worker that its sessions changed."""
        self._told = changed

    def of(self, worker: LabWorker, now: datetime, horizon: timedelta) -> Sequence[LabletSession]:
        """List the sessions of a worker that need it now, or before it could be back if it were stopped, by name."""
        mine = self._on.get(worker.metadata.uid, {}).values()
        needed = [one for one in mine if needs_its_worker(one, now, horizon)]
        return sorted(needed, key=lambda one: (one.metadata.namespace, one.metadata.name))

    def any_on(self, worker: LabWorker) -> bool:
        """Tell whether a session is on a worker now."""
        return any(one.status.phase in ON_WORKER for one in self._on.get(worker.metadata.uid, {}).values())

    def _note(self, seen: Seen) -> None:
        if seen.ref.kind is LabletSession:
            self._place(seen.ref, seen.resource if isinstance(seen.resource, LabletSession) else None)
        elif seen.ref.kind is LabWorker:
            self._know(seen.ref, seen.resource if isinstance(seen.resource, LabWorker) else None)

    def _know(self, ref: Ref[LabWorker], worker: LabWorker | None) -> None:
        uid = worker.metadata.uid if worker else None
        if (before := self._uids.get(ref)) == uid:
            return
        if before is not None:
            del self._workers[before], self._uids[ref]
        if uid is not None:
            self._workers[uid] = ref
            self._uids[ref] = uid

    def _place(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        before = self._where.pop(ref, None)
        if before is not None:
            self._on[before].pop(ref, None)
        now = session.status.worker_id if session is not None and session.status.phase in LIVE else None
        if session is not None and now is not None:
            self._on[now][ref] = session
            self._where[ref] = now
        if self._told is not None:
            for uid in {before, now}:
                if uid in self._workers:
                    self._told(self._workers[uid])


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
