"""Workers that are drained, deleted or changed by hand, from wherever in their lives they are."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from harness import clouds
from harness.clouds import HERE
from harness.fleet_world import W1, OneSecret, Unreliable, virtually
from harness.lab_hosts import LAB
from harness.workers import story
from lcm.control.plane.protocol import Drain, Pause, Ref, Resume, Undrain
from lcm.controllers.worker.alerts import DRAIN, OVERDUE, STRANDED
from lcm.controllers.worker.effects import WorkerEffects
from lcm.controllers.worker.view import EndSessions, WorkerView
from lcm.model.base.errors import Conflict
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import CmlSpec, LabWorker, WorkerCondition, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cml.faults import CmlDown

P = WorkerPhase
HOUR = timedelta(hours=1)
A_WHILE = timedelta(minutes=20)


async def to_pending(fleet: Unreliable) -> None:
    await fleet.create(wanted_state="stopped")
    await asyncio.sleep(30)


async def to_provisioning(fleet: Unreliable) -> None:
    await fleet.create()
    await fleet.reaches(P.PROVISIONING_EC2)


async def to_ec2_ready(fleet: Unreliable) -> None:
    await fleet.create()
    (await fleet.machine()).addresses.clear()
    await fleet.reaches(P.EC2_READY)


async def to_starting(fleet: Unreliable) -> None:
    await fleet.create()
    await fleet.reaches(P.STARTING)
    await asyncio.sleep(60)


async def to_ready_unlicensed(fleet: Unreliable) -> None:
    await fleet.create(cml=CmlSpec())
    await fleet.reaches(P.READY_UNLICENSED)


async def to_licensing(fleet: Unreliable) -> None:
    fleet.licences.reachable = False
    await fleet.create()
    await fleet.reaches(P.LICENSING)
    await asyncio.sleep(30)
    fleet.licences.reachable = True


async def to_ready(fleet: Unreliable) -> None:
    await fleet.create()
    await fleet.reaches(P.READY)


async def to_active(fleet: Unreliable) -> None:
    await to_ready(fleet)
    await fleet.host_session(await fleet.worker())
    await fleet.reaches(P.ACTIVE)


async def to_draining(fleet: Unreliable) -> None:
    await to_active(fleet)
    await fleet.otto.act(W1, Drain())
    await fleet.reaches(P.DRAINING)


async def to_unlicensing(fleet: Unreliable) -> None:
    await to_ready(fleet)
    fleet.cml_trouble = CmlDown(listening=True)
    await fleet.otto.act(W1, Drain())
    await fleet.reaches(P.UNLICENSING)


async def to_stopping(fleet: Unreliable) -> None:
    await to_ready(fleet)
    await fleet.otto.act(W1, Pause())
    await fleet.reaches(P.STOPPING)


async def to_stopped(fleet: Unreliable) -> None:
    await to_stopping(fleet)
    await fleet.reaches(P.STOPPED)


Way = Callable[[Unreliable], Awaitable[None]]
RUNNING: dict[WorkerPhase, Way] = {
    P.EC2_READY: to_ec2_ready,
    P.STARTING: to_starting,
    P.READY_UNLICENSED: to_ready_unlicensed,
    P.LICENSING: to_licensing,
    P.READY: to_ready,
    P.ACTIVE: to_active,
    P.DRAINING: to_draining,
    P.UNLICENSING: to_unlicensing,
}
WAYS: dict[WorkerPhase, Way] = {
    P.PENDING: to_pending,
    P.PROVISIONING_EC2: to_provisioning,
    **RUNNING,
    P.STOPPING: to_stopping,
    P.STOPPED: to_stopped,
}


async def there(fleet: Unreliable, phase: WorkerPhase) -> LabWorker:
    """Bring a worker into a phase."""
    await WAYS[phase](fleet)
    worker = await fleet.worker()
    assert worker.status.phase is phase, story(worker)
    return worker


async def session_of(fleet: Unreliable) -> LabletSession:
    session = await fleet.otto.get(Ref(LabletSession, "s1"))
    assert session is not None
    return session


async def raised(fleet: Unreliable) -> set[str]:
    return {alert.alert for alert in await fleet.otto.alerts()}


@virtually
async def test_lesson_1_a_drain_waits_for_the_session_and_is_no_stop() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_draining(fleet)
        worker = await fleet.stays(P.DRAINING, HOUR)
        accepting = find_condition(worker.status.conditions, WorkerCondition.ACCEPTING_LABS)
        assert accepting is not None
        assert accepting.status is Truth.FALSE
        assert (await session_of(fleet)).status.phase is SessionPhase.RUNNING
        assert await fleet.is_on(worker)
        assert len(fleet.licences.taken) == 1
        await fleet.end_session()
        worker = await fleet.reaches(P.STOPPED, within=timedelta(minutes=10))
        assert fleet.licences.taken == {}
        assert (await fleet.otto.licences()).seats == ()
        assert worker.spec.wanted_state == "stopped"
        await fleet.stays(P.STOPPED, A_WHILE)


@virtually
async def test_a_drain_waits_for_labs_of_sessions_that_are_not_known_until_its_deadline() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_ready(fleet)
        worker = await fleet.worker()
        cml = fleet.cml(worker.status.ec2.instance_id)
        title = "default/lost [0f8fad5b-d9cb-469f-a165-70867728950e]"
        lab, _ = cml.import_lab(clouds.text(clouds.node("R1")), cml.users.administrator, title)
        cml.labs.start(lab)
        await fleet.otto.act(W1, Drain(deadline_minutes=120))
        await fleet.stays(P.DRAINING, HOUR)
        assert len(cml.labs) == 1
        await fleet.reaches(P.STOPPED, within=2 * HOUR)


@virtually
async def test_a_cancelled_drain_leaves_everything_as_it_was() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_draining(fleet)
        await asyncio.sleep(600)
        await fleet.otto.act(W1, Undrain())
        worker = await fleet.stays(P.ACTIVE, timedelta(hours=5))
        assert (worker.status.drain_deadline_at, worker.spec.wanted_state) == (None, "running")
        assert (await session_of(fleet)).status.phase is SessionPhase.RUNNING
        assert len(fleet.licences.taken) == 1
        assert await raised(fleet) == set()


@pytest.mark.parametrize("phase", [P.READY, P.READY_UNLICENSED], ids=str)
@virtually
async def test_a_drain_is_cancelled_into_the_phase_from_which_it_began(phase: WorkerPhase) -> None:
    fleet = Unreliable()
    async with fleet.running():
        await WAYS[phase](fleet)
    await fleet.host_session(await fleet.worker())  # nobody leads, so that it is not ACTIVE
    await fleet.otto.act(W1, Drain())
    async with fleet.running():
        await fleet.stays(P.DRAINING, A_WHILE)
    await fleet.otto.act(W1, Undrain())
    assert (await fleet.worker()).status.phase is phase
    async with fleet.running():
        await fleet.end_session()
        await fleet.reaches(phase)


@virtually
async def test_a_stopped_machine_that_is_imported_stays_stopped_until_it_is_wanted() -> None:
    fleet = Unreliable()
    found = fleet.cloud.account.run(LaunchOrder(HERE, "m5zn.metal", fleet.cloud.account.images(HERE)[0].image_id))
    await asyncio.sleep(300)
    fleet.cloud.account.stop(HERE, found.instance_id)
    await asyncio.sleep(600)
    async with fleet.controlled():
        name = found.instance_id
        while await fleet.gone(name):
            await asyncio.sleep(30)
            name = next((one.metadata.name for one in (await fleet.otto.list(LabWorker)).items), name)
        await fleet.reaches(P.STOPPED, name=name)
        worker = await fleet.stays(P.STOPPED, A_WHILE, name)
        assert worker.spec.wanted_state == "stopped"
        await fleet.otto.act(Ref(LabWorker, name), Resume())
        await fleet.reaches(P.READY_UNLICENSED, P.READY, name=name)


@virtually
async def test_sessions_are_warned_before_the_deadline_ended_at_it_and_given_time_to_be_collected() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_active(fleet)
        begun = fleet.clock.now()
        await fleet.otto.act(W1, Drain(deadline_minutes=60))
        await asyncio.sleep(44 * 60)
        assert await raised(fleet) == set()
        await asyncio.sleep(2 * 60)
        assert await raised(fleet) == {DRAIN}
        await asyncio.sleep(13 * 60 + 30)
        assert (await session_of(fleet)).status.phase is SessionPhase.RUNNING
        await asyncio.sleep(60)
        session = await session_of(fleet)
        assert session.status.phase is SessionPhase.COLLECTING
        assert session.status.outcome is SessionPhase.TERMINATED
        await fleet.stays(P.DRAINING, timedelta(minutes=5))
        await fleet.end_session()
        await fleet.reaches(P.STOPPED, within=timedelta(minutes=6))
        assert fleet.clock.now() - begun < timedelta(minutes=72)
        assert fleet.licences.taken == {}
        assert await raised(fleet) == set()


@virtually
async def test_a_session_that_does_not_end_holds_a_drain_up_for_ten_minutes_only() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_active(fleet)
        begun = fleet.clock.now()
        await fleet.otto.act(W1, Drain(deadline_minutes=60))
        worker = await fleet.reaches(P.UNLICENSING, P.STOPPING)
        assert timedelta(minutes=70) <= worker.status.history[-1].at - begun < timedelta(minutes=71)
        await fleet.reaches(P.STOPPED)
        assert fleet.licences.taken == {}


@virtually
async def test_a_deadline_that_came_while_nobody_led_is_kept_by_the_next_leader() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_active(fleet)
        await fleet.otto.act(W1, Drain(deadline_minutes=60))
        await asyncio.sleep(60)
    await asyncio.sleep(2 * 3600)
    async with fleet.running():
        await asyncio.sleep(60)
        assert (await session_of(fleet)).status.phase is SessionPhase.COLLECTING
        await fleet.reaches(P.STOPPED)


@virtually
async def test_a_drain_that_is_cancelled_at_the_last_moment_ends_no_session() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_draining(fleet)
    view = WorkerView(await fleet.worker(), fleet.clock.now())
    await fleet.otto.act(W1, Undrain())
    hands = WorkerEffects(fleet.plane(), fleet.cloud, fleet.hosts, OneSecret())
    with pytest.raises(Conflict):
        await hands.do(view, EndSessions([("default", "s1")], "its time is up"))
    assert (await session_of(fleet)).status.phase is SessionPhase.RUNNING


@virtually
async def test_a_drain_that_cannot_go_on_is_complained_of_once_its_time_is_up() -> None:
    fleet = Unreliable()
    fleet.licences.reachable = False
    async with fleet.running():
        await fleet.create()
        await fleet.reaches(P.LICENSING)
        worker = await fleet.reaches(P.READY_UNLICENSED)
        assert worker.status.cml.licensed is None
        fleet.cml_trouble = CmlDown(listening=False)
        await fleet.otto.act(W1, Drain(deadline_minutes=30))
        await fleet.stays(P.DRAINING, timedelta(minutes=39))
        assert await raised(fleet) == set()
        await asyncio.sleep(420)
        assert await raised(fleet) == {OVERDUE}
        fleet.cml_trouble = None
        await fleet.reaches(P.STOPPED)
        assert await raised(fleet) == set()


@virtually
async def test_lesson_11_labs_that_run_are_stopped_so_that_cml_gives_its_licence_back() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_ready(fleet)
        host = await fleet.hosts.of(await fleet.worker())
        lab = await host.ensure("somebody's", LAB)
        await host.start(lab.lab_id)
        await asyncio.sleep(300)
        assert (await host.stats()).running_nodes > 0
        await fleet.otto.act(W1, Drain())
        await fleet.reaches(P.STOPPED)
        assert fleet.licences.taken == {}
        assert (await fleet.otto.licences()).seats == ()


@virtually
async def test_who_resumes_a_worker_that_is_just_being_stopped_is_heard() -> None:
    fleet = Unreliable()
    async with fleet.running():
        await to_stopping(fleet)
        await fleet.otto.act(W1, Resume())
        worker = await fleet.reaches(P.READY, within=timedelta(minutes=30))
        assert worker.spec.wanted_state == "running"


@pytest.mark.parametrize("phase", WAYS, ids=str)
@virtually
async def test_a_worker_is_deleted_from_every_phase_with_its_licence_and_its_machine(phase: WorkerPhase) -> None:
    fleet = Unreliable()
    async with fleet.running():
        worker = await there(fleet, phase)
        await fleet.otto.delete(W1)
        if phase in {P.ACTIVE, P.DRAINING}:
            await fleet.stays(P.DRAINING, A_WHILE)
            await fleet.end_session()
        fleet.cml_trouble = None
        await fleet.vanishes()
        machines = fleet.cloud.account.machines
        assert {one.state(fleet.clock.now()) for one in machines.values()} <= {InstanceState.TERMINATED}
        assert len(machines) == (0 if phase is P.PENDING else 1)
        assert fleet.licences.taken == {}
        assert (await fleet.otto.licences()).seats == ()
        assert await raised(fleet) == set()
        assert await fleet.stored(f"occupied/{worker.metadata.uid}") == []


@pytest.mark.parametrize("phase", RUNNING, ids=str)
@virtually
async def test_what_somebody_stops_by_hand_stays_stopped(phase: WorkerPhase) -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        worker = await there(fleet, phase)
        fleet.cloud.account.stop(HERE, worker.status.ec2.instance_id)
        await fleet.reaches(P.STOPPED, within=timedelta(minutes=10))
        worker = await fleet.stays(P.STOPPED, A_WHILE)
        assert worker.spec.wanted_state == "stopped"
        assert not await fleet.is_on(worker)
        fleet.cml_trouble = None
        if phase in {P.ACTIVE, P.DRAINING}:
            await fleet.end_session()
        await fleet.otto.act(W1, Resume())
        await fleet.reaches(P.READY if phase is not P.READY_UNLICENSED else phase)
        assert len(fleet.cloud.account.machines) == 1


@pytest.mark.parametrize("phase", [*RUNNING, P.STOPPING, P.STOPPED], ids=str)
@virtually
async def test_what_somebody_terminates_by_hand_has_ended_and_its_seat_is_complained_of(phase: WorkerPhase) -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        worker = await there(fleet, phase)
        taken = len(fleet.licences.taken)
        fleet.cloud.account.terminate(HERE, worker.status.ec2.instance_id)
        await fleet.reaches(P.TERMINATED, within=timedelta(minutes=10))
        seats = (await fleet.otto.licences()).seats
        may_have_one = phase is P.LICENSING  # it was being registered, and nobody can ask CML any more
        assert [one.state for one in seats] == [SeatState.ORPHANED] * (1 if taken or may_have_one else 0)
        assert await raised(fleet) - {STRANDED} == ({"LicenceOrphaned"} if seats else set())
        await asyncio.sleep(A_WHILE.total_seconds())
        assert len(fleet.cloud.account.machines) == 1


@virtually
async def test_what_somebody_terminates_during_its_launch_is_launched_once_more() -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        await there(fleet, P.PROVISIONING_EC2)
        (machine,) = fleet.cloud.account.machines.values()
        fleet.cloud.account.terminate(HERE, machine.instance_id)
        await fleet.reaches(P.READY)
        assert len(fleet.living()) == 1


@virtually
async def test_what_somebody_starts_by_hand_serves_again() -> None:
    fleet = Unreliable()
    async with fleet.controlled():
        worker = await there(fleet, P.STOPPED)
        fleet.cloud.account.start(HERE, worker.status.ec2.instance_id)
        worker = await fleet.reaches(P.READY)
        assert worker.spec.wanted_state == "running"
        assert worker.status.resume_count == 1
