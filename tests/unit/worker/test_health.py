"""Workers that are ill, silent or failed: what is done for them, how often, and what people are told."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from harness.clouds import HERE
from harness.fleet_world import W1, Fleet, virtually
from harness.workers import story
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Pause, Ref, Resume
from lcm.controllers.worker.alerts import FAILED, STRANDED, UNHEALTHY, UNREACHABLE
from lcm.controllers.worker.occupants import Occupants
from lcm.model.base.errors import Unreachable
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.session import LabletSession, LabletSessionStatus
from lcm.model.kinds.worker import AwsSpec, CmlSpec, IdlePolicy, LabWorker, WorkerCondition, WorkerPhase
from lcm.model.telemetry.alert import Alert
from lcm.providers.protocols.compute import Instance
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.fleet import SimHosts
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml

P = WorkerPhase
RESTLESS = IdlePolicy(enabled=False)
PLAIN = CmlSpec()


class Sickly(Fleet):
    """A fleet whose every CML is ill."""

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = super()._install(instance, power)
        cml.ailments.append("libvirt")
        return cml


class Muted(SimHosts):
    """Hosts that do not answer while they are muted."""

    def __init__(self, cloud: SimCloud) -> None:
        super().__init__(cloud)
        self.muted = False

    async def of(self, worker: LabWorker) -> DirectHost:
        if self.muted:
            raise Unreachable("no route to host")
        return await super().of(worker)


def truth(worker: LabWorker, name: WorkerCondition) -> tuple[Truth, str]:
    known = find_condition(worker.status.conditions, name)
    assert known is not None
    return known.status, known.reason


def times(worker: LabWorker, text: str) -> int:
    return story(worker).count(text)


async def raised(fleet: Fleet) -> dict[str, Alert]:
    return {one.alert: one for one in await fleet.otto.alerts()}


async def log_of(fleet: Fleet, span: timedelta) -> Sequence[tuple[str, str]]:
    """Watch the alerts for a while; list each that came, by its name and severity, and went."""
    seen: dict[str, str] = {}
    log: list[tuple[str, str]] = []
    until = fleet.clock.now() + span
    while fleet.clock.now() < until:
        now = {name: str(one.severity) for name, one in (await raised(fleet)).items()}
        log += [(name, severity) for name, severity in now.items() if seen.get(name) != severity]
        log += [(name, "cleared") for name in seen if name not in now]
        seen = now
        await asyncio.sleep(1)
    return log


@virtually
async def test_an_ill_worker_gets_no_sessions_and_somebody_is_told() -> None:
    fleet = Fleet()
    await fleet.create()
    async with fleet.controlled():
        worker = await fleet.reaches(P.READY)
        await fleet.host_session(worker)
        await fleet.reaches(P.ACTIVE)
        cml = fleet.cml(worker.status.ec2.instance_id)
        cml.ailments.append("libvirt")
        await asyncio.sleep(300)
        assert truth(await fleet.worker(), WorkerCondition.ACCEPTING_LABS) == (Truth.FALSE, "Unhealthy")
        assert UNHEALTHY not in await raised(fleet)
        await asyncio.sleep(600)
        alert = (await raised(fleet))[UNHEALTHY]
        assert (alert.severity, alert.reason) == ("critical", "SessionsPresent")
        assert "s1" in alert.message
        cml.ailments.clear()
        await asyncio.sleep(120)
        assert truth(await fleet.worker(), WorkerCondition.ACCEPTING_LABS)[0] is Truth.TRUE
        assert UNHEALTHY not in await raised(fleet)


@virtually
async def test_a_silent_worker_gets_no_sessions_and_its_health_is_unknown() -> None:
    fleet = Fleet()
    fleet.hosts = hosts = Muted(fleet.cloud)
    await fleet.create(idle=RESTLESS)
    async with fleet.controlled():
        await fleet.reaches(P.READY)
        await asyncio.sleep(120)
        hosts.muted = True
        await asyncio.sleep(180)
        worker = await fleet.worker()
        assert truth(worker, WorkerCondition.ACCEPTING_LABS) == (Truth.FALSE, "Unreachable")
        assert truth(worker, WorkerCondition.HEALTH_CHECK_PASSED) == (Truth.UNKNOWN, "CmlSilent")
        assert UNREACHABLE not in await raised(fleet)
        await asyncio.sleep(600)
        assert "security group" in (await raised(fleet))[UNREACHABLE].message
        hosts.muted = False
        await asyncio.sleep(180)
        assert UNREACHABLE not in await raised(fleet)
        assert truth(await fleet.worker(), WorkerCondition.HEALTH_CHECK_PASSED)[0] is Truth.TRUE


@virtually
async def test_a_silent_machine_whose_checks_fail_is_ill() -> None:
    fleet = Fleet()
    fleet.hosts = hosts = Muted(fleet.cloud)
    await fleet.create(auto_remediate=False)
    async with fleet.controlled():
        worker = await fleet.reaches(P.READY)
        hosts.muted = True
        fleet.cloud.account.impair(HERE, worker.status.ec2.instance_id)
        await asyncio.sleep(900)
        assert truth(await fleet.worker(), WorkerCondition.HEALTH_CHECK_PASSED)[0] is Truth.FALSE
        assert (await raised(fleet))[UNHEALTHY].reason == "RemediationOff"


@virtually
async def test_a_worker_that_nothing_helps_is_replaced_twice_and_then_left_to_people() -> None:
    fleet = Sickly()
    await fleet.create(cml=PLAIN, idle=RESTLESS)
    async with fleet.controlled():
        log = await log_of(fleet, timedelta(hours=3))
        worker = await fleet.worker()
        assert len(fleet.cloud.account.machines) == 3
        assert times(worker, "it is rebooted") == 2
        assert worker.status.remedies == 4
        assert (await raised(fleet))[UNHEALTHY].reason == "NotHelped"
        assert [line for line in log if line[0] == UNHEALTHY] == [(UNHEALTHY, "warning"), (UNHEALTHY, "critical")]
        fleet.cml(worker.status.ec2.instance_id).ailments.clear()
        await asyncio.sleep(1200)
        assert await raised(fleet) == {}
        assert (await fleet.worker()).status.remedies == 4
        await asyncio.sleep(3600)
        assert (await fleet.worker()).status.remedies == 0


@virtually
async def test_a_strangers_ill_machine_is_rebooted_once() -> None:
    fleet = Sickly()
    image = fleet.cloud.account.images(HERE)[0]
    fleet.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", image.image_id, {"Name": "theirs"}))
    async with fleet.controlled():
        while await fleet.gone("theirs"):
            await asyncio.sleep(5)
        change = {"spec": {"auto_remediate": True, "idle": {"enabled": False}}}
        await fleet.otto.patch(Ref(LabWorker, "theirs"), change)
        await asyncio.sleep(2 * 3600)
        worker = await fleet.worker("theirs")
        assert times(worker, "it is rebooted") == 1
        assert worker.status.phase is P.READY_UNLICENSED
        alert = (await raised(fleet))[UNHEALTHY]
        assert (alert.severity, alert.reason) == ("critical", "NotHelped")


@virtually
async def test_one_failure_is_one_alert_through_all_its_retries() -> None:
    fleet = Fleet()
    fleet.cloud.account.never_boot(99)
    await fleet.create()
    async with fleet.controlled():
        log = await log_of(fleet, timedelta(hours=3))
        assert (await fleet.worker()).status.phase is P.TERMINATED
        assert log == [(FAILED, "warning"), (FAILED, "critical")]
        await fleet.otto.delete(W1)
        await fleet.vanishes()
        assert await raised(fleet) == {}


@virtually
async def test_a_failure_is_settled_when_the_worker_serves() -> None:
    fleet = Fleet()
    await fleet.create(aws=AwsSpec(region=HERE, ami_name_pattern="CML-3*"))
    async with fleet.controlled():
        await fleet.reaches(P.FAILED)
        fleet.cloud.account.add_image(HERE, "CML-3.0.0", fleet.clock.now())
        await fleet.reaches(P.STARTING)
        assert list(await raised(fleet)) == [FAILED]
        await fleet.reaches(P.READY)
        await asyncio.sleep(5)
        assert await raised(fleet) == {}


@virtually
async def test_a_deleted_worker_of_metal_is_not_overdue_while_it_shuts_down() -> None:
    fleet = Fleet()
    await fleet.create(cml=PLAIN)
    async with fleet.controlled():
        await fleet.reaches(P.READY_UNLICENSED)
        await fleet.otto.delete(W1)
        while not await fleet.gone():
            assert await raised(fleet) == {}
            await asyncio.sleep(5)


@virtually
async def test_whose_machine_was_stopped_or_terminated_under_sessions_is_told() -> None:
    fleet = Fleet()
    await fleet.create()
    async with fleet.controlled():
        worker = await fleet.reaches(P.READY)
        await fleet.host_session(worker)
        await fleet.reaches(P.ACTIVE)
        fleet.cloud.account.stop(HERE, worker.status.ec2.instance_id)
        await fleet.reaches(P.STOPPED, within=timedelta(minutes=8))
        await asyncio.sleep(5)
        alert = (await raised(fleet))[STRANDED]
        assert (alert.severity, alert.reason) == ("critical", "MachineStopped")
        assert "s1" in alert.message
        await fleet.otto.act(W1, Resume())
        await fleet.reaches(P.ACTIVE)
        assert STRANDED not in await raised(fleet)
        fleet.cloud.account.terminate(HERE, worker.status.ec2.instance_id)
        await fleet.reaches(P.TERMINATED, within=timedelta(minutes=15))
        await asyncio.sleep(5)
        assert (await raised(fleet))[STRANDED].reason == "MachineGone"
        await fleet.end_session()
        await asyncio.sleep(5)
        assert STRANDED not in await raised(fleet)


@virtually
async def test_a_failed_machine_that_somebody_stopped_is_tried_again_once_it_is_resumed() -> None:
    fleet = Fleet()
    fleet.cloud.account.never_boot(1)
    await fleet.create()
    async with fleet.controlled():
        worker = await fleet.reaches(P.FAILED)
        machine = worker.status.ec2.instance_id
        fleet.cloud.account.stop(HERE, machine)
        fleet.cloud.account.never_boot(0)
        await fleet.stays(P.FAILED, timedelta(hours=1))
        alert = (await raised(fleet))[FAILED]
        assert (alert.severity, alert.reason) == ("critical", "StoppedByHand")
        await fleet.otto.act(W1, Pause())
        await fleet.stays(P.FAILED, timedelta(minutes=5))
        await fleet.otto.act(W1, Resume())
        await fleet.reaches(P.STARTING, within=timedelta(minutes=1))


@virtually
async def test_who_waits_for_sessions_is_told_of_its_worker_alone() -> None:
    fleet = Fleet()
    workers = [await fleet.create(name) for name in ("w1", "w2")]
    cache = Cache(fleet.plane(), LabWorker, LabletSession)
    task = asyncio.create_task(cache.run())
    await cache.ready()
    occupants, told = await Occupants.follow(cache), list[str]()
    occupants.subscribe(lambda ref, _: told.append(ref.name))
    await fleet.host_session(workers[1])
    await asyncio.sleep(1)
    assert set(told) == {"w2"}
    told.clear()
    [session] = cache.all(LabletSession)
    for number, status in enumerate((replace(session.status, last_error="slow"), LabletSessionStatus()), 1):
        assert not told, "how far its start is concerns nobody else"
        later = replace(session.metadata, resource_version=session.metadata.resource_version + number)
        cache.accept(replace(session, metadata=later, status=status))
    assert told == ["w2"]
    task.cancel()
    await asyncio.wait([task])
