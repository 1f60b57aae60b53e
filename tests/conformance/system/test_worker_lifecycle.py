"""A worker's whole life under the real controller, told once and lived on every cloud, in virtual time and in real."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import clouds
from harness.fleet_world import W1
from harness.installations import everywhere
from harness.lab_hosts import CmlSim
from harness.workers import Estate, story
from lcm.control.plane.protocol import Drain, Pause, Resume, Undrain
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import SeatState
from lcm.providers.protocols.compute import InstanceState

LAUNCHED = ["PENDING", "PROVISIONING_EC2", "EC2_READY", "STARTING", "READY_UNLICENSED", "LICENSING", "READY"]
PAUSED = ["ACTIVE", "READY", "STOPPING", "STOPPED"]
RESUMED = ["STARTING", "READY_UNLICENSED", "READY"]
DRAINED = ["ACTIVE", "DRAINING", "ACTIVE", "DRAINING", "UNLICENSING", "STOPPING", "TERMINATING_EC2"]


@pytest.fixture
def own_cml_sim(tmp_path: Path) -> Iterator[CmlSim]:
    """Run a simulator that nobody else uses, for its power is cut."""
    with CmlSim(tmp_path) as sim:
        yield sim


@everywhere
async def test_a_worker_lives_its_whole_life(world: Estate) -> None:
    before = (await world.otto.list(LabWorker)).revision
    async with asyncio.TaskGroup() as group:
        lived = group.create_task(chronicle(world, after=before))
        await world.create()
        async with world.controlled():
            worker = await is_launched_and_licensed(world)
            await hosts_a_session_and_is_paused(world, worker)
            worker = await is_resumed(world)
            await is_drained_and_not_after_all(world, worker)
            await is_deleted(world, worker)
    assert lived.result() == [*LAUNCHED, *PAUSED, *RESUMED, *DRAINED]


async def is_launched_and_licensed(world: Estate) -> LabWorker:
    worker = await world.reaches(WorkerPhase.READY)
    assert worker.status.capacity is not None
    assert worker.status.capacity.cpu_millis > 0
    assert worker.status.cml.certificate == world.pin
    assert await world.seats_taken() == 1
    (seat,) = (await world.otto.licences()).seats
    assert (seat.worker_id, seat.state) == (worker.metadata.uid, SeatState.REGISTERED)
    return worker


async def hosts_a_session_and_is_paused(world: Estate, worker: LabWorker) -> None:
    await world.host_session(worker)
    await world.reaches(WorkerPhase.ACTIVE)
    await world.end_session()
    await world.reaches(WorkerPhase.READY)
    await world.otto.act(W1, Pause())
    worker = await world.reaches(WorkerPhase.STOPPED)
    assert worker.status.pause_count == 1
    async with asyncio.timeout(world.patience.total_seconds()):
        while await world.is_on(worker):
            await asyncio.sleep(world.glance_seconds)
    assert await world.seats_taken() == 1, "a paused worker keeps its licence"


async def is_resumed(world: Estate) -> LabWorker:
    await world.otto.act(W1, Resume())
    worker = await world.reaches(WorkerPhase.READY)
    assert worker.status.resume_count == 1, story(worker)
    return worker


async def is_drained_and_not_after_all(world: Estate, worker: LabWorker) -> None:
    await world.host_session(worker, "s2")
    host = await world.hosts.of(worker)
    lab = await host.ensure("ccna-1", clouds.text())
    await host.start(lab.lab_id)
    await is_measured(world)
    await world.otto.act(W1, Drain(deadline_minutes=60))
    await world.stays(WorkerPhase.DRAINING, world.a_while)
    await world.otto.act(W1, Undrain())
    await world.reaches(WorkerPhase.ACTIVE)


async def is_measured(world: Estate) -> None:
    """See the monitor report the lab that runs."""
    async with asyncio.timeout(world.patience.total_seconds()):
        while True:
            found = await world.otto.telemetry(W1)
            if found is not None and found.running_nodes:
                assert found.ec2_at is not None
                return
            await asyncio.sleep(world.glance_seconds)


async def is_deleted(world: Estate, worker: LabWorker) -> None:
    """Go only after its session, with its licence given back although its lab still runs."""
    await world.otto.delete(W1)
    await world.stays(WorkerPhase.DRAINING, world.a_while)
    await world.end_session("s2")
    await world.vanishes()
    machine = await world.cloud.find(worker.spec.aws.region, worker.status.ec2.instance_id)
    assert machine is None or machine.state is InstanceState.TERMINATED
    assert await world.seats_taken() == 0
    assert (await world.otto.licences()).seats == ()
    assert await world.otto.alerts() == []


async def chronicle(world: Estate, *, after: int) -> list[str]:
    """Return each phase that a worker enters, until it is gone."""
    phases: list[str] = []
    async with world.otto.watch(LabWorker, after=after) as watch:
        async for changes in watch:
            (seen,) = changes.seen
            if seen.resource is None:
                break
            assert isinstance(seen.resource, LabWorker)
            if phases[-1:] != [seen.resource.status.phase]:
                phases.append(str(seen.resource.status.phase))
    return phases
