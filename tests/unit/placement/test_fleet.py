"""The simulated account that `lcm up` keeps in a file: machines, licences and labs live on after their process."""

import asyncio
import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from harness import given
from harness.lab_hosts import LAB
from harness.plane_world import Standing
from lcm.model.base.errors import Stuck
from lcm.model.kinds.worker import AwsSpec
from lcm.model.topology.node_definitions import NodeSize
from lcm.providers.protocols.compute import Instance, InstanceState, Launch, MachineMetrics
from lcm.sim.cloud.fleet import SimFleet, machine_size
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.parts import NodeState
from lcm.sim.cml.rest.documents import Registration
from lcm.sim.time.chance import Chance

REGION = "us-east-1"
BEGIN = given.moment("08:00")
LAUNCH = Launch(
    worker_uid="uid-1",
    worker_name="w1",
    token="uid-1-1",
    aws=AwsSpec(region=REGION, ami_name_pattern="CML-2.9*"),
    instance_type="m5zn.metal",
)


def fleet(file: Path | None, at: datetime = BEGIN, speed: float = 1.0) -> SimFleet:
    return SimFleet(Standing(at), Chance(at.isoformat()), speed=speed, file=file)


async def running(file: Path, minutes: int = 20) -> tuple[Instance, SimFleet]:
    """Launch a machine and come back later, in another process, when CML is up."""
    machine = await fleet(file).cloud.ensure(LAUNCH)
    return machine, fleet(file, BEGIN + timedelta(minutes=minutes))


def cml_of(at: SimFleet, machine: Instance) -> Cml:
    found = at.cloud.find_attached(machine.instance_id)
    assert isinstance(found, Cml)
    return found


async def test_a_machine_outlives_its_process_and_boots_meanwhile(tmp_path: Path) -> None:
    machine, later = await running(tmp_path / "sim.json")
    found = await later.cloud.find(REGION, machine.instance_id)
    assert found is not None
    assert (found.state, found.public_ip) == (InstanceState.RUNNING, machine.public_ip)
    assert cml_of(later, machine).is_up


async def test_every_cml_has_the_node_definitions_that_the_installation_sizes() -> None:
    clock = Standing(BEGIN)
    at = SimFleet(clock, Chance(1), node_sizes={"gitlab": NodeSize(cpus=4, ram_mb=8192)})
    machine = await at.cloud.ensure(LAUNCH)
    clock.moment += timedelta(minutes=20)
    known = {one.definition_id: one for one in await DirectHost(cml_of(at, machine)).node_definitions()}
    assert (known["gitlab"].cpus, known["gitlab"].ram_mb) == (4, 8192)
    assert "iosv" in known


async def test_cloudwatch_publishes_what_a_simulated_machine_does() -> None:
    clock = Standing(BEGIN)
    at = SimFleet(clock, Chance(1))
    machine = await at.cloud.ensure(LAUNCH)
    clock.moment += timedelta(minutes=20)
    ids, since = [machine.instance_id], clock.moment - timedelta(minutes=10)
    idle = (await at.cloud.metrics(REGION, ids, since=since, until=clock.moment))[machine.instance_id]
    assert idle.measured_at == clock.moment
    assert idle.cpu_percent is not None
    assert idle.memory_percent is not None
    cml = cml_of(at, machine)
    lab, _ = cml.import_lab(LAB, cml.users.administrator)
    cml.labs.start(lab)
    clock.moment += timedelta(minutes=10)
    since = clock.moment - timedelta(minutes=10)
    busy = (await at.cloud.metrics(REGION, ids, since=since, until=clock.moment))[machine.instance_id]
    assert (busy.memory_percent or 0) > idle.memory_percent
    assert (busy.network_in_bytes or 0) > (idle.network_in_bytes or 0) > 0
    at.cloud.account.stop(REGION, machine.instance_id)
    clock.moment += timedelta(hours=1)
    since = clock.moment - timedelta(minutes=10)
    assert await at.cloud.metrics(REGION, ids, since=since, until=clock.moment) == {
        machine.instance_id: MachineMetrics()
    }


async def test_a_launch_that_is_repeated_after_a_kill_gives_the_same_machine(tmp_path: Path) -> None:
    machine = await fleet(tmp_path / "sim.json").cloud.ensure(LAUNCH)
    again = await fleet(tmp_path / "sim.json").cloud.ensure(LAUNCH)
    assert again.instance_id == machine.instance_id


async def test_the_newest_image_is_cml_2_9_and_an_older_one_is_there(tmp_path: Path) -> None:
    first, second = fleet(tmp_path / "sim.json"), fleet(None)
    await first.save()
    again = fleet(tmp_path / "sim.json")
    assert [one.name for one in again.cloud.account.images(REGION, "CML-*")] == ["CML-2.8.1", "CML-2.9.0"]
    newest = await second.cloud.newest_image(REGION, "CML-*")
    assert newest is not None
    assert newest.name == "CML-2.9.0"


