"""`lcm serve` as an operator runs it: several processes on one store."""

import asyncio
import re
import time
from pathlib import Path

import httpx
import pytest

from harness.api_world import Shell
from harness.commands import SOON, Running, lcm
from harness.documents import document
from harness.servers import LOOPBACK, EtcdServer, free_port
from lcm.system.clock import new_id

KEY = "a-key-that-nobody-guesses"


@pytest.fixture(params=["sqlite", "etcd"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    said = {"CONTROL_PLANE_API_KEY": KEY, "LCM_DATA_DIR": str(tmp_path / "data"), "LCM_CLOUD": "simulated"}
    if request.param == "etcd":
        said |= {"ETCD_ENDPOINTS": request.getfixturevalue("etcd").endpoint, "ETCD_ROOT": f"/{new_id()}/"}
    return said


# On etcd five processes do so: test_five_processes.
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
async def test_what_is_written_through_one_process_is_seen_through_another(
    tmp_path: Path, engine: dict[str, str]
) -> None:
    with (
        Running(tmp_path, "serve", "api", "--port=0", **engine) as one,
        Running(tmp_path, "serve", "all", "--port=0", **engine) as other,
    ):
        async with one.ready().client(KEY) as writer, other.ready().client(KEY) as reader:
            present = (await reader.get("/api/workers")).json()["revision"]
            async with reader.stream("GET", f"/api/watch?kinds=LabWorker&after={present}") as watch:
                lines = watch.aiter_lines()
                assert (await writer.post("/api/workers", json=document("LabWorker"))).status_code == 201
                assert '"w1"' in await asyncio.wait_for(anext(lines), SOON)
        assert (one.stop()[0], other.stop()[0]) == (0, 0), one.output + other.output
        assert "Traceback" not in one.output + other.output


def test_a_backup_is_restored_only_when_no_process_runs(tmp_path: Path, engine: dict[str, str]) -> None:
    desk, file = Shell(tmp_path), tmp_path / "backup"
    desk.environment.update(engine)
    with Running(tmp_path, "serve", "api", "--port=0", **engine) as it:
        it.ready()
        desk.out("backup", file)
        refused = desk.lcm("restore", file, "--yes")
        assert refused.exit_code == 5
        assert re.search(
            rf"leases are held \(processes/\S+-{it.process.pid}-|processes of `lcm serve` run on", refused.stderr
        )
        assert it.stop()[0] == 0
    assert "new epoch" in desk.out("restore", file, "--yes")


def test_a_part_that_never_will_be_built_is_told(tmp_path: Path) -> None:
    refused = Shell(tmp_path).lcm("serve", "everything")
    assert (refused.exit_code, "everything" in refused.stderr) == (2, True)


def test_a_store_that_does_not_answer_is_told_to_a_command_that_ends(tmp_path: Path) -> None:
    endpoint = f"{LOOPBACK}:{free_port()}"
    refused = lcm(tmp_path, "backup", tmp_path / "backup", ETCD_ENDPOINTS=endpoint)
    assert refused.returncode == 6
    assert endpoint in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_restore_after_a_kill_says_when_it_will_work(tmp_path: Path, etcd: EtcdServer) -> None:
    said = {"CONTROL_PLANE_API_KEY": KEY, "ETCD_ENDPOINTS": etcd.endpoint, "ETCD_ROOT": f"/{new_id()}/"}
    desk, file = Shell(tmp_path), tmp_path / "backup"
    desk.environment.update(said)
    with Running(tmp_path, "serve", "api", "--port=0", **said) as it:
        it.ready()
        desk.out("backup", file)
        it.kill()
        refused = desk.lcm("restore", file, "--yes")
    assert refused.exit_code == 5
    assert "Leases of processes that were killed end within 15 seconds" in refused.stderr


def test_on_a_simulated_cloud_what_acts_on_it_is_served_together(tmp_path: Path) -> None:
    refused = lcm(tmp_path, "serve", "lablet-controller", CONTROL_PLANE_API_KEY=KEY, LCM_CLOUD="simulated")
    assert refused.returncode == 5
    assert "lcm serve lablet-controller worker-controller" in " ".join(refused.stderr.split())


async def test_of_several_processes_one_runs_the_simulated_cloud(tmp_path: Path) -> None:
    said = {"CONTROL_PLANE_API_KEY": KEY, "LCM_DATA_DIR": str(tmp_path / "data"), "LCM_CLOUD": "simulated"}
    said |= {"LCM_SIM_SPEED": "1000"}
    cloud = '"lease": "simulated-cloud", "holder"'
    with (
        Running(tmp_path, "serve", "all", "--port=0", **said) as one,
        Running(tmp_path, "serve", "all", "--port=0", **said) as other,
    ):
        async with one.ready().client(KEY) as client:
            other.ready()
            assert (await client.post("/api/workers", json=document("LabWorker"))).status_code == 201
            await _reaches_machine(client)
        leader, follower = (one, other) if _leads(one) else (other, one)
        assert (_leads(leader), _leads(follower)) == (True, False)
        assert cloud in follower.output
        assert leader.stop()[0] == 0
        deadline = time.monotonic() + SOON
        while not _leads(follower) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        assert '"machines": 1' in follower.output, follower.output
        assert follower.stop()[0] == 0
        assert "Traceback" not in one.output + other.output


def _leads(process: Running) -> bool:
    """Return whether a process runs the simulated cloud."""
    lines = [line for line in process.output.splitlines() if '"lease": "simulated-cloud"' in line]
    return any('"event": "elected"' in line for line in lines)


async def _reaches_machine(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + SOON
    while time.monotonic() < deadline:
        if (await client.get("/api/workers/w1")).json()["status"]["ec2"]["instance_id"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("w1 has no machine")
