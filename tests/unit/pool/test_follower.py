"""The pool controller on a real control plane, in virtual time: every worker is made once, kept, and released."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest
import structlog

from harness import given
from harness.scheduler_world import CCNA, HOUR, MINUTE, PER_WORKER, Pools, names
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import Changes, Drain, Plane, Ref
from lcm.controllers.pool.controller import PoolController, PoolReconciler
from lcm.controllers.pool.index import PoolIndex
from lcm.controllers.pool.packing import SeatPacker, _LastPacking, pack_here
from lcm.controllers.runtime.reconcile import Runtime
from lcm.model.base.errors import NoRoom
from lcm.model.base.machine import POOL_CONTROLLER
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.pool import LabWorkerPool, PoolCondition, PoolPhase, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.claims import Terms
from lcm.sim.time.loop import run
from lcm.store.base import Delete
from lcm.system.tasks import run_until_first_ends

LEAD = timedelta(minutes=40)
"""From a worker's launch to the slot: boot, buffer and instantiation."""


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def reasons(pool: LabWorkerPool, action: str) -> list[str]:
    return [one.reason for one in pool.status.decisions if one.action == action]


def phases(pool: LabWorkerPool) -> list[str]:
    return [line.phase for line in pool.status.history]


def test_a_booked_seat_gets_its_worker_once_and_in_time() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        start = world.clock.now() + 2 * HOUR
        async with world.following():
            await world.book_many(PER_WORKER + 1, start)
            await asyncio.sleep((2 * HOUR - LEAD - MINUTE).total_seconds())
            assert await world.workers() == []
            await world.settles(61)
            workers = await world.workers()
            assert names(workers) == ["ccna-1", "ccna-2"]
            assert [one.metadata.labels["team"] for one in workers] == ["exams", "exams"]
            assert [one.spec.lab_track for one in workers] == ["ccna", "ccna"]
            pool = await world.pool()
            assert [(one.number, one.worker_name) for one in pool.status.seats] == [(1, "ccna-1"), (2, "ccna-2")]
            assert pool.status.phase is PoolPhase.SCALING_UP
            both = "planned workers 1, 2"
            assert reasons(pool, "scale_up") == [
                f"launched ccna-1, ccna-2 for {both}: {both} claimed from 2026-01-01 01:45Z on"
            ]

    run(life)


def test_lesson_3_however_often_it_looks_a_booting_worker_counts() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        async with world.following():
            await world.book_many(5, world.clock.now() + HOUR)
            for number in range(60):  # an hour in which nothing comes up, and people go on booking
                await asyncio.sleep(30)
                await world.book(f"more{number}", world.clock.now() + 3 * HOUR)
            pool = await world.pool()
            assert len(await world.workers()) == 1
            assert len(reasons(pool, "scale_up")) == 1

    run(life)


def test_a_worker_is_paused_between_bookings_of_a_day_and_deleted_after_the_last() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        now = world.clock.now()
        async with world.following():
            await world.book("early", now + HOUR, HOUR)
            await world.book("late", now + 6 * HOUR, HOUR)
            await asyncio.sleep((30 * MINUTE).total_seconds())
            await world.comes_up("ccna-1")
            pool = await world.pool_reaches(PoolPhase.READY)
            await asyncio.sleep((2 * HOUR).total_seconds())
            worker = await world.worker("ccna-1")
            assert worker.spec.wanted_state == "stopped"
            assert (await world.pool()).status.phase is PoolPhase.SCALING_DOWN
            await world.stepped(await world.stepped(worker, WorkerPhase.STOPPING), WorkerPhase.STOPPED)
            pool = await world.pool_reaches(PoolPhase.READY)
            assert [one.worker_name for one in pool.status.seats] == ["ccna-1"]

            await asyncio.sleep((now + 6 * HOUR - LEAD - world.clock.now() - MINUTE).total_seconds())
            assert (await world.worker("ccna-1")).spec.wanted_state == "stopped"
            await world.settles(90)
            worker = await world.worker("ccna-1")
            assert worker.spec.wanted_state == "running"
            await world.comes_up("ccna-1")
            await asyncio.sleep((2 * HOUR).total_seconds())
            assert (await world.worker("ccna-1")).metadata.deletion_timestamp is not None
            pool = await world.pool()
            assert names(await world.workers()) == ["ccna-1"]
            assert [one.action for one in pool.status.decisions if one.action != "none"] == [
                "scale_up",
                "scale_down",
                "scale_up",
                "scale_down",
            ]
            assert reasons(pool, "scale_down")[-1] == "deleted ccna-1: nothing is booked there"

    run(life)