async def test_licence_and_labs_outlive_their_process_and_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "sim.json"
    machine, first = await running(file)
    cml = cml_of(first, machine)
    host = DirectHost(cml)
    lab = await host.ensure("ours", LAB)
    await host.start(lab.lab_id)
    cml.licence.register(Registration(token="simulated", reregister=False))
    await first.save()
    later = fleet(file, BEGIN + timedelta(hours=1))
    there = DirectHost(cml_of(later, machine))
    assert (await there.licence()).in_compliance
    assert later.licences.taken == {cml.licence.udi: "CML_Enterprise"}
    found = await there.find("ours")
    assert found is not None
    assert found.lab_id == lab.lab_id
    assert await there.converged(lab.lab_id)
    kept = cml_of(later, machine).labs.get(lab.lab_id)
    assert {node.life.state(cml_of(later, machine).pace.age()) for node in kept.nodes.values()} == {NodeState.BOOTED}
    assert all(link.a in kept.nodes[link.a.node_id].interfaces for link in kept.links.values())
    assert [event.category for event in await there.activity(since=BEGIN)]
    await there.stop(lab.lab_id)


async def test_what_was_stopped_meanwhile_is_stopped_once(tmp_path: Path) -> None:
    file = tmp_path / "sim.json"
    machine, first = await running(file)
    host = DirectHost(cml_of(first, machine))
    lab = await host.ensure("ours", LAB)
    await host.start(lab.lab_id)
    await first.cloud.stop(REGION, machine.instance_id)
    second = fleet(file, BEGIN + timedelta(hours=1))
    await second.cloud.start(REGION, machine.instance_id)
    third = fleet(file, BEGIN + timedelta(hours=2))
    there = DirectHost(cml_of(third, machine))
    await there.start(lab.lab_id)
    await third.save()
    last = fleet(file, BEGIN + timedelta(hours=3))
    assert await DirectHost(cml_of(last, machine)).converged(lab.lab_id)


async def test_another_speed_changes_nothing_that_was(tmp_path: Path) -> None:
    file = tmp_path / "sim.json"
    machine, first = await running(file)
    age = cml_of(first, machine).pace.age()
    await first.save()
    later = fleet(file, BEGIN + timedelta(minutes=21), speed=60)
    assert cml_of(later, machine).pace.age() == pytest.approx(age + 60)
    assert cml_of(later, machine).pace.speed == 60


BROKEN_PART = (
    '{"form":1,"account":{"images":{},"machines":{"i-1":{}},"addresses":0},"launches":[],"taken":{},"hosts":{}}'
)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"form":1', BROKEN_PART])
def test_a_file_that_cannot_be_read_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "sim.json"
    file.write_text(text)
    with pytest.raises(Stuck, match=r"sim\.json: the simulated cloud cannot be read"):
        fleet(file)
    assert file.read_text() == text


async def test_a_file_of_many_machines_is_read_as_it_was_written(tmp_path: Path) -> None:
    there = fleet(tmp_path / "sim.json")
    for number in range(250):
        await there.cloud.ensure(replace(LAUNCH, token=f"t-{number}", worker_uid=f"uid-{number}"))
    again = fleet(tmp_path / "sim.json")
    assert again.cloud.account.machines == there.cloud.account.machines


async def test_a_launch_that_cannot_be_kept_is_not_told_of(tmp_path: Path) -> None:
    there = fleet(tmp_path / "sim.json")
    (tmp_path / "sim.new").mkdir()
    with pytest.raises(Stuck, match="the simulated cloud cannot be saved"):
        await there.cloud.ensure(LAUNCH)


async def test_what_changes_by_itself_is_kept_soon_and_at_the_end(tmp_path: Path) -> None:
    there = fleet(tmp_path / "sim.json")
    running = asyncio.create_task(there.run())
    await asyncio.sleep(0.05)
    there.licences.taken["udi-1"] = "CML_Enterprise"
    async with asyncio.timeout(30):  # a second on an idle machine
        while fleet(tmp_path / "sim.json").licences.taken != {"udi-1": "CML_Enterprise"}:
            await asyncio.sleep(0.1)
    there.licences.taken.clear()
    running.cancel()
    await asyncio.wait([running])
    assert fleet(tmp_path / "sim.json").licences.taken == {}


async def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    await fleet(tmp_path / "sim.json").save()
    assert os.stat(tmp_path / "sim.json").st_mode & 0o077 == 0  # noqa: PTH116


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("m5zn.metal", (48, 192)),
        ("m8i.4xlarge", (16, 64)),
        ("c8i.xlarge", (4, 8)),
        ("r8i.metal-48xl", (192, 1536)),
        ("m5.metal", (96, 384)),
        ("t3.large", (2, 8)),
    ],
)
def test_a_machine_is_as_large_as_its_type_says(name: str, want: tuple[int, int]) -> None:
    assert machine_size(name) == want
