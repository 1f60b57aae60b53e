"""A day of those who want a lab now, by the real scheduler, pool controller and worker controller in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from statistics import median

from harness.plane_world import service
from harness.scheduler_world import MINUTE, Lablets, Pools
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.model.base.machine import LABLET_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.settings.load import Settings
from lcm.sim.time.loop import VirtualStopwatch, run

_P = SessionPhase
COUNT = 30
UNMEASURED = Settings(worker_monitoring_enabled=False, worker_discovery_enabled=False)
"""Nobody asks here how busy machines are."""


@dataclass
class Told:
    """What those who waited were told first, and when they ran."""

    estimates: dict[str, tuple[datetime, datetime, str]] = field(default_factory=dict)
    ran: dict[str, datetime] = field(default_factory=dict)

    def note(self, seen: ObjectChange) -> None:
        session = seen.resource
        if not isinstance(session, LabletSession):
            return
        name, waiting = session.metadata.name, session.status.waiting
        if waiting is not None and waiting.estimated_start is not None and session.metadata.created_at is not None:
            self.estimates.setdefault(name, (session.metadata.created_at, waiting.estimated_start, waiting.basis))
        for line in session.status.history:
            if line.phase == _P.RUNNING:
                self.ran[name] = line.at

    def errors(self) -> list[float]:
        """Return by how much of its wait each was misinformed."""
        waits = [(self.ran[name], *told) for name, told in self.estimates.items() if name in self.ran]
        return [abs(told - ran) / (ran - since) for ran, since, told, _ in waits]


@asynccontextmanager
async def running(world: Pools, told: Told, chance: Random) -> AsyncIterator[None]:
    spans = {number: chance.uniform(2, 6) * MINUTE for number in range(1000)}
    lablets = Lablets(
        world.core.plane_for(service(LABLET_CONTROLLER)),
        world.clock,
        start=lambda one: spans[number_of(one)],
        clear=lambda one: spans[number_of(one)] / 2,
    )
    scheduler = SchedulerController(
        plane=world.core.plane_for(service(SCHEDULER)),
        clock=world.clock,
        stopwatch=VirtualStopwatch(),
        chance=world.half,
        settings=world.settings,
        holder="scheduler",
    )
    cache = Cache(world.otto, LabletSession)
    cache.subscribe(told.note)
    async with AsyncExitStack() as beside_it:
        await beside_it.enter_async_context(world.following(workers=True))
        for work in (scheduler.run(), lablets.run(), cache.run()):
            await beside_it.enter_async_context(beside(work))
        yield


def number_of(session: LabletSession) -> int:
    return int(session.metadata.name[1:]) % 1000


async def want(world: Pools, name: str, minutes: int) -> None:
    spec = LabletSessionSpec(
        definition="basics:1.0.0", duration_minutes=minutes, give_up_at=world.clock.now() + timedelta(hours=12)
    )
    await world.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))


async def a_day(count: int, seed: int) -> Told:
    told, chance, world = Told(), Random(seed), Pools(settings=UNMEASURED)
    async with running(world, told, chance):
        await world.found(max_workers=2, cpu=16)
        for number in range(count):
            await want(world, f"s{number}", chance.choice((45, 60, 90)))
            await asyncio.sleep(chance.expovariate(1 / (8 * 60)))
        for _ in range(200):
            if len(told.ran) == count:
                break
            await asyncio.sleep(300)
    return told


def test_who_waits_is_told_the_truth_about_when_it_starts() -> None:
    told = run(lambda: a_day(COUNT, 7))
    errors = told.errors()
    print(
        f"{len(errors)} of {len(told.ran)} waited; median error of the first estimate {median(errors):.1%} of the wait"
    )
    assert len(told.ran) == COUNT
    assert len(errors) >= 15
    assert median(errors) < 0.25
