"""A worker's whole life under the real controller: lifecycle, monitor, discovery and idleness together."""

import asyncio
from datetime import timedelta

from harness.clouds import HERE, SimPrices, make_bill
from harness.fleet_world import W1, Fleet
from harness.workers import story
from lcm.control.plane.protocol import Drain, Pause, Resume, Snooze, Undrain
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.worker import IdlePolicy, LabWorker, WorkerCondition, WorkerPhase
from lcm.providers.protocols.compute import InstanceState
from lcm.settings.load import Settings
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.time.loop import run

MINUTES = timedelta(minutes=1)


def phases(worker: LabWorker) -> list[str]:
    return [line.phase for line in worker.status.history]


def claims(worker: LabWorker) -> set[str]:
    return {one.type for one in worker.status.conditions if one.status is Truth.TRUE}


def test_a_worker_lives_its_whole_life() -> None:
    async def life() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            assert phases(worker) == [
                "PENDING",
                "PROVISIONING_EC2",
                "EC2_READY",
                "STARTING",
                "READY_UNLICENSED",
                "LICENSING",
                "READY",
            ]
            assert len(fleet.licences.taken) == 1

            await fleet.host_session(worker)
            await fleet.reaches(WorkerPhase.ACTIVE, within=timedelta(seconds=5))
            await fleet.stays(WorkerPhase.ACTIVE, timedelta(hours=1))
            await fleet.end_session()
            await fleet.reaches(WorkerPhase.READY, within=timedelta(seconds=5))

            worker = await fleet.reaches(WorkerPhase.STOPPING, within=timedelta(minutes=50))
            assert "paused" in story(worker)
            worker = await fleet.reaches(WorkerPhase.STOPPED)
            assert worker.status.pause_count == 1
            assert worker.spec.wanted_state == "stopped"

            await fleet.otto.act(W1, Resume())
            worker = await fleet.reaches(WorkerPhase.READY)
            assert worker.status.resume_count == 1

            await fleet.host_session(worker, "s2")
            await fleet.otto.act(W1, Drain(deadline_minutes=60))
            await fleet.stays(WorkerPhase.DRAINING, timedelta(minutes=30))
            await fleet.otto.act(W1, Undrain())
            await fleet.reaches(WorkerPhase.ACTIVE, within=timedelta(seconds=5))

            await fleet.otto.delete(W1)
            await fleet.stays(WorkerPhase.DRAINING, timedelta(minutes=30))
            await fleet.end_session("s2")
            await fleet.vanishes(within=timedelta(minutes=20))
            assert fleet.living() == []
            assert fleet.licences.taken == {}
            assert (await fleet.otto.licences()).seats == ()

    run(life, horizon=timedelta(days=2))


def test_a_worker_knows_its_node_definitions_before_it_takes_a_session() -> None:
    async def boot() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            assert "iosv" in (worker.status.cml.node_definitions or ())

    run(boot, horizon=timedelta(days=2))


def test_an_idle_worker_is_warned_of_snoozed_and_paused() -> None:
    async def idle() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            await fleet.reaches(WorkerPhase.READY)
            while not ((worker := await fleet.worker()).status.idle and worker.status.idle.pause_at):
                await asyncio.sleep(10)
            await fleet.otto.act(W1, Snooze(minutes=60))
            await fleet.stays(WorkerPhase.READY, timedelta(minutes=58))
            worker = await fleet.reaches(WorkerPhase.STOPPED, within=timedelta(minutes=40))
            assert worker.status.pause_count == 1

    run(idle, horizon=timedelta(days=2))


def test_a_worker_with_its_idle_policy_off_is_never_paused() -> None:
    async def busy() -> None:
        fleet = Fleet()
        worker = await fleet.create()
        await fleet.otto.patch(W1, {"spec": {"idle": {"enabled": False}}})
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            worker = await fleet.stays(WorkerPhase.READY, timedelta(hours=3))
            assert worker.status.idle is None or not worker.status.idle.idle

    run(busy, horizon=timedelta(days=2))


def test_lesson_2_a_quiet_learner_keeps_the_machine() -> None:
    async def quiet() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            await fleet.host_session(worker)
            await fleet.reaches(WorkerPhase.ACTIVE)
            await fleet.stays(WorkerPhase.ACTIVE, timedelta(hours=4))

    run(quiet, horizon=timedelta(days=2))


def test_what_somebody_does_at_the_console_is_noticed_and_respected() -> None:
    async def by_hand() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            machine = worker.status.ec2.instance_id
            fleet.cloud.account.stop(HERE, machine)
            worker = await fleet.reaches(WorkerPhase.STOPPED, within=timedelta(minutes=8))
            assert worker.spec.wanted_state == "stopped"
            assert WorkerCondition.CML_READY not in claims(worker)
            await fleet.stays(WorkerPhase.STOPPED, timedelta(hours=1))

            fleet.cloud.account.start(HERE, machine)
            worker = await fleet.reaches(WorkerPhase.READY, within=timedelta(minutes=30))
            assert worker.spec.wanted_state == "running"

            fleet.cloud.account.terminate(HERE, machine)
            worker = await fleet.reaches(WorkerPhase.TERMINATED, within=timedelta(minutes=15))
            assert worker.status.ec2.gone_at is not None
            assert claims(worker) <= {WorkerCondition.LICENSED}
            seats = (await fleet.otto.licences()).seats
            assert [seat.state for seat in seats] == ["orphaned"]
            assert any(one.alert == "LicenceOrphaned" for one in await fleet.otto.alerts())

    run(by_hand, horizon=timedelta(days=2))