def test_a_cancelled_booking_takes_its_worker_with_it() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        async with world.following():
            await world.book("s1", world.clock.now() + HOUR)
            await asyncio.sleep((21 * MINUTE).total_seconds())
            assert names(await world.workers()) == ["ccna-1"]
            await world.otto.delete(Ref(LabletSession, "s1"))
            pool = await world.settles()
            assert pool is not None
            assert pool.status.seats == ()
            assert (await world.worker("ccna-1")).metadata.deletion_timestamp is not None

    run(life)


def test_a_worker_that_an_operator_drains_is_replaced_at_once() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=1, max_workers=1)
        async with world.following():
            await world.settles()
            await world.comes_up("ccna-1")
            await world.pool_reaches(PoolPhase.READY)
            await world.otto.act(Ref(LabWorker, "ccna-1"), Drain())
            pool = await world.settles()
            assert pool is not None
            assert [one.worker_name for one in pool.status.seats] == ["ccna-1-2"]
            assert (await world.worker("ccna-1")).status.phase is WorkerPhase.DRAINING
            await world.comes_up("ccna-1-2")
            for _ in range(20):
                await world.settles(30)
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.reason) == ("PoolAboveMaximum", "Drain")
            assert names(await world.workers()) == ["ccna-1", "ccna-1-2"]

    run(life)


def test_a_worker_whose_machine_somebody_terminated_is_replaced_and_its_record_goes() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=1)
        async with world.following():
            await world.settles()
            worker = await world.comes_up("ccna-1")
            ec2 = msgspec.structs.replace(worker.status.ec2, gone_at=world.clock.now())
            status = msgspec.structs.replace(worker.status, phase=WorkerPhase.TERMINATED, ec2=ec2)
            await world.plane().step(worker, status)
            await world.settles()
            (left,) = await world.workers()
            assert left.metadata.uid != worker.metadata.uid
            assert [one.worker_id for one in (await world.pool()).status.seats] == [left.metadata.uid]

    run(life)


def test_a_deleted_pool_serves_what_is_booked_takes_no_more_and_goes() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=1)
        async with world.following():
            await world.book("s1", world.clock.now() + HOUR, HOUR)
            await world.settles()
            await world.comes_up("ccna-1")
            await world.otto.delete(CCNA)
            with pytest.raises(NoRoom):
                await world.book("s2", world.clock.now() + HOUR)
            await asyncio.sleep((2 * HOUR).total_seconds())
            assert (await world.pool()).status.phase is PoolPhase.DRAINING
            assert (await world.worker("ccna-1")).spec.wanted_state == "running"
            await world.otto.delete(Ref(LabletSession, "s1"))
            pool = await world.settles()
            assert pool is not None
            assert pool.status.phase is PoolPhase.TERMINATING
            worker = await world.worker("ccna-1")
            assert worker.metadata.deletion_timestamp is not None
            gone = msgspec.structs.replace(worker.status.ec2, gone_at=world.clock.now())
            over = msgspec.structs.replace(worker.status, phase=WorkerPhase.TERMINATED, ec2=gone)
            await world.plane().step(worker, over)
            assert await world.settles() is None
            assert await world.workers() == []

    run(life)


def test_a_deleted_pool_that_waits_for_bookings_says_so_after_hours() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        async with world.following():
            await world.book("s1", world.clock.now() + 20 * HOUR, HOUR)
            await world.otto.delete(CCNA)
            await asyncio.sleep((5 * HOUR + MINUTE).total_seconds())
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.name) == ("PoolOverdue", "ccna")
            assert "it is booked until 2026-01-01 21:10Z" in alert.message

    run(life)


def test_a_minimum_that_does_not_come_up_fails_is_tried_again_and_may_still_come() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=1)
        async with world.following():
            pool = await world.pool_reaches(PoolPhase.FAILED)
            assert pool.status.last_error == "planned worker 1 got no machine within an hour"
            await world.settles()
            assert [one.alert for one in await world.otto.alerts()] == ["PoolFailed"]
            assert len(await world.workers()) == 1
            await world.pool_reaches(PoolPhase.INITIALIZING)
            await world.pool_reaches(PoolPhase.FAILED)
            await world.comes_up("ccna-1")
            await world.pool_reaches(PoolPhase.READY)
            await world.settles()
            assert await world.otto.alerts() == []

    run(life)


