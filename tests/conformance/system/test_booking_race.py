"""Two API processes that take bookings and ten schedulers that all believe they lead, on one real store."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from harness.commands import Running
from harness.plane_world import service
from harness.servers import EtcdServer
from harness.suite import TIMES
from harness.workers import beside
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Plane
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.model.access.secret import Secret
from lcm.model.base.errors import NoRoom
from lcm.model.base.machine import SCHEDULER
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.settings.load import Settings
from lcm.store.base import Store
from lcm.store.etcd.engine import EtcdStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, SystemStopwatch, new_id
from simulation.random_bookings import LABS, QUARTER, audited, furnish

KEY = "a-key-that-nobody-guesses"
SCHEDULERS = 10
BOOKINGS = 50 * TIMES
NOW = 24
PATIENCE = 300.0


@pytest.mark.parametrize("engine", ["etcd", *(["sqlite"] if TIMES > 1 else [])])
async def test_ten_schedulers_and_two_apis_on_one_store_over_commit_nothing(
    engine: str, tmp_path: Path, etcd: EtcdServer, tell: Callable[[str], None]
) -> None:
    said = {"CONTROL_PLANE_API_KEY": KEY, "LCM_DATA_DIR": str(tmp_path / "data"), "LCM_CLOUD": "simulated"}
    root = f"/{new_id()}/"
    if engine == "etcd":
        said |= {"ETCD_ENDPOINTS": etcd.endpoint, "ETCD_ROOT": root}
    with (
        Running(tmp_path, "serve", "api", "--port=0", **said) as one,
        Running(tmp_path, "serve", "api", "--port=0", **said) as other,
    ):
        urls = [one.ready().url, other.ready().url]
        async with AsyncExitStack() as undo:
            store = await _opened(engine, etcd, root, tmp_path)
            undo.push_async_callback(store.close)
            now = SystemClock().now()
            await furnish(store, now)
            planes = [await _plane(undo, urls[number % 2]) for number in range(SCHEDULERS)]
            for number, plane in enumerate(planes):
                await undo.enter_async_context(beside(_scheduling(plane, number)))
            promised, refused = await _rush(planes, now)
            settled = await asyncio.wait_for(_settled(planes[0]), PATIENCE)
            assert await audited(store) == (0, 0)
        # What is killed leaves leases behind, whose end would disturb who counts the revisions of this etcd next.
        assert (one.stop()[0], other.stop()[0]) == (0, 0)
        assert "Traceback" not in one.output + other.output
    tell(
        f"race on {engine}: {promised} promised, {refused} refused by 2 APIs, "
        f"{settled} of {NOW} placed by {SCHEDULERS} schedulers at once; over-commits 0, shared ports 0"
    )
    assert promised
    assert refused


async def _opened(engine: str, etcd: EtcdServer, root: str, folder: Path) -> Store:
    if engine == "etcd":
        return await EtcdStore.open([etcd.endpoint], root=root)
    return await SqliteStore.open(folder / "data" / "lcm.db")


async def _plane(undo: AsyncExitStack, url: str) -> Plane:
    return await undo.enter_async_context(HttpPlane.open(url, Secret(KEY), actor=SCHEDULER, caller=service(SCHEDULER)))


async def _scheduling(plane: Plane, number: int) -> None:
    """Be a scheduler that was never told that another leads."""
    chance = Random(number).random
    scheduler = SchedulerController(
        plane,
        clock=SystemClock(),
        stopwatch=SystemStopwatch(),
        chance=chance,
        settings=Settings(),
        holder=f"scheduler-{number}",
    )
    await scheduler.lead(plane)


async def _rush(planes: Sequence[Plane], now: datetime) -> tuple[int, int]:
    """Book for the same morning and want labs now, all at once."""
    nine = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=5)
    chance, labs = Random(7), list(LABS)

    async def one(number: int) -> NoRoom | None:
        start = nine + chance.choice((0, 0, 0, 2, 4)) * QUARTER
        wanted = LabletSessionSpec(definition=labs[number % 4], timeslot_start=start, timeslot_end=start + 6 * QUARTER)
        if number >= BOOKINGS:
            wanted = LabletSessionSpec(definition=labs[number % 2], duration_minutes=45)
        session = LabletSession(metadata=Metadata(name=f"s{number}"), spec=wanted)
        try:
            await planes[number % len(planes)].create(session)
        except NoRoom as error:
            return error
        return None

    done = await asyncio.gather(*(one(number) for number in range(BOOKINGS + NOW)))
    refusals = [error for error in done if error is not None]
    assert all(error.why == "full" and error.nearest for error in refusals)
    return BOOKINGS - len(refusals), len(refusals)


async def _settled(plane: Plane) -> int:
    """Wait until every promise is scheduled and nobody who could be placed waits; give how many of the latter were."""
    while True:
        page = await plane.list(LabletSession, limit=1000)
        waiting = [one for one in page.items if one.status.phase is SessionPhase.PENDING]
        if all(one.spec.timeslot_start is None and one.status.waiting for one in waiting):
            placed = [one for one in page.items if one.spec.timeslot_start is None and one.status.worker_id]
            return len(placed)
        await asyncio.sleep(0.2)
