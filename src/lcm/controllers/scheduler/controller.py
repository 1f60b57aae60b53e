"""The scheduler: of all processes that run one, the elected leader gives sessions their places.

Started by `compose`. Everything it knows is in the store, so the next leader continues from there. What it decides is a
proposal: the plane verifies it and commits claim, ports and time together.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane, R, Ref
from lcm.controllers.runtime.election import ElectedController
from lcm.controllers.runtime.reconcile import Requeue, Runtime
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.controllers.scheduler.placement import PlacementLoop
from lcm.controllers.scheduler.reservations import ReservationReconciler
from lcm.controllers.scheduler.reservations import rest_of as rest_of_reservation
from lcm.controllers.scheduler.sessions import SchedulingReconciler, rest_of
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.system.tasks import run_until_first_ends

LEASE: Final = "scheduler"


@dataclass(frozen=True, slots=True)
class SchedulerController(ElectedController):
    """The scheduler of one process."""

    lease = LEASE
    kinds = (LabletSession, LabWorker, LabWorkerPool, WorkerTemplate, LabletDefinition, Reservation, SystemSettings)

    async def run(self) -> None:
        """Lead whenever elected, until cancelled. If the scheduler is disabled in the settings, wait and do nothing."""
        if not self.settings.scheduler_enabled:
            await asyncio.Event().wait()
        await ElectedController.run(self)  # a class with slots is made anew, so that it knows no `super()`

    async def _work(self, plane: Plane, cache: Cache, settings: CurrentSettings) -> None:
        def resync() -> timedelta:
            return timedelta(seconds=settings().scheduler_reconcile_interval)

        placing = PlacementLoop(
            plane, cache, clock=self.clock, stopwatch=self.stopwatch, chance=self.chance, resync=resync
        )
        view = await SchedulerView.follow(cache, terms=settings.terms, now=self.clock.now, changed=placing.wake)
        sessions = SchedulingReconciler(plane, cache, view, clock=self.clock)
        reservations = ReservationReconciler(plane, cache, clock=self.clock)
        of_sessions = self._runtime(
            sessions.reconcile, cache, LabletSession, resync, lambda session: rest_of(session, self.clock.now())
        )
        of_reservations = self._runtime(reservations.reconcile, cache, Reservation, resync, rest_of_reservation)
        view.subscribe(of_sessions.enqueue)
        reservations.subscribe(of_reservations.enqueue)
        try:
            await run_until_first_ends(of_sessions.run(), of_reservations.run(), placing.run(view))
        finally:
            reservations.stop()
            view.stop()

    def _runtime(
        self,
        reconcile: Callable[[Ref[R]], Awaitable[Requeue]],
        cache: Cache,
        kind: type[R],
        resync: Callable[[], timedelta],
        resting: Callable[[R], Requeue | None],
    ) -> Runtime[R]:
        name = f"{LEASE} of {kind.__name__}"
        return Runtime(
            name, reconcile, cache, kind, clock=self.clock, chance=self.chance, resync=resync, resting=resting
        )