def test_a_minimum_that_never_comes_up_is_left_to_a_person_in_the_end() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=1)
        async with world.following():
            await asyncio.sleep((8 * HOUR).total_seconds())
            pool = await world.pool()
            assert phases(pool).count("FAILED") == 6
            assert pool.status.phase is PoolPhase.FAILED
            await world.otto.patch(CCNA, {"spec": {"max_workers": 9}})
            await world.pool_reaches(PoolPhase.INITIALIZING, within=MINUTE)

    run(life)


def test_what_cannot_be_made_is_said_and_made_when_it_can() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        many = {f"label-{number}": "x" for number in range(63)}
        template = Ref(WorkerTemplate, "metal")
        await world.otto.patch(template, {"spec": {"labels": many}})
        async with world.following():
            await world.book("s1", world.clock.now() + HOUR)
            await asyncio.sleep((21 * MINUTE).total_seconds())
            pool = await world.pool()
            ready = find_condition(pool.status.conditions, PoolCondition.READY)
            assert ready is not None
            assert (ready.status, ready.reason) == (Truth.FALSE, "Refused")
            assert "cannot create a machine for planned worker 1" in pool.status.last_error
            assert reasons(pool, "none")[-1] == pool.status.last_error
            assert [one.alert for one in await world.otto.alerts()] == ["PoolStuck"]
            await world.otto.patch(template, {"spec": {"labels": dict.fromkeys(many)}})
            await world.settles(2)
            assert names(await world.workers()) == ["ccna-1"]
            assert await world.otto.alerts() == []

    run(life)


def test_a_pool_waits_for_its_template_and_says_so() -> None:
    async def life() -> None:
        world = Pools()
        await world.store.commit(*creation_ops(given.pool(min_workers=0, template="metal")))
        async with world.following():
            pool = await world.settles()
            assert pool is not None
            assert pool.status.phase is PoolPhase.PENDING
            found = find_condition(pool.status.conditions, PoolCondition.TEMPLATE_FOUND)
            assert found is not None
            assert (found.status, found.message) == (Truth.FALSE, "there is no WorkerTemplate metal")
            await world.otto.create(given.template())
            await world.pool_reaches(PoolPhase.READY, within=MINUTE)

    run(life)


def reconciler(world: Pools, plane: Plane, cache: Cache, book: PoolIndex) -> PoolReconciler:
    packer = SeatPacker(plane, cache, clock=world.clock, chance=world.half, pack=pack_here)
    return PoolReconciler(plane, cache, book, clock=world.clock, terms=Terms, packer=packer)


