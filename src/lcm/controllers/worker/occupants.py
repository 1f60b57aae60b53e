"""Which sessions are on which worker, kept up to date by the cache. Derived, so that failover loses nothing."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.control.cache import Cache
from lcm.control.plane import Ref, Seen, ref_of
from lcm.model.session import ON_WORKER, LabletSession, SessionPhase, needs_its_worker
from lcm.model.worker import LabWorker

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
