"""A pool controller that dies or sleeps anywhere leaves, with its successor, one worker for each seat in need."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.scheduler_world import HOUR, MINUTE, Pools
from harness.suite import TIMES
from lcm.control.plane.protocol import Drain, Ref
from lcm.controllers.pool.view import SEAT_LABEL
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.settings.load import Settings
from lcm.sim.time.host import HOST

LEASE, A_NAP = timedelta(seconds=15), timedelta(seconds=40)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Let thousands of runs not write down what each of them did."""
    with structlog.testing.capture_logs():
        yield


async def booked() -> Pools:
    world = Pools(settings=Settings())
    await world.found(cpu=40)
    async with world.booking():
        for name in ("s1", "s2"):
            await world.book(name, world.clock.now() + HOUR)
    await asyncio.sleep((20 * MINUTE).total_seconds())
    return world


async def served() -> Pools:
    """Have a worker in its seat, as an earlier controller left it."""
    world = Pools(settings=Settings())
    await world.found(min_workers=1)
    async with world.following():
        await world.settles()
        await world.comes_up("ccna-1")
        await world.settles(30)
    return world


async def unneeded() -> Pools:
    world = await served()
    pool = await world.pool()
    await world.otto.patch(Ref(LabWorkerPool, pool.metadata.name), {"spec": {"min_workers": 0}})
    return world


async def drained() -> Pools:
    world = await served()
    await world.otto.act(Ref(LabWorker, "ccna-1"), Drain())
    return world


def serving(workers: list[LabWorker]) -> Counter[str]:
    """Count by seat the workers that serve it, or will."""
    live = [one for one in workers if one.metadata.deletion_timestamp is None]
    return Counter(one.metadata.labels[SEAT_LABEL] for one in live if one.status.phase is not WorkerPhase.DRAINING)


@dataclass(frozen=True)
class Path:
    """Where a pool is, and who must be in its seats in the end."""

    name: str
    world: Callable[[], Awaitable[Pools]]
    seats: int
    made: int
    """Workers that were ever made."""

    def __str__(self) -> str:
        return self.name

    async def body(self, world: Pools) -> None:
        host = HOST.get()
        assert host is not None
        life = asyncio.create_task(world.pool_controller(holder=host.name).run())
        while not life.done() and not await self.reached(world):
            await asyncio.sleep(5)
        if life.done():
            await life

    async def reached(self, world: Pools) -> bool:
        seated = {one.worker_id for one in (await world.pool()).status.seats}
        live = serving(list(await world.workers()))
        return len(seated) == live.total() == self.seats

    async def check(self, world: Pools) -> None:
        workers = list(await world.workers())
        assert len(workers) == self.made, [one.metadata.name for one in workers]
        assert set(serving(workers).values()) <= {1}
        assert await self.reached(world)
        uids = {one.metadata.uid for one in workers}
        assert {one.worker_id for one in (await world.pool()).status.seats} <= uids


PATHS = [Path("launch", booked, 2, 2), Path("release", unneeded, 0, 1), Path("replace", drained, 1, 2)]
EVERY_PATH = pytest.mark.parametrize("path", PATHS, ids=str)


@EVERY_PATH
def test_a_controller_that_dies_anywhere_leaves_one_worker_a_seat(path: Path, tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere(f"pool: {path.name}", path.world, path.body, path.check, restart_after=LEASE, report=tell)
    assert awaits >= 20


@pytest.mark.parametrize("path", PATHS if TIMES > 1 else PATHS[:1], ids=str)
def test_a_controller_that_sleeps_anywhere_makes_nothing_when_it_wakes_up(
    path: Path, tell: Callable[[str], None]
) -> None:
    awaits = pause_everywhere(f"pool: {path.name}", path.world, path.body, path.check, pause_for=A_NAP, report=tell)
    assert awaits >= 20
