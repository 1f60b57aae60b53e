"""The process under the growth bench: started as an operator does, and read from outside."""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import NamedTuple, Self

from bench.growth_world import SPEED
from harness.commands import Running
from harness.servers import free_port

CALM_SHARE, CALM_SECONDS = 0.35, 5.0
"""It rests when it takes less than this share of a core for so long."""
PATIENCE_SECONDS = 400
_TICKS = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """For how many seconds it ran, and waited for a processor while it could have run."""

    ran: float
    waited: float


class GrowthProcess:
    """`lcm up` on a folder, or `lcm serve all` on etcd."""

    def __init__(self, folder: Path, etcd: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        data, limits = f"{folder / 'data'}", {"LCM_REQUESTS_PER_SECOND": "100000", "LCM_REQUEST_BURST": "100000"}
        if etcd:
            self._running = Running(
                folder,
                "serve",
                "all",
                ETCD_ENDPOINTS=etcd,
                LCM_PORT=str(self._port),
                LCM_DATA_DIR=data,
                LCM_CLOUD="simulated",
                LCM_SIM_SPEED=str(SPEED),
                CONTROL_PLANE_API_KEY="the-key-of-the-growth-bench",
                **limits,
            )
        else:
            self._running = Running(
                folder, "up", "--log", f"--port={self._port}", f"--data={data}", f"--speed={SPEED}", **limits
            )
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__()

    async def wait_for_rest(self) -> float:
        """Wait until all controllers lead and it hardly computes any more. Return the seconds until that began."""
        while time.monotonic() < self._began + PATIENCE_SECONDS:
            since, before = time.monotonic(), self.used()
            await asyncio.sleep(CALM_SECONDS)
            assert self._running.process.poll() is None, self._running.output[-2_000:]
            share = (self.used().ran - before.ran) / (time.monotonic() - since)
            if self._running.output.count('"controller started"') >= 5 and share < CALM_SHARE:
                return since - self._began
        raise AssertionError(f"it does not rest: {self._running.output[-2_000:]}")

    def used(self) -> Used:
        """Read what it used so far, all threads together."""
        proc = Path(f"/proc/{self._running.process.pid}")
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        waits = [int(task.read_text().split()[1]) for task in proc.glob("task/*/schedstat")]
        return Used((int(fields[11]) + int(fields[12])) / _TICKS, sum(waits) / 1e9)

    def memory_mb(self) -> float:
        """Read its memory."""
        status = Path(f"/proc/{self._running.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1000

    def count_deposed(self) -> int:
        """Count how often a leader of it lost its term."""
        return self._running.output.count('"event": "deposed"')
