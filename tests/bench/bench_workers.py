"""Monitoring 1,000 workers every minute over HTTPS, simulated CMLs in another process, against bare httpx.

A minute is run in half of one (`workers_load.SPEED`): the same polls, calls, commits and connections, with less
idling between them. So the seconds of a core that a minute takes are what they are in real time. EC2 is made up inside
the measured process; its list of 1,000 machines once a minute is paid for too.
"""

import asyncio
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.figures import Figure

MANY, FEW = 1_000, 100
MINUTES = 2
SLOWEST_BARE_SECONDS = 0.02
"""A machine on which a bare poll takes longer says nothing about anything."""
HERE = Path(__file__).parent
PATIENCE_SECONDS = 240


class Side:
    """A process that is told how much to do, and tells what that cost."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def spend(self, amount: float) -> float:
        assert self._process.stdin and self._process.stdout  # noqa: PT018 - both are pipes
        self._process.stdin.write(f"{amount}\n".encode())
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)
        assert line, "it ended early: see above"
        return float(line)


@asynccontextmanager
async def process(script: str, *arguments: object, told: bytes = b"") -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        sys.executable, HERE / script, *map(str, arguments), stdin=pipe, stdout=pipe
    )
    assert started.stdin is not None
    try:
        started.stdin.write(told)
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def poll(count: int, where: bytes) -> float:
    """Return how many seconds of a core a poll takes, after a minute in which all is connected."""
    with tempfile.TemporaryDirectory() as folder:
        async with process("workers_controller.py", count, folder, told=where) as started:
            assert started.stdout is not None
            assert await asyncio.wait_for(started.stdout.readline(), PATIENCE_SECONDS) == b"ready\n"
            side = Side(started)
            return statistics.median([await side.spend(1) for _ in range(MINUTES)])


async def bench_workers() -> list[Figure]:
    async with process("workers_server.py", MANY) as server:
        assert server.stdout is not None
        where = await asyncio.wait_for(server.stdout.readline(), PATIENCE_SECONDS)
        async with process("baseline/polling.py", FEW, told=where) as started:
            bare = await Side(started).spend(5)
        few = await poll(FEW, where)
        many = await poll(MANY, where)
    valid = bare <= SLOWEST_BARE_SECONDS
    return [
        Figure(
            "workers_monitored",
            many * MANY / 60,
            0.1,
            at_least=False,
            floor_ok=valid,
            note=f"of a core for {MANY} workers a minute over HTTPS, {many * 1000:.2f} ms a poll",
        ),
        Figure(
            "workers_growth",
            many / few,
            1.5,
            at_least=False,
            floor_ok=valid,
            note=f"of {few * 1000:.2f} ms a poll with {FEW} workers",
        ),
        Figure(
            "workers_bare",
            many / bare,
            3,
            at_least=False,
            floor_ok=valid,
            note=f"of {bare * 1000:.2f} ms a poll with bare httpx",
        ),
    ]