def test_a_bug_of_ours_is_told_to_the_operator() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        plane = world.plane(POOL_CONTROLLER)
        cache = Cache(plane, *PoolController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            follower = reconciler(world, plane, cache, await PoolIndex.follow(cache))
            await follower.reconcile(CCNA)
            await follower.report_bug(CCNA, KeyError("seat"))
            (alert,) = await world.otto.alerts()
            assert (alert.alert, alert.reason) == ("PoolStuck", "KeyError")
            await asyncio.sleep(2)
            await follower.reconcile(CCNA)
            assert await world.otto.alerts() == []

    run(life)


def test_a_pool_that_is_gone_is_forgotten() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        plane = world.plane(POOL_CONTROLLER)
        cache = Cache(plane, *PoolController.kinds)
        async with beside(cache.run()):
            await cache.ready()
            follower = reconciler(world, plane, cache, await PoolIndex.follow(cache))
            await follower.reconcile(CCNA)
            other = await world.otto.create(given.pool(name="ccnp", lab_track="ccnp"))
            await asyncio.sleep(1)
            await follower.reconcile(Ref(LabWorkerPool, "ccnp"))
            pool = await world.pool()
            seen = _LastPacking(world.clock.now(), 1)
            follower._packer._last |= {one.metadata.uid: seen for one in (pool, other)}
            await world.store.commit(Delete(CCNA.key))
            await asyncio.sleep(1)
            await follower.reconcile(CCNA)
            assert set(follower._alerts._objects) == {Ref(LabWorkerPool, "ccnp")}
            assert set(follower._packer._last) == {other.metadata.uid}

    run(life)


def test_a_pool_of_another_policy_takes_the_workers_that_are_there() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(policy=ScalingPolicy.NONE, min_workers=1)
        await world.create("mine", lab_track="ccna")
        await world.create("other", lab_track="ccnp")
        used = await world.create("used", lab_track="ccna")
        held = given.session(phase=SessionPhase.RUNNING, claim=given.claim(), worker_id=used.metadata.uid)
        await world.store.commit(*creation_ops(held))
        async with world.following():
            pool = await world.settles(20)
            assert pool is not None
            assert [(one.number, one.worker_name) for one in pool.status.seats] == [(1, "mine")]
            assert pool.status.summary.workers == 1
            assert len(await world.workers()) == 3
            assert pool.status.phase is PoolPhase.INITIALIZING

    run(life)


def test_figures_follow_and_every_boot_is_measured_once() -> None:
    async def life() -> None:
        world = Pools()
        await world.found(min_workers=2)
        async with world.following():
            await world.settles(60)
            for name in ("ccna-1", "ccna-2"):
                await world.comes_up(name)
            await asyncio.sleep(300)
            pool = await world.pool()
            assert pool.status.boot_seconds == (0, 0)
            assert pool.status.workers_by_phase == {"READY": 2}
            figures = pool.status.summary
            assert (figures.workers, figures.ready_workers, figures.booting_workers) == (2, 2, 0)
            assert figures.declared.labs == 40
            ready = find_condition(pool.status.conditions, PoolCondition.READY)
            assert ready is not None
            assert ready.status is Truth.TRUE

    run(life)


@pytest.mark.parametrize(("tenths", "rounds"), [(0, rounds) for rounds in range(0, 60, 6)] + [(5, 0), (10, 0), (15, 0)])
def test_a_booking_while_a_worker_is_let_go_is_kept_or_refused(tenths: int, rounds: int) -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        end = world.clock.now() + HOUR
        async with world.following():
            await world.book("s1", end - 20 * MINUTE, 10 * MINUTE)
            await world.settles()
            await world.comes_up("ccna-1")
            await asyncio.sleep((end - world.clock.now()).total_seconds() + tenths / 10)
            for _ in range(rounds):
                await asyncio.sleep(0)
            with suppress(NoRoom):
                booked = await world.book("s2", world.clock.now() + 16 * MINUTE, HOUR)
                await world.settles()
                await kept(world, booked)

    run(life)


class LateCache(Cache):
    """Knows what happened some seconds ago."""

    def _apply_changes(self, changes: Changes) -> None:
        asyncio.get_running_loop().call_later(3, super()._apply_changes, changes)


async def follow_late(world: Pools) -> None:
    """Be a pool controller to whom the watch comes late."""
    plane = world.plane(POOL_CONTROLLER)
    cache = LateCache(plane, *PoolController.kinds)

    async def work() -> None:
        await cache.ready()
        book = await PoolIndex.follow(cache)
        follower = reconciler(world, plane, cache, book)
        runtime = Runtime("late", follower.reconcile, cache, LabWorkerPool, clock=world.clock, chance=world.half)
        book.subscribe(runtime.enqueue)
        await runtime.run()

    await run_until_first_ends(cache.run(), work())


def test_a_booking_that_the_controller_does_not_know_yet_keeps_its_worker() -> None:
    async def life() -> None:
        world = Pools()
        await world.found()
        end = world.clock.now() + HOUR
        async with world.booking(), beside(follow_late(world)):
            await world.book("s1", end - 20 * MINUTE, 10 * MINUTE)
            await world.settles(10)
            await world.comes_up("ccna-1")
            await asyncio.sleep((end - world.clock.now()).total_seconds() - 1)
            booked = await world.book("s2", world.clock.now() + 16 * MINUTE, HOUR)
            await world.settles(2)
            assert (await world.pool()).status.seats == ()
            await world.settles(30)
            await kept(world, booked)

    run(life)


async def kept(world: Pools, booked: LabletSession) -> None:
    """See that a seat that was promised for very soon still has its worker, which serves."""
    (seat,) = (await world.pool()).status.seats
    assert booked.status.seat is not None
    assert seat.number == booked.status.seat.number
    worker = await world.worker(seat.worker_name)
    assert worker.status.phase is WorkerPhase.READY
    assert worker.spec.wanted_state == "running"
    assert worker.metadata.deletion_timestamp is None
