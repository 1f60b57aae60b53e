"""Who claims which seat, which sessions are on which worker: kept up to date by the cache. Derived, so never lost."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcm.control.cache import Cache
from lcm.control.plane import Ref, Seen, ref_of
from lcm.model.kinds import Resource
from lcm.model.pool import LabWorkerPool, WorkerTemplate
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession, worker_of
from lcm.model.worker import LabWorker
from lcm.placement.request import Held
from lcm.placement.roster import held_by

PoolRef = Ref[LabWorkerPool]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim on a seat; `worker_id` is set once its session has a worker."""

    number: int
    held: Held
    worker_id: str | None = None


class Book:
    """Claims by pool, and sessions by the uid of their worker."""

    def __init__(self, cache: Cache) -> None:
        """Follow a cache of all that a pool is made of, which is ready."""
        self._cache = cache
        self._claims: defaultdict[PoolRef, dict[str, Claimed]] = defaultdict(dict)
        self._versions: defaultdict[PoolRef, int] = defaultdict(int)
        self._booked: dict[Ref[Any], list[tuple[PoolRef, str]]] = {}
        self._on: defaultdict[str, dict[Ref[LabletSession], LabletSession]] = defaultdict(dict)
        self._where: dict[Ref[LabletSession], str] = {}
        self._told: Callable[[PoolRef], object] | None = None
        for kind in (LabletSession, Reservation):
            for booking in cache.all(kind):
                self._note(Seen(ref_of(booking), booking))
        self.stop = cache.subscribe(self._note)

    def tell(self, changed: Callable[[PoolRef], object]) -> None:
        """Say from now on of each pool that what concerns it changed."""
        self._told = changed

    def claims(self, pool: PoolRef) -> Sequence[Claimed]:
        """Give the claims on a pool's seats."""
        return list(self._claims[pool].values()) if pool in self._claims else []

    def version(self, pool: PoolRef) -> int:
        """Give a number that changes with a pool's claims."""
        return self._versions[pool]

    def sessions_on(self, worker_id: str) -> Sequence[LabletSession]:
        """Give the sessions that are on a worker or promised to it."""
        return list(self._on[worker_id].values()) if worker_id in self._on else []

    def pools(self) -> Mapping[PoolRef, LabWorkerPool]:
        """Give all pools by name."""
        return {ref_of(pool): pool for pool in self._cache.all(LabWorkerPool)}

    def _note(self, seen: Seen) -> None:
        kind = seen.ref.kind
        if kind in {LabletSession, Reservation}:
            self._book(seen.ref, seen.resource)
        if kind is LabletSession:
            self._place(seen.ref, seen.resource if isinstance(seen.resource, LabletSession) else None)
        elif kind in {LabWorker, WorkerTemplate} and self._told is not None:
            for pool in self.pools():
                if pool.namespace == seen.ref.namespace:
                    self._told(pool)

    def _book(self, ref: Ref[Any], booking: Resource | None) -> None:
        before = {(pool, name): self._claims[pool].pop(name) for pool, name in self._booked.pop(ref, ())}
        now = dict(_claimed(ref, booking)) if isinstance(booking, LabletSession | Reservation) else {}
        for (pool, name), one in now.items():
            self._claims[pool][name] = one
        if now:
            self._booked[ref] = list(now)
        changed = [place for place in dict.fromkeys([*before, *now]) if before.get(place) != now.get(place)]
        for pool in dict.fromkeys(pool for pool, _ in changed):
            self._versions[pool] += 1
            if self._told is not None:
                self._told(pool)

    def _place(self, ref: Ref[LabletSession], session: LabletSession | None) -> None:
        before = self._where.pop(ref, None)
        if before is not None:
            self._on[before].pop(ref, None)
        worker_id = worker_of(session) if session else None
        if session is not None and worker_id is not None:
            self._on[worker_id][ref] = session
            self._where[ref] = worker_id


def _claimed(ref: Ref[Any], booking: LabletSession | Reservation) -> dict[tuple[PoolRef, str], Claimed]:
    worker_id = booking.status.worker_id if isinstance(booking, LabletSession) else None
    return {
        (Ref(LabWorkerPool, pool, ref.namespace), held.holder): Claimed(number, held, worker_id)
        for pool, number, held in held_by(booking)
    }
