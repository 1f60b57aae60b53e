"""The pool controller: of all processes that run one, the elected one follows every pool's demand.

Put together by `compose`. Everything it knows is in the store, so that whoever is elected next goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.config import Settings
from lcm.control.cache import Cache
from lcm.control.plane import Plane
from lcm.controllers.current import Current
from lcm.controllers.election import Election
from lcm.controllers.pool.book import Book
from lcm.controllers.pool.follower import Follower
from lcm.controllers.runtime import Runtime
from lcm.controllers.together import together
from lcm.model.clock import Clock, Stopwatch
from lcm.model.pool import LabWorkerPool, WorkerTemplate
from lcm.model.reservation import Reservation
from lcm.model.session import LabletSession
from lcm.model.settings import SystemSettings
from lcm.model.worker import LabWorker

LEASE: Final = "pool-controller"
KINDS: Final = (LabWorkerPool, WorkerTemplate, LabWorker, LabletSession, Reservation, SystemSettings)


@dataclass(frozen=True, slots=True)
class PoolController:
    """One process's pool controller."""

    plane: Plane
    clock: Clock
    stopwatch: Stopwatch
    chance: Callable[[], float]
    settings: Settings
    holder: str

    async def run(self) -> None:
        """Lead whenever elected, until cancelled."""
        election = Election(
            self.plane,
            LEASE,
            self.holder,
            ttl_seconds=self.settings.worker_controller_leader_lease_ttl,
            stopwatch=self.stopwatch,
            chance=self.chance,
        )
        await election.run(self._lead)

    async def _lead(self, plane: Plane) -> None:
        cache = Cache(plane, *KINDS, chance=self.chance)
        await together(cache.run(), self._work(plane, cache))

    async def _work(self, plane: Plane, cache: Cache) -> None:
        await cache.ready()
        book, settings = Book(cache), Current(self.settings, cache)
        follower = Follower(plane, cache, book, clock=self.clock, terms=settings.terms)
        runtime = Runtime(
            LEASE,
            follower.reconcile,
            cache,
            LabWorkerPool,
            clock=self.clock,
            chance=self.chance,
            resync=lambda: timedelta(seconds=settings().worker_controller_reconcile_interval),
            troubled=follower.troubled,
        )
        book.tell(runtime.poke)
        try:
            await runtime.run()
        finally:
            book.stop()
