"""Packing in a process of its own: its answer is the same, and whatever becomes of the process, none is left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from harness import given
from lcm.compose import packing_process
from lcm.compose.packing_process import pack_in_process
from lcm.model.base.capacity import Claim
from lcm.model.base.errors import Later
from lcm.placement.pack_board import PackTerms
from lcm.placement.pack_kinds import MachineKind
from lcm.placement.pack_problem import PackProblem, SeatedClaim, solve_packing

SOON = 60
TEN, NOON = given.moment("10:00"), given.moment("12:00")
READS = "import sys, time\nsys.stdin.read()\n"
ENDLESS = READS + "time.sleep(600)"
TALKATIVE = READS + "while True: sys.stdout.write('x' * 100_000)"
KILLED = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-P", "-m", "lcm.compose.packing_process"])
priority = lambda pid: os.getpriority(os.PRIO_PROCESS, pid)
for _ in range(6_000):
    if priority(child.pid) >= min(19, priority(0) + 10): break
    time.sleep(0.01)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Starts the packer on its own input, waits until it is up and modest, and does not see its end."""

Run = Callable[[str], list[asyncio.subprocess.Process]]


def apart(claims: int = 4) -> PackProblem:
    """Return claims at the same time, each on a seat of its own, of which all fit on one."""
    claim = Claim(start=TEN, end=NOON, need=given.amount())
    seated = [SeatedClaim(f"default/s{number}", claim, number + 1, fixed=False) for number in range(claims)]
    terms = PackTerms(given.machine(), claims, timedelta(minutes=25), move_price=timedelta(minutes=1))
    return PackProblem(terms, seated, 1000 * claims)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a script in place of the packer; return the processes that are started."""

    def run(script: str) -> list[asyncio.subprocess.Process]:
        monkeypatch.setattr(packing_process, "_COMMAND", (sys.executable, "-c", script))
        return noted(monkeypatch)

    return run


def noted(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    started, start = list[asyncio.subprocess.Process](), packing_process._start_process

    async def starting() -> asyncio.subprocess.Process:
        started.append(await start())
        return started[-1]

    monkeypatch.setattr(packing_process, "_start_process", starting)
    return started


def is_gone(process: asyncio.subprocess.Process) -> bool:
    """Return whether a process has ended and was waited for."""
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return process.returncode is not None
    return False


async def test_another_process_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, started = apart(), noted(monkeypatch)
    answer = await pack_in_process(problem)
    assert answer.steps
    assert msgspec.json.encode(answer) == msgspec.json.encode(solve_packing(problem))
    assert answer.after < answer.before
    assert all(map(is_gone, started))
    assert started[0].pid != os.getpid()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import sys\nsys.exit('a bug of ours')", "packing ended with 1: a bug of ours"),
        ("import os\nos.kill(os.getpid(), 9)", "packing ended with -9"),
        (READS + "print('nonsense')", "was not understood"),
        (READS + "print('{\"steps\": 5}')", "was not understood"),
        (READS, "was not understood"),
    ],
)
async def test_a_process_that_dies_or_writes_nonsense_is_tried_later(script: str, told: str, instead: Run) -> None:
    started = instead(script)
    with pytest.raises(Later, match=told):
        await asyncio.wait_for(pack_in_process(apart(2_000)), SOON)
    assert all(map(is_gone, started))


async def test_no_process_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_process, "_COMMAND", ("/no/such/python",))
    with pytest.raises(Later, match="no process to pack in can be started"):
        await pack_in_process(apart())


@pytest.mark.parametrize("script", [ENDLESS, TALKATIVE], ids=["silent", "talkative"])
async def test_one_that_takes_too_long_is_ended(script: str, instead: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_process, "LIMIT_SECONDS", 0.5)
    started = instead(script)
    with pytest.raises(Later, match=r"packing 4 claims took longer than 0\.5 s"):
        await asyncio.wait_for(pack_in_process(apart()), SOON)
    assert [one.returncode for one in started] == [-signal.SIGKILL]
    assert all(map(is_gone, started))


@pytest.mark.parametrize("script", [ENDLESS, TALKATIVE], ids=["silent", "talkative"])
async def test_one_that_nobody_waits_for_any_more_is_ended(script: str, instead: Run) -> None:
    started = instead(script)
    packing = asyncio.create_task(pack_in_process(apart()))
    async with asyncio.timeout(SOON):
        while not started:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        packing.cancel()
        await asyncio.wait([packing])
    assert packing.cancelled()
    assert all(map(is_gone, started))


async def test_none_outlives_whoever_started_it() -> None:
    pipe = asyncio.subprocess.PIPE
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, stdin=pipe, stdout=pipe)
    assert killed.stdout is not None
    async with asyncio.timeout(SOON):
        child = int(await killed.stdout.readline())
        while is_alive(child):  # it waits for a problem: its input is still open here
            await asyncio.sleep(0.05)
        await killed.communicate()
    assert killed.returncode == -signal.SIGKILL


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_kinds_of_machines_reach_the_process() -> None:
    kinds = (MachineKind("", given.machine(), 40), MachineKind("small", given.machine(cpu_millis=16_000), 14))
    problem = apart()
    terms = problem.terms._replace(seats=problem.terms.seats + 1)
    priced = msgspec.structs.replace(problem, terms=terms, kinds=kinds)
    answer = await pack_in_process(priced)
    assert answer == solve_packing(priced)
    assert answer.saved > 0
