"""`lcm up` as a person runs it: what it says, how it stops, and whom it turns away."""

import asyncio
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
import pytest

from harness import suite
from harness.api_world import Shell
from harness.commands import SOON, Running, lcm, up
from harness.documents import document
from harness.servers import LOOPBACK

EXAMPLES = suite.ROOT / "examples" / "first"


@asynccontextmanager
async def dawdling(it: Running) -> AsyncIterator[None]:
    """Begin a request and do not end it."""
    _, writer = await asyncio.open_connection(LOOPBACK, httpx.URL(it.url).port)
    head = f"POST /api/workers HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {it.token}\r\ncontent-length: 99"
    writer.write(f"{head}\r\n\r\n{{".encode())
    await asyncio.sleep(0.2)
    try:
        yield
    finally:
        writer.close()


async def to_the_end(lines: AsyncIterator[str]) -> None:
    async for _ in lines:
        pass


async def test_up_stops_at_once_though_somebody_watches(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        async with it.ready().client() as client, client.stream("GET", "/api/watch?kinds=LabWorker&after=1") as watch:
            lines = watch.aiter_lines()
            await client.post("/api/workers", json=document("LabWorker"))
            assert '"w1"' in await asyncio.wait_for(anext(lines), SOON)
            code, took = await asyncio.to_thread(it.stop)
            with pytest.raises(httpx.RemoteProtocolError):
                await asyncio.wait_for(to_the_end(lines), SOON)
        assert code == 0, it.output
        assert took < suite.here(3)
        assert "Traceback" not in it.output


async def test_up_stops_though_somebody_never_ends_a_request(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        async with dawdling(it.ready()):
            code, took = await asyncio.to_thread(it.stop)
        assert code == 0, it.output
        assert took < suite.here(8)


async def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        it.ready()
        async with dawdling(it):
            it.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.5)
            assert it.process.poll() is None
            code, _ = await asyncio.to_thread(it.stop)
        assert code == 130
        assert "by force" in it.output


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        refused = lcm(tmp_path, "up", "--port", port, "--data", tmp_path / "data")
    assert refused.returncode == 5
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in refused.stderr
    assert "--port" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_folder_in_use_is_refused_until_its_process_is_gone(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        it.ready()
        refused = lcm(tmp_path, "up", "--port=0", "--data", tmp_path / "data")
        assert refused.returncode == 5
        assert f"process {it.process.pid} runs on {tmp_path / 'data'}" in refused.stderr
        assert it.process.poll() is None
        it.kill()
        with up(tmp_path) as next_one:
            says_what_runs_and_stops_cleanly(next_one.ready())


def says_what_runs_and_stops_cleanly(it: Running) -> None:
    code, took = it.stop(signal.SIGTERM)
    assert code == 0
    assert took < suite.here(3)
    for words in (it.url, str(it.home / "data" / "lcm.db"), "32 of 32 CPU", "lcm get workers", "is on disk"):
        assert words in it.output
    assert "Traceback" not in it.output


def test_a_senseless_speed_is_refused(tmp_path: Path) -> None:
    refused = Shell(tmp_path).lcm("up", "--speed=0", "--data", tmp_path)
    assert refused.exit_code == 2
    assert "speed" in refused.stderr


def test_a_bad_variable_stops_the_start_and_is_named(tmp_path: Path) -> None:
    refused = Shell(tmp_path, TOTAL_CPU_CORES="lots", LOG_LEVEL="LOUD").lcm("up", "--data", tmp_path / "data")
    assert refused.exit_code == 5
    assert "TOTAL_CPU_CORES" in refused.stderr
    assert "LOG_LEVEL" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "lcm.db"
    file.write_bytes(b"my holiday photos" * 100)
    refused = lcm(tmp_path, "up", "--port=0", "--data", tmp_path)
    assert refused.returncode == 1
    assert str(file) in refused.stderr
    assert "Traceback" not in refused.stderr
    assert file.read_bytes() == b"my holiday photos" * 100


class Desk:
    """The API of a running `lcm up`, for many quick questions."""

    def __init__(self, it: Running) -> None:
        headers = {"authorization": f"Bearer {it.token}"}
        self.client = httpx.Client(base_url=it.ready().url, headers=headers, trust_env=False, timeout=SOON)

    def workers(self) -> dict[str, tuple[str, str]]:
        """Return each worker's phase and machine."""
        items = self.client.get("/api/workers").json()["items"]
        return {one["metadata"]["name"]: (one["status"]["phase"], one["status"]["ec2"]["instance_id"]) for one in items}

    def until(self, **phases: str) -> dict[str, tuple[str, str]]:
        """Wait until there are these workers in these phases."""
        deadline = time.monotonic() + SOON
        found = self.workers()
        while {name: phase for name, (phase, _) in found.items()} != phases:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
            found = self.workers()
        return found

    def close(self) -> None:
        self.client.close()

    def seats(self) -> int:
        return len(self.client.get("/api/licenses").json()["seats"])


def test_a_fleet_comes_alive_and_outlives_a_kill(tmp_path: Path) -> None:
    person = Shell(tmp_path / "config")
    with up(tmp_path, "--speed=600") as it, closing(Desk(it.ready())) as desk:
        assert "no money is spent" in it.output
        assert "CML_ADMIN_PASSWORD and CML_LICENSE_TOKEN: not set, so generated" in it.output
        assert person.out("apply", "-f", EXAMPLES).count("created") == 6
        before, token = desk.until(exam="READY", workshop="READY_UNLICENSED"), it.token
        assert desk.seats() == 1
        time.sleep(1)
        it.kill()
    with up(tmp_path, "--speed=600") as it, closing(Desk(it.ready())) as desk:
        assert "2 machines" in it.output
        assert it.token == token
        assert desk.workers() == before
        assert person.out("apply", "-f", EXAMPLES).count("unchanged") == 6
        assert "workshop" in person.out("get", "workers")
        desk.client.delete("/api/workers/exam").raise_for_status()
        assert desk.until(workshop="READY_UNLICENSED")["workshop"] == before["workshop"]
        assert desk.seats() == 0
        assert it.stop()[0] == 0, it.output
        assert "Traceback" not in it.output
    assert person.lcm("get", "workers").exit_code != 0


def test_only_a_simulated_cloud_is_sped_up(tmp_path: Path) -> None:
    refused = Shell(tmp_path).lcm("up", "--cloud=aws", "--speed=60", "--data", tmp_path / "data")
    assert (refused.exit_code, "only a simulated cloud can be sped up" in refused.stderr) == (2, True)
    assert not (tmp_path / "data").exists()


def test_up_is_quiet_and_keeps_its_log_in_a_file_of_its_owner(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Running(tmp_path, "up", "--port=0", f"--data={data}") as it:
        assert "Ctrl-C stops it" in it.ready().output
        assert '"event"' not in it.output
        assert it.stop()[0] == 0
    log = data / "lcm.log"
    assert str(log) in it.output
    assert '"event": "started"' in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@contextmanager
def make_up(tmp_path: Path, pages: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `make up` with a program in the place of `lcm`, and one in that of the Python that builds the pages."""
    stopped = "trap 'echo Stopped; exit 0' INT; echo ready; while :; do sleep 0.1; done"
    program = tmp_path / "lcm"
    program.write_text(f"#!/bin/sh\n{stopped}\n")
    program.chmod(0o700)
    own = [f"BIN={tmp_path}", f"PYTHON={pages}"]
    command = ["make", "--no-print-directory", "-o", ".venv/run.stamp", "up", *own]
    with subprocess.Popen(
        command, cwd=suite.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as make:
        try:
            yield make
        finally:
            if make.poll() is None:
                os.killpg(make.pid, signal.SIGKILL)


def interrupt(make: "subprocess.Popen[str]") -> None:
    """Press Ctrl-C once make waits for its program: it takes offence at one while it looks which of them have ended."""
    deadline = time.monotonic() + SOON
    while "State:\tS" not in Path(f"/proc/{make.pid}/status").read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(make.pid, signal.SIGINT)


def test_ctrl_c_ends_make_up_without_a_word_from_make(tmp_path: Path) -> None:
    with make_up(tmp_path, "sh -c 'exit 130'") as make:
        assert make.stdout
        assert make.stdout.readline() == "ready\n"
        interrupt(make)
        assert make.stdout.read() == "Stopped\n"


def test_ctrl_c_gives_up_the_pages_though_a_shell_s_background_ignores_it() -> None:
    def ignore() -> None:
        """Begin as what a shell runs in the background does: deaf to SIGINT until the program says otherwise."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command = [sys.executable, "tools/pages.py", "build"]
    with (suite.ROOT / ".cache" / "pages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(command, cwd=suite.ROOT, preexec_fn=ignore) as building:  # noqa: PLW1509 - one system call
            deadline = time.monotonic() + SOON
            while not catches(building.pid, signal.SIGINT) and time.monotonic() < deadline:
                time.sleep(0.05)
            building.send_signal(signal.SIGINT)
            try:
                assert building.wait(SOON) == 130
            finally:
                building.kill()


def catches(pid: int, one: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    caught = re.search("SigCgt:\\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return bool(caught and int(caught[1], 16) & 1 << one - 1)


def test_make_up_says_that_the_pages_could_not_be_built_and_runs(tmp_path: Path) -> None:
    with make_up(tmp_path, "sh -c 'exit 1'") as make:
        assert make.stdout
        told = {make.stdout.readline(), make.stdout.readline()}
        assert told == {"ready\n", "The pages could not be built: see .cache/pages.log\n"}
        interrupt(make)
        assert make.stdout.read() == "Stopped\n"


def test_up_prints_a_link_that_signs_in_once(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        link = re.search(r"http://[0-9.]+:\d+/sign-in\?code=\S+", it.ready().output)
        assert link
        with httpx.Client(trust_env=False) as browser:
            assert browser.get(link[0]).status_code == 200
            here = {"Origin": it.url}
            assert browser.post(link[0], headers=here).status_code == 303
            assert browser.get(f"{it.url}/api/whoami").json() == {"name": "local-admin", "role": "admin"}
            assert httpx.post(link[0], headers=here, trust_env=False).status_code == 401
            told = browser.get(f"{it.url}/api/audit").json()["items"]
        assert [one["deeds"][0]["verb"] for one in told] == ["create", "create", "sign-in"]
        assert [one["address"] for one in told] == ["", "", "127.0.0.1"]