def test_what_somebody_does_at_the_console_is_noticed_without_monitoring_too() -> None:
    async def console() -> None:
        fleet = Fleet(quick=True, settings=Settings(worker_monitoring_enabled=False))
        await fleet.create(idle=IdlePolicy(enabled=False))
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            machine = worker.status.ec2.instance_id
            await fleet.cloud.stop(HERE, machine)
            stopped = await fleet.reaches(WorkerPhase.STOPPED, within=timedelta(minutes=5))
            assert stopped.spec.wanted_state == "stopped"
            await fleet.cloud.start(HERE, machine)
            await fleet.reaches(WorkerPhase.READY, within=timedelta(minutes=5))
            await fleet.cloud.remove(HERE, machine)
            await fleet.reaches(WorkerPhase.TERMINATED, within=timedelta(minutes=5))

    run(console, horizon=timedelta(days=2))


def test_an_unhealthy_worker_is_rebooted_once_and_then_replaced() -> None:
    async def ill() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            first = worker.status.ec2.instance_id
            fleet.cloud.account.impair(HERE, first, "system")
            worker = await fleet.reaches(WorkerPhase.STARTING, within=timedelta(minutes=15))
            assert "rebooted" in story(worker)
            worker = await fleet.reaches(WorkerPhase.READY, within=timedelta(hours=3))
            assert worker.status.ec2.instance_id != first, story(worker)
            assert [one.instance_id for one in fleet.living()] == [worker.status.ec2.instance_id]
            assert len(fleet.licences.taken) == 1

    run(ill, horizon=timedelta(days=2))


def test_an_unhealthy_worker_is_left_alone_while_a_session_is_on_it() -> None:
    async def ill() -> None:
        fleet = Fleet()
        await fleet.create()
        async with fleet.controlled():
            worker = await fleet.reaches(WorkerPhase.READY)
            await fleet.host_session(worker)
            fleet.cloud.account.impair(HERE, worker.status.ec2.instance_id)
            await fleet.reaches(WorkerPhase.ACTIVE)
            worker = await fleet.stays(WorkerPhase.ACTIVE, timedelta(hours=1))
            healthy = find_condition(worker.status.conditions, WorkerCondition.HEALTH_CHECK_PASSED)
            assert healthy is not None
            assert healthy.status is Truth.FALSE

    run(ill, horizon=timedelta(days=2))


def test_a_stranger_is_imported_adopted_and_served() -> None:
    async def stranger() -> None:
        fleet = Fleet()
        image = fleet.cloud.account.images(HERE)[0]
        found = fleet.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", image.image_id, {"Name": "by-hand"}))
        async with fleet.controlled():
            async with asyncio.timeout(3600):
                while await fleet.gone("by-hand"):
                    await asyncio.sleep(5)
            worker = await fleet.reaches(WorkerPhase.READY_UNLICENSED, name="by-hand")
            assert worker.status.ec2.instance_id == found.instance_id
            assert len(fleet.cloud.account.machines) == 1

    run(stranger, horizon=timedelta(days=2))


def test_lesson_27_an_imported_machine_that_is_pending_is_not_provisioned_again() -> None:
    async def pending() -> None:
        fleet = Fleet()
        image = fleet.cloud.account.images(HERE)[0]
        async with fleet.controlled():
            await asyncio.sleep(295)
            fleet.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", image.image_id, {"Name": "fresh"}))
            async with asyncio.timeout(3600):
                while await fleet.gone("fresh"):
                    await asyncio.sleep(1)
            worker = await fleet.worker("fresh")
            assert worker.status.ec2.state in {InstanceState.PENDING, InstanceState.RUNNING}
            await fleet.reaches(WorkerPhase.READY_UNLICENSED, name="fresh")
            assert len(fleet.cloud.account.machines) == 1

    run(pending, horizon=timedelta(days=2))


def test_a_worker_wanted_stopped_from_the_start_launches_nothing() -> None:
    async def stopped() -> None:
        fleet = Fleet()
        await fleet.create(wanted_state="stopped")
        async with fleet.controlled():
            await fleet.stays(WorkerPhase.PENDING, timedelta(hours=1))
            assert fleet.cloud.account.machines == {}
            await fleet.otto.act(W1, Resume())
            await fleet.reaches(WorkerPhase.READY)
            await fleet.otto.act(W1, Pause())
            await fleet.reaches(WorkerPhase.STOPPED)

    run(stopped, horizon=timedelta(days=2))


def test_what_a_worker_cost_agrees_with_the_clouds_bill() -> None:
    async def cost() -> None:
        fleet = Fleet()
        await fleet.create()
        begun = fleet.clock.now()
        async with fleet.controlled():
            await fleet.reaches(WorkerPhase.STOPPED, within=timedelta(hours=3))
            await asyncio.sleep(7200)
            await fleet.otto.delete(W1)
            await fleet.vanishes(within=timedelta(hours=2))
        until = fleet.clock.now()
        ours = await fleet.otto.costs(since=begun, until=until)
        (line,) = make_bill(fleet.cloud.account.machines.values(), SimPrices(), until).lines.values()
        running = sum((one.until - one.since for one in line.intervals if one.state == "running"), timedelta())
        said = sum(((one.until or until) - one.since for one in ours if one.state == "running"), timedelta())
        assert abs(said - running) < 4 * MINUTES

    run(cost, horizon=timedelta(days=2))
