"""A leader whose loop is held keeps its lease, one that is stopped loses it, and the watch names what held the loop."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crash.busy_leader import LEASE, TTL_SECONDS, open_store
from harness import given
from harness.servers import EtcdServer
from lcm.control.objects.records import creation_ops
from lcm.store.base import Store

LEADER = Path(__file__).with_name("busy_leader.py")
HOLD_SECONDS = 30
PATIENCE_SECONDS = 60


class Leader:
    """The process that leads."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def tell(self, word: str, number: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word} {number}\n".encode())

    async def hear(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.process.stdout.readline()).decode().strip()


@asynccontextmanager
async def run_leader(engine: str, address: str) -> AsyncIterator[Leader]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, LEADER, engine, address, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield Leader(process)
    finally:
        process.kill()
        await process.communicate()


@pytest.fixture(params=["sqlite", "etcd"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where the store is."""
    if request.param == "sqlite":
        yield "sqlite", str(tmp_path / "store.db")
    else:
        with EtcdServer(tmp_path) as server:
            yield "etcd", server.endpoint


async def count_changes_of_holder(store: Store, until: asyncio.Task[str]) -> int:
    """Try to get the lease as often as a candidate may, until something is heard; return how often that went well."""
    got = 0
    while not until.done():
        got += await store.acquire(LEASE, "candidate", ttl_seconds=TTL_SECONDS) is not None
        await asyncio.sleep(0.2)
    return got


async def test_a_leader_that_is_busy_leads_on_and_one_that_is_stopped_does_not(place: tuple[str, str]) -> None:
    store = await open_store(*place)
    await store.commit(*creation_ops(given.template()))
    try:
        async with run_leader(*place) as leader:
            assert await leader.hear() == "leads"
            leader.tell("hold", HOLD_SECONDS)
            heard = asyncio.create_task(leader.hear())
            assert await count_changes_of_holder(store, heard) == 0
            _, seconds, culprit = (await heard).split(maxsplit=2)
            # Time in which other programs had the processors is not counted.
            assert HOLD_SECONDS / 2 <= float(seconds) < HOLD_SECONDS + 5
            assert culprit == "__main__.hold_the_loop"
            leader.tell("act", 1)
            assert await leader.hear() == "acted done done"

            leader.tell("stop", 2)
            async with asyncio.timeout(4 * TTL_SECONDS):
                while await store.acquire(LEASE, "candidate", ttl_seconds=60) is None:
                    await asyncio.sleep(0.1)
            leader.process.send_signal(signal.SIGCONT)
            assert await leader.hear() == "acted deposed deposed"
    finally:
        await store.close()
