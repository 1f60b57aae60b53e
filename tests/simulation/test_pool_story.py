"""Bookings, a pool and machines in virtual time: what is needed is launched once, is there in time, and goes."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from harness.clouds import HERE
from harness.scheduler_world import HOUR, MINUTE, Pools, names
from lcm.control.plane.protocol import Drain, Ref
from lcm.model.base.errors import NoRoom
from lcm.model.kinds.pool import PoolPhase
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.places import is_accepting
from lcm.sim.time.loop import run

EIGHT = datetime(2026, 11, 2, 8, tzinfo=UTC)
NINE = EIGHT + HOUR


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


async def until(world: Pools, moment: datetime) -> None:
    await asyncio.sleep((moment - world.clock.now()).total_seconds())


def launches(world: Pools) -> int:
    return len(world.cloud.account.machines)


def test_forty_bookings_for_nine_get_the_four_machines_they_need_once_and_in_time() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        async with world.following(workers=True):
            booked = await world.book_many(40, NINE, HOUR)
            claims = [one.status.claim for one in booked if one.status.claim]
            await until(world, min(one.start for one in claims))
            workers = await world.workers()
            assert names(workers) == ["ccna-1", "ccna-2", "ccna-3", "ccna-4"]
            assert all(map(is_accepting, workers))
            assert launches(world) == 4
            assert {one.worker_id for one in (await world.pool()).status.seats} == {one.metadata.uid for one in workers}
            assert {one.status.seat.number for one in booked if one.status.seat} == {1, 2, 3, 4}

            await until(world, max(one.end for one in claims))
            assert all(map(is_accepting, await world.workers()))
            await until(world, max(one.end for one in claims) + 15 * MINUTE)
            assert await world.workers() == []
            assert world.living() == []
            assert launches(world) == 4
            pool = await world.pool()
            assert pool.status.phase is PoolPhase.READY
            assert len(pool.status.boot_seconds) == 4
            assert all(300 < seconds < 20 * 60 for seconds in pool.status.boot_seconds)
            assert [one.action for one in pool.status.decisions if one.action != "none"] == ["scale_up", "scale_down"]

    run(life, start=EIGHT)


def test_five_hundred_bookings_for_nine_launch_what_the_promised_ones_need_once() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(max_workers=5)
        async with world.following(workers=True):
            answers = await asyncio.gather(
                *(world.book(f"s{number}", NINE, HOUR) for number in range(500)), return_exceptions=True
            )
            promised = [one for one in answers if isinstance(one, LabletSession)]
            refused = [one for one in answers if isinstance(one, NoRoom) and one.why == "full" and one.nearest]
            assert (len(promised), len(refused)) == (5 * 12, 440)
            await until(world, NINE - 15 * MINUTE)
            workers = await world.workers()
            assert names(workers) == [f"ccna-{number}" for number in range(1, 6)]
            assert all(map(is_accepting, workers))
            await until(world, NINE + 2 * HOUR)
            assert (launches(world), world.living()) == (5, [])

    run(life, start=EIGHT)


def test_a_machine_that_is_drained_or_dies_before_nine_is_replaced_by_nine() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        async with world.following(workers=True):
            await world.book_many(13, NINE + HOUR, HOUR)
            await until(world, NINE + HOUR - 41 * MINUTE + timedelta(minutes=14))
            await world.otto.act(Ref(LabWorker, "ccna-1"), Drain())
            second = await world.worker("ccna-2")
            world.cloud.account.terminate(HERE, second.status.ec2.instance_id)
            await until(world, NINE + HOUR)
            seated = [one.worker_name for one in (await world.pool()).status.seats]
            serving = [one for one in await world.workers() if is_accepting(one)]
            assert sorted(seated) == names(serving)
            assert len(serving) == 2
            assert launches(world) == 4
            assert (await world.worker("ccna-1")).status.phase is WorkerPhase.STOPPED

    run(life, start=EIGHT)
