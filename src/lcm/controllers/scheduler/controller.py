"""The scheduler: of all processes that run one, the elected leader gives sessions their places.

Started by `compose`. Everything it knows is in the store, so the next leader continues from there. What it decides is a
proposal: the plane verifies it and commits claim, ports and time together.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Plane
from lcm.controllers.runtime.election import ElectedController
from lcm.controllers.runtime.reconcile import Runtime
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.controllers.scheduler.placement import PlacementLoop
from lcm.controllers.scheduler.prebuilt import PrebuiltKeeper
from lcm.controllers.scheduler.reservations import ReservationReconciler
from lcm.controllers.scheduler.reservations import rest_of as rest_of_reservation
from lcm.controllers.scheduler.sessions import SchedulingReconciler, is_concern, rest_of
from lcm.controllers.scheduler.view import SchedulerView
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.prices import SHIPPED_PRICES, PriceBook
from lcm.system.tasks import run_until_first_ends

LEASE: Final = "scheduler"


@dataclass(frozen=True, slots=True)
class SchedulerController(ElectedController):
    """The scheduler of one process."""

    lease = LEASE
    kinds = (LabletSession, LabWorker, LabWorkerPool, WorkerTemplate, LabletDefinition, Reservation, SystemSettings)
    prices: PriceBook = field(default=SHIPPED_PRICES, kw_only=True)
    """By which machines are started in one pool rather than in another."""

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
        view = await SchedulerView.follow(
            cache, terms=settings.terms, now=self.clock.now, changed=placing.wake, prices=self.prices
        )
        prebuilt = PrebuiltKeeper(plane, cache, view, clock=self.clock)
        sessions = SchedulingReconciler(plane, cache, view, clock=self.clock)
        reservations = ReservationReconciler(plane, cache, clock=self.clock)
        parts: Any = {"clock": self.clock, "chance": self.chance, "resync": resync, "counts": self.counts}
        of_sessions = Runtime(
            f"{LEASE} of sessions",
            sessions.reconcile,
            cache,
            LabletSession,
            resting=lambda session: rest_of(session, self.clock.now()),
            concerns=lambda seen: is_concern(seen.resource),
            **parts,
        )
        of_reservations = Runtime(
            f"{LEASE} of reservations",
            reservations.reconcile,
            cache,
            Reservation,
            resting=rest_of_reservation,
            **parts,
        )
        view.subscribe(lambda ref: of_sessions.enqueue(ref) if is_concern(cache.get(ref)) else None)
        reservations.subscribe(of_reservations.enqueue)
        try:
            await run_until_first_ends(of_sessions.run(), of_reservations.run(), placing.run(view), prebuilt.run())
        finally:
            reservations.stop()
            view.stop()
