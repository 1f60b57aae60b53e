"""The parts of a process together: what a failing one does to the rest, and what is left when all is over."""

import asyncio
from pathlib import Path

import httpx
import pytest

from harness.documents import document
from harness.servers import LOOPBACK, free_port
from harness.stores import opened, puts
from lcm.compose import process
from lcm.compose.process import Controller, ControllerContext, ProcessPart, run_embedded
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, LcmError, Refused, Stuck
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.settings.load import Settings
from lcm.system.data_folder import STORE_FILE

ADMIN = Caller(name="ada", role=Role.ADMIN)
KEY = Secret("a-key-that-nobody-guesses")


async def failing() -> None:
    await asyncio.sleep(0)
    raise Stuck("broken", "this part is broken")


async def reload(file: Path) -> None:
    """Do what only the last process may do: replace everything."""
    async with opened(file) as store:
        await store.load(puts(), epoch="anew")


async def run_with_a_part_that_fails(settings: Settings, urls: list[str]) -> None:
    async with run_embedded(settings) as it:
        urls.append(it.running.url)
        it.running.parts.start("bad", failing())
        await it.running.parts.wait_until(asyncio.Event())


async def test_a_part_that_fails_ends_the_process_and_leaves_nothing_behind(tmp_path: Path) -> None:
    urls: list[str] = []
    with pytest.raises(Stuck, match="this part is broken"):
        await run_with_a_part_that_fails(Settings(data_dir=tmp_path, port=0), urls)
    async with httpx.AsyncClient(base_url=urls[0], trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")
    await reload(tmp_path / STORE_FILE)


async def test_nothing_is_restored_beneath_a_process_that_runs(tmp_path: Path) -> None:
    async with run_embedded(Settings(data_dir=tmp_path, port=0)):
        with pytest.raises(Refused, match=r"leases are held \(.*processes/"):
            await reload(tmp_path / STORE_FILE)
    await reload(tmp_path / STORE_FILE)


async def test_what_the_settings_say_stands_beneath_every_document(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, port=0, aws_region="eu-west-1")
    async with run_embedded(settings) as it:
        plane = it.running.control.plane_for(ADMIN)
        await plane.apply([document("LabWorker")])
        worker = await plane.get(Ref(LabWorker, "w1"))
        assert worker is not None
        assert worker.spec.aws.region == "eu-west-1"


async def test_a_controller_is_given_a_plane_of_its_own(tmp_path: Path) -> None:
    given: asyncio.Queue[Caller] = asyncio.Queue()

    async def control(plane: Plane, _: ControllerContext) -> None:
        given.put_nowait(plane.caller)
        await asyncio.Event().wait()

    controllers = [Controller(ProcessPart.SCHEDULER, (), control)]
    async with run_embedded(Settings(data_dir=tmp_path, port=0), controllers=controllers):
        caller = await given.get()
    assert (caller.role, caller.actor) == (Role.SERVICE, "scheduler")


async def test_the_allocator_and_the_cloud_are_there(tmp_path: Path) -> None:
    async with run_embedded(Settings(data_dir=tmp_path, port=0, total_cpu_cores=4.0), speed=60) as it:
        assert it.allocator.get_resource_usage()["total_cpu"] == 4
        assert await it.outside.cloud.list_owned("us-east-1") == []
        assert it.outside.speed == 60
        newest = await it.outside.cloud.newest_image("eu-central-1", "CML-*")
        assert newest is not None
        assert newest.name == "CML-2.9.0"


async def test_the_limits_of_the_settings_hold(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, port=0, control_plane_api_key=KEY, body_bytes=10)
    headers = {"authorization": f"Bearer {KEY.reveal()}"}
    async with (
        process.serve(settings, [ProcessPart.API]) as it,
        httpx.AsyncClient(trust_env=False, headers=headers) as client,
    ):
        assert (await client.post(f"{it.url}/api/workers", json=document("LabWorker"))).status_code == 413


async def test_what_listens_everywhere_is_reached_here(tmp_path: Path) -> None:
    async with run_embedded(Settings(data_dir=tmp_path, port=0, host="0.0.0.0", cleartext_allowed=True)) as it:
        assert it.running.url.startswith("http://127.0.0.1:")


async def test_a_part_that_is_not_built_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CONTROLLERS", process.CONTROLLERS[:1])
    settings = Settings(data_dir=tmp_path / "data", port=0, control_plane_api_key=KEY)
    with pytest.raises(Refused, match="this version has no scheduler; it can serve all, api, worker-controller"):
        await process.serve(settings, [ProcessPart.API, ProcessPart.SCHEDULER]).__aenter__()
    assert not (tmp_path / "data").exists()


async def test_nothing_is_served_without_a_key_for_controllers(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="CONTROL_PLANE_API_KEY"):
        await process.serve(Settings(data_dir=tmp_path, port=0), [ProcessPart.ALL]).__aenter__()


@pytest.mark.parametrize("host", ["nohost.invalid", "192.0.2.1", "a" * 70 + ".invalid"])
async def test_a_host_that_is_not_this_machine_is_named_and_no_port_is_blamed(tmp_path: Path, host: str) -> None:
    with pytest.raises(Refused, match="LCM_HOST") as caught:
        await run_embedded(Settings(data_dir=tmp_path, port=0, host=host)).__aenter__()
    assert "port" not in str(caught.value)


async def test_a_controller_in_its_own_process_works_for_the_api_of_another(tmp_path: Path) -> None:
    port = free_port()
    there = Settings(data_dir=tmp_path / "api", port=port, control_plane_api_key=KEY)
    here = Settings(
        data_dir=tmp_path / "controller",
        control_plane_api_key=KEY,
        control_plane_api_url=f"http://{LOOPBACK}:{port}",
        cloud="simulated",
    )
    async with (
        process.run_controllers(here, [ProcessPart.WORKER_CONTROLLER, ProcessPart.LABLET_CONTROLLER]),
        process.serve(there, [ProcessPart.API]) as it,
    ):
        plane = it.control.plane_for(ADMIN)
        await plane.apply([document("LabWorker")])
        await until_phase(plane, WorkerPhase.PROVISIONING_EC2)
        lease = await it.store.lease(ProcessPart.WORKER_CONTROLLER)
        worker = await plane.get(Ref(LabWorker, "w1"))
    assert lease is not None
    assert worker is not None
    assert worker.status.ec2.launch_attempt == 1
    assert sorted(file.name for file in (tmp_path / "controller").iterdir()) == ["sim-cloud.json", "sim-cloud.lock"]


async def test_a_controller_with_a_wrong_key_ends_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    there = Settings(data_dir=tmp_path, port=port, control_plane_api_key=KEY)
    other = Secret("a-key-that-nobody-knows-here")
    here = Settings(control_plane_api_key=other, control_plane_api_url=f"http://{LOOPBACK}:{port}", cloud="aws")
    async with (
        process.serve(there, [ProcessPart.API]),
        process.run_controllers(here, [ProcessPart.WORKER_CONTROLLER]) as running,
    ):
        with pytest.raises(LcmError, match="CONTROL_PLANE_API_KEY: the API does not accept it"):
            await running.parts.wait_until(asyncio.Event())


async def until_phase(plane: Plane, phase: WorkerPhase) -> None:
    async with asyncio.timeout(60):
        while (worker := await plane.get(Ref(LabWorker, "w1"))) is None or worker.status.phase is not phase:
            await asyncio.sleep(0.05)
