"""Machines of smaller types: launched when all that is booked fits one, and never in the way of a promise."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from harness.scheduler_world import HOUR, MINUTE, UP, Pools, names
from lcm.control.plane.protocol import Extend, Ref
from lcm.controllers.pool.view import SMALL_LABEL
from lcm.model.base.errors import NoRoom
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Truth, find_condition, has_condition
from lcm.model.kinds.pool import ScalingPolicy, SmallRun, WorkerTemplate
from lcm.model.kinds.session import LabletSession, SessionCondition, SessionPhase
from lcm.model.kinds.worker import AwsSpec, WorkerCondition, WorkerPhase
from lcm.sim.time.loop import run

FULL, SMALL, TINY = "m8i.12xlarge", "m8i.4xlarge", "m8i.2xlarge"
"""Machines of 48, 16 and 8 cores. A lab of these tests takes five."""
LARGE_LABS = 9
AWS = AwsSpec(region="us-east-1", instance_type=FULL, nested_virtualization=True, ami_name_pattern="CML-*")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def played(life: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(life)
    def test() -> None:
        run(life)

    del test.__wrapped__  # pytest would see a coroutine
    return test


@asynccontextmanager
async def mixed(*, smaller: Sequence[str] = (SMALL, TINY), **fields: Any) -> AsyncIterator[Pools]:
    world = Pools()
    await world.found(cpu=5, template={"aws": AWS}, smaller=smaller, **{"max_workers": 4} | fields)
    async with world.scaling():
        await world.settles()
        yield world


async def until(world: Pools, moment: datetime) -> None:
    await asyncio.sleep(max(0.0, (moment - world.clock.now()).total_seconds()))


async def small_runs(world: Pools) -> Sequence[SmallRun]:
    return (await world.pool()).status.small_runs


async def types(world: Pools) -> dict[str, str]:
    return {one.metadata.name: one.spec.aws.instance_type for one in await world.workers()}


async def comes_up(world: Pools, name: str) -> None:
    for phase in UP:
        await world.stepped(await world.worker(name), phase)
    await world.settles(15)


async def session(world: Pools, name: str) -> LabletSession:
    found = await world.otto.get(Ref(LabletSession, name))
    assert found is not None
    return found


async def extended(world: Pools, name: str, minutes: int) -> None:
    await world.otto.act(Ref(LabletSession, name), Extend(minutes=minutes))


async def choose(world: Pools, instance_type: str, until: datetime) -> None:
    """Commit to a smaller machine for the first planned worker, as a leader does that dies before it launches it."""
    pool, run_ = await world.pool(), SmallRun(number=1, instance_type=instance_type, until=until)
    await world.plane(POOL_CONTROLLER).step(pool, replace(pool.status, small_runs=(run_,)))


@played
async def test_a_run_that_fits_a_smaller_machine_gets_one_and_the_next_run_a_large_one() -> None:
    async with mixed() as world:
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        for number in range(LARGE_LABS):
            await world.book(f"later{number}", start + 6 * HOUR, HOUR)
        await until(world, start - 30 * MINUTE)
        assert await types(world) == {"ccna-1": TINY}
        assert [(one.number, one.instance_type) for one in await small_runs(world)] == [(1, TINY)]
        await comes_up(world, "ccna-1")
        worker = await world.worker("ccna-1")
        assert worker.metadata.labels[SMALL_LABEL] == TINY
        assert worker.spec.aws.instance_type_alternatives == (SMALL, FULL)
        await until(world, start + 5 * MINUTE)
        assert (await session(world, "first")).status.worker_name == "ccna-1"
        for number in range(LARGE_LABS):
            found = find_condition((await session(world, f"later{number}")).status.conditions, SessionCondition.AT_RISK)
            assert found is None or found.status is not Truth.TRUE
        await until(world, start + 2 * HOUR)
        assert await small_runs(world) == ()
        assert (await world.worker("ccna-1")).metadata.deletion_timestamp is not None
        await until(world, start + 5 * HOUR + 45 * MINUTE)
        assert FULL in (await types(world)).values()
        assert await small_runs(world) == ()


@played
async def test_what_does_not_fit_the_smaller_machine_goes_elsewhere_while_it_runs() -> None:
    async with mixed() as world:
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        await until(world, start - 30 * MINUTE)
        for number in range(3):
            made = await world.book(f"more{number}", start + 30 * MINUTE, HOUR)
            assert made.status.seat is not None
            assert made.status.seat.number != 1, "two labs of five cores are too much for eight"
        after = await world.book("after", start + 2 * HOUR, HOUR)
        assert after.status.seat is not None, "there is another seat at least"


@played
async def test_an_extension_is_checked_against_the_machine_that_is_there() -> None:
    async with mixed(smaller=(TINY,)) as world:
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        await world.book("second", start + 90 * MINUTE, HOUR)  # the same run, one after the other
        await until(world, start - 30 * MINUTE)
        runs = await small_runs(world)
        assert [one.instance_type for one in runs] == [TINY]
        await comes_up(world, "ccna-1")
        await until(world, start + 20 * MINUTE)
        assert (await session(world, "first")).status.phase is SessionPhase.RUNNING
        with pytest.raises(NoRoom, match="smaller machine"):
            await extended(world, "first", 60)  # beside the second there is no room on eight cores
        await until(world, start + 110 * MINUTE)
        await extended(world, "second", 60)
        with pytest.raises(NoRoom):
            await extended(world, "second", 120)  # the machine makes way for another before
        assert await small_runs(world) == runs


@played
async def test_a_booking_between_choice_and_launch_is_not_broken() -> None:
    world = Pools()
    await world.found(cpu=5, template={"aws": AWS}, smaller=(TINY,), max_workers=3)
    async with world.booking():
        start = world.clock.now() + 45 * MINUTE
        await world.book("first", start, HOUR)
        await world.book("second", start, HOUR)
        await choose(world, TINY, start + 3 * HOUR)  # as if both came while the choice was written
    await until(world, start - 39 * MINUTE)  # now its machine is due
    async with world.following():
        await until(world, start - 30 * MINUTE)
        assert await types(world) == {"ccna-1": FULL}
        assert await small_runs(world) == ()


@played
async def test_a_choice_that_was_committed_is_launched_by_the_next_leader() -> None:
    world = Pools()
    await world.found(cpu=5, template={"aws": AWS}, smaller=(SMALL, TINY), max_workers=3)
    async with world.booking():
        start = world.clock.now() + 45 * MINUTE
        await world.book("first", start, HOUR)
        await choose(world, SMALL, start + 3 * HOUR)
        await world.book_many(2 + 2 * LARGE_LABS, start, HOUR)
        with pytest.raises(NoRoom):
            await world.book("one more", start, HOUR)
        seats = [one.status.seat for one in (await world.otto.list(LabletSession)).items]
        assert sum(one is not None and one.number == 1 for one in seats) == 3, "sixteen cores hold three labs of five"
    await until(world, start - 39 * MINUTE)  # now its machine is due
    async with world.following():
        await until(world, start - 30 * MINUTE)
        assert (await types(world))["ccna-1"] == SMALL


@played
async def test_a_cancelled_run_gives_its_planned_worker_back_at_full_size() -> None:
    async with mixed() as world:
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        await until(world, start - 30 * MINUTE)
        assert names(await world.workers()) == ["ccna-1"]
        await world.otto.delete(Ref(LabletSession, "first"))
        await world.settles(120)
        assert await small_runs(world) == ()
        assert all(one.metadata.deletion_timestamp for one in await world.workers())


@played
async def test_the_last_planned_worker_and_what_is_wanted_at_once_get_large_machines() -> None:
    async with mixed(max_workers=1) as world:
        await world.book("first", world.clock.now() + HOUR, HOUR)
        await until(world, world.clock.now() + 35 * MINUTE)
        assert await types(world) == {"ccna-1": FULL}
    async with mixed(policy=ScalingPolicy.HYBRID) as world:
        await world.want("now")
        await world.settles(90)
        assert await types(world) == {"ccna-1": FULL}


@played
async def test_without_smaller_types_all_is_as_before() -> None:
    async with mixed(smaller=()) as world:
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        await until(world, start - 30 * MINUTE)
        assert await types(world) == {"ccna-1": FULL}
        template = await world.otto.get(Ref(WorkerTemplate, "metal"))
        assert template is not None
        assert template.spec.smaller_types == ()


@played
async def test_the_machine_of_a_small_run_is_what_its_pool_meant_it_to_be() -> None:
    world = Pools()
    await world.found(cpu=5, template={"aws": AWS}, smaller=(SMALL, TINY), max_workers=3)
    async with world.following(workers=True):
        start = world.clock.now() + HOUR
        await world.book("first", start, HOUR)
        await until(world, start)
        (worker,) = await world.workers()
        assert (worker.status.phase, worker.status.ec2.instance_type) == (WorkerPhase.READY, TINY)
        assert not has_condition(worker.status.conditions, WorkerCondition.LIKE_TEMPLATE, Truth.FALSE)
        assert [one.instance_type for one in await small_runs(world)] == [TINY]
        decision = (await world.pool()).status.decisions
        assert any(f"all that is claimed there fits {TINY}, which costs less" in one.reason for one in decision)


@played
async def test_if_the_cloud_has_no_smaller_machine_the_next_larger_one_is_launched() -> None:
    world = Pools()
    await world.found(cpu=5, template={"aws": AWS}, smaller=(SMALL, TINY), max_workers=3)
    async with world.following(workers=True):
        start = world.clock.now() + HOUR
        world.cloud.account.add_shortage("us-east-1", TINY, start)
        await world.book("first", start, HOUR)
        await until(world, start)
        (worker,) = await world.workers()
        assert (worker.status.phase, worker.status.ec2.instance_type) == (WorkerPhase.READY, SMALL)
        assert not has_condition(worker.status.conditions, WorkerCondition.LIKE_TEMPLATE, Truth.FALSE)


@played
async def test_a_smaller_machine_of_a_pool_whose_maximum_is_lowered_is_released() -> None:
    async with mixed() as world:
        start = world.clock.now() + HOUR
        for number in range(LARGE_LABS + 1):
            await world.book(f"s{number}", start, HOUR)
        await until(world, start - 30 * MINUTE)
        (last,) = [one.number for one in await small_runs(world)]
        for name in await types(world):
            await comes_up(world, name)
        for number in range(LARGE_LABS + 1):
            await world.otto.delete(Ref(LabletSession, f"s{number}"))
        pool = await world.pool()
        await world.otto.replace(replace(pool, spec=replace(pool.spec, max_workers=last - 1)))
        await until(world, start + 2 * HOUR)
        assert await small_runs(world) == ()
