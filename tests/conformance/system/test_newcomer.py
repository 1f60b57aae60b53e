"""A newcomer's first quarter of an hour, at speed: from `lcm up` to a lab that was used and has left nothing."""

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec

from harness import suite
from harness.api_world import Shell
from harness.commands import SOON, Running, up
from lcm.compose.outside import SIM_FILE
from lcm.model.topology.lab import parse_lab

EXAMPLES = suite.ROOT / "examples" / "first"
TIMETABLE = EXAMPLES.parent / "timetable"
LAB = EXAMPLES / "labs" / "ccna-basics.yaml"
PATIENCE = 120.0
SESSION = "/api/lablet-sessions/mine"
T = TypeVar("T")


def test_a_newcomer_books_a_lab_uses_it_and_leaves_nothing(tmp_path: Path) -> None:
    with up(tmp_path, "--speed=120", "--first", EXAMPLES, "--first", TIMETABLE) as it, _api(it.ready()) as api:
        where = _booked(tmp_path)
        assert _console(*where).endswith(b"R1>")
        _until(lambda: _phase(api, "lesson-cleo"), {"RUNNING", "COLLECTING", "STOPPING", "COMPLETED"}.__contains__)
        _until(lambda: _labs(tmp_path, "mine"), lambda count: count == 1)
        _is_extended(tmp_path, api)
        assert "cpu" in _said(tmp_path, "observe", "session", "mine").lower()
        assert _status(api)["observation_count"] == 1
        _said(tmp_path, "cancel", "mine")
        _until(lambda: _phase(api, "mine"), lambda phase: phase == "TERMINATED")
        _is_collected(tmp_path)
        _until(lambda: _labs(tmp_path, "mine"), lambda count: count == 0)
        _until(lambda: _is_open(*where), lambda is_open: not is_open)
        assert "Traceback" not in it.output, it.output


def _api(it: Running) -> httpx.Client:
    headers = {"authorization": f"Bearer {it.token}"}
    return httpx.Client(base_url=it.url, headers=headers, trust_env=False, timeout=SOON)


def _said(home: Path, *words: object) -> str:
    done = Shell(home / "config", columns=200).lcm(*words)
    assert done.exit_code == 0, done.output
    return done.stdout + done.stderr


def _booked(home: Path) -> tuple[str, int]:
    """Book a lab now, follow it until it runs, and give the address that is printed for the first router's console."""
    told = _said(home, "book", "ccna-basics", "--now", "--for", "30m", "--name", "mine", "--watch")
    steps = re.findall(r"INSTANTIATING: (\d+)% (\w+)", told)
    assert [step for _, step in steps[:1]] == ["fetch"], told
    assert "converge" in {step for _, step in steps}, told
    assert [int(percent) for percent, _ in steps] == sorted(int(percent) for percent, _ in steps), told
    assert re.search(r"^  PC_vnc +vnc://", told, re.MULTILINE), told
    found = re.search(r"^  R1_serial +telnet://([0-9.]+):(\d+)$", told, re.MULTILINE)
    assert found, told
    return found[1], int(found[2])


def _console(address: str, port: int) -> bytes:
    """Connect as soon as the port is open, and read until the prompt."""
    _until(lambda: _is_open(address, port), bool)
    heard = b""
    with socket.create_connection((address, port), timeout=SOON) as line:
        while not heard.endswith(b">") and (more := line.recv(4096)):
            heard += more
    return heard


def _is_open(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=SOON):
            return True
    except ConnectionRefusedError:
        return False


def _is_extended(home: Path, api: httpx.Client) -> None:
    before = _status(api)["ends_at"]
    _said(home, "extend", "mine", "30m")
    assert _status(api)["ends_at"] > before


def _is_collected(home: Path) -> None:
    """Download what was collected: the lab as it was, with its configurations."""
    file = home / "collected.yaml"
    _said(home, "artifacts", "mine", "--download", file)
    collected, published = (parse_lab(one.read_bytes()) for one in (file, LAB))
    assert collected.node_count == published.node_count
    assert set(collected.port_template) == set(published.port_template)
    assert b"hostname R1" in file.read_bytes()


def _labs(home: Path, session: str) -> int:
    """Count a session's labs on all machines of the simulated cloud, as its file has them."""
    kept = msgspec.json.decode((home / "data" / SIM_FILE).read_bytes())
    titles = (msgspec.json.encode(host["labs"]) for host in kept["hosts"].values())
    return sum(labs.count(f"default/{session} [".encode()) for labs in titles)


def _phase(api: httpx.Client, session: str) -> str:
    return str(api.get(f"/api/lablet-sessions/{session}").raise_for_status().json()["status"]["phase"])


def _status(api: httpx.Client) -> dict[str, Any]:
    status: dict[str, Any] = api.get(SESSION).raise_for_status().json()["status"]
    return status


def _until(ask: Callable[[], T], so: Callable[[T], bool]) -> T:
    deadline = time.monotonic() + PATIENCE
    while not so(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found
