"""Which sessions are on which worker, and the periodic question whether workers are idle. Used by `controller`.

`Occupants` is derived from the cache, so a failover loses nothing. `IdleDetection` asks the plane about each serving
worker: the plane judges, the lifecycle pauses.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Self

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, Plane, Ref, WorkerRef, ref_of
from lcm.model.base.errors import Conflict, Gone, Later, Refused
from lcm.model.base.resource import Truth
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, has_same_hold, needs_its_worker, worker_of
from lcm.model.kinds.worker import HOSTING_PHASES, LabWorker
from lcm.model.telemetry.idle import SESSIONS
from lcm.settings.load import Settings


class Occupants:
    """The sessions of each worker, by the worker's uid."""

    def __init__(self) -> None:
        self._sessions: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._worker_uids: dict[Ref[LabletSession], str] = {}
        self._subscriber: OnOccupants | None = None
        self._workers: dict[str, Ref[LabWorker]] = {}
        self._uids: dict[Ref[LabWorker], str] = {}
        self.stop: Callable[[], None] = lambda: None

    @classmethod
    async def follow(cls, cache: Cache) -> Self:
        """Follow a cache of sessions and workers, which is ready, until `stop` is called."""
        made = cls()
        made.stop = await cache.replay(made._on_change, [LabWorker, LabletSession])
        return made

    def subscribe(self, changed: "OnOccupants") -> None:
        """Call `changed` with each worker whose sessions, or what they need of it, change from now on.

        It is also told whether the session was on the worker all the time, and claims of it what it did.
        """
        self._subscriber = changed

    def of(self, worker: LabWorker, now: datetime, horizon: timedelta) -> Sequence[LabletSession]:
        """List by name the sessions that need a worker now, or before it could be back if it were stopped."""
        needed = [one for one in self.on(worker) if needs_its_worker(one, now, horizon)]
        return sorted(needed, key=lambda one: (one.metadata.namespace, one.metadata.name))

    def on(self, worker: LabWorker) -> Iterable[LabletSession]:
        """Return the sessions that have a worker, in no particular order."""
        return self._sessions.get(worker.metadata.uid, {}).values()

    def has_session(self, worker: LabWorker) -> bool:
        """Return whether a session is on a worker now."""
        return any(one.status.phase in ON_WORKER_PHASES for one in self.on(worker))

    def expects_session(self, worker: LabWorker) -> bool:
        """Return whether a session is to come to a worker later."""
        return any(one.status.phase not in ON_WORKER_PHASES for one in self.on(worker))

    def _on_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is LabletSession:
            self._track_session(seen)
        elif seen.ref.kind is LabWorker:
            self._track_worker(seen.ref, seen.resource if isinstance(seen.resource, LabWorker) else None)

    def _track_worker(self, ref: Ref[LabWorker], worker: LabWorker | None) -> None:
        uid = worker.metadata.uid if worker else None
        if (before := self._uids.get(ref)) == uid:
            return
        if before is not None:
            del self._workers[before], self._uids[ref]
        if uid is not None:
            self._workers[uid] = ref
            self._uids[ref] = uid

    def _track_session(self, seen: ObjectChange) -> None:
        ref, session = seen.ref, seen.resource if isinstance(seen.resource, LabletSession) else None
        before, now = self._worker_uids.get(ref), worker_of(session) if session is not None else None
        if before is not None and before != now:
            del self._sessions[before][ref], self._worker_uids[ref]
        if session is not None and now is not None:
            self._sessions[now][ref] = session
            self._worker_uids[ref] = now
        if self._subscriber is not None and (before or now) and _needs_of(seen.before) != _needs_of(session):
            stays = _is_on_worker(seen.before) and _is_on_worker(session) and has_same_hold(seen.before, session)
            for uid in {before, now}:
                if uid in self._workers:
                    self._subscriber(self._workers[uid], stays)


OnOccupants = Callable[[Ref[LabWorker], bool], object]
"""Called with a worker, and whether nothing changed there but how far a session is."""


def _is_on_worker(session: Resource | None) -> bool:
    return isinstance(session, LabletSession) and session.status.phase in ON_WORKER_PHASES


def _needs_of(session: Resource | None) -> object:
    """Return what of a session concerns its worker and others there; how far its start is does not."""
    if not isinstance(session, LabletSession):
        return None
    status = session.status
    return (
        (worker_of(session), status.phase, status.claim, status.conditions, status.allocated_ports),
        (session.spec, session.metadata.deletion_timestamp),
    )


_log: Final = structlog.get_logger()


_JUDGED_AT_ONCE: Final = 20
"""So many workers are judged one right after the other; between them and the next there is a pause."""
STANDING_EVERY: Final = 10
"""A worker that its pool always keeps is judged once in so many intervals."""


class IdleDetection:
    """Has every worker judged once per interval, except those that cannot be idle and were judged so already."""

    def __init__(self, plane: Plane, cache: Cache, occupants: Occupants, *, settings: Callable[[], Settings]) -> None:
        self._plane = plane
        self._cache = cache
        self._occupants = occupants
        self._settings = settings
        self._judged_versions: dict[WorkerRef, int] = {}
        """The resource version at which each worker was last judged."""
        self._round = 0

    async def run(self) -> None:
        """Judge forever. What cannot be judged now is judged in the next round."""
        await self._cache.ready()
        while True:
            workers = [one for one in self._cache.all(LabWorker) if one.status.phase in HOSTING_PHASES]
            pauses = -(-len(workers) // _JUDGED_AT_ONCE) + 1
            seconds = self._settings().idle_check_interval / pauses
            known, standing = {ref_of(one) for one in workers}, self._standing_workers()
            self._round += 1
            self._judged_versions = {ref: version for ref, version in self._judged_versions.items() if ref in known}
            for place, worker in enumerate(workers):
                if place % _JUDGED_AT_ONCE == 0:
                    await asyncio.sleep(seconds)
                await self._judge(worker, is_standing=worker.metadata.uid in standing)
            await asyncio.sleep(seconds)

    def _standing_workers(self) -> frozenset[str]:
        """Return the uids of the workers that their pools always keep."""
        return frozenset(
            seat.worker_id
            for pool in self._cache.all(LabWorkerPool)
            for seat in pool.status.seats
            if seat.number <= pool.spec.min_workers
        )

    async def _judge(self, worker: LabWorker, *, is_standing: bool) -> None:
        ref = ref_of(worker)
        now = self._cache.get(ref) or worker
        if self._is_plainly_in_use(now) or (is_standing and self._was_judged(now) and self._round % STANDING_EVERY):
            return
        try:
            await self._plane.detect_idle(ref)
            self._judged_versions[ref] = now.metadata.resource_version
        except (Conflict, Gone):
            return
        except (Later, Refused) as error:
            _log.warning("idleness not judged", worker=worker.metadata.name, error=str(error))

    def _is_plainly_in_use(self, worker: LabWorker) -> bool:
        """Return whether the worker has sessions, its verdict says so, and nothing about it changed since."""
        verdict = worker.status.idle
        if verdict is None or not self._was_judged(worker) or not self._occupants.has_session(worker):
            return False
        return any(one.name == SESSIONS and one.active is Truth.TRUE for one in verdict.signals)

    def _was_judged(self, worker: LabWorker) -> bool:
        """Return whether the worker was judged and nothing about it changed since."""
        return self._judged_versions.get(ref_of(worker)) == worker.metadata.resource_version
