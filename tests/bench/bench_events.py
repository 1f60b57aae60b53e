"""The event stream to 2,000 clients, against a bare ASGI application that fans the same bytes out."""

import asyncio
import resource
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from bench.figures import Figure

CLIENTS = 2_000
BURST = 30
PACED = 8
PACE_SECONDS = 0.4
PAIRS = 7
FLOOR_DELIVERIES_PER_SECOND = 5_000
HERE = Path(__file__).parent


class Side:
    """A server and its 2,000 clients, each in a process of its own."""

    def __init__(self, server: asyncio.subprocess.Process, client: asyncio.subprocess.Process) -> None:
        self._server, self._client = server, client

    async def run(self, count: int, pause: float) -> tuple[float, float]:
        """Publish events and give the deliveries a second and the 99th percentile of their delay."""
        assert self._server.stdin and self._client.stdin and self._client.stdout  # noqa: PT018 - both are pipes
        self._client.stdin.write(f"{count}\n".encode())
        self._server.stdin.write(f"{count} {pause}\n".encode())
        seconds, p99 = (await asyncio.wait_for(self._client.stdout.readline(), 120)).split()
        return count * CLIENTS / float(seconds), float(p99)


@asynccontextmanager
async def side(name: str, folder: str) -> AsyncIterator[Side]:
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(
        sys.executable, HERE / "events_server.py", name, folder, stdin=pipe, stdout=pipe
    )
    assert server.stdout is not None
    port, token = (await server.stdout.readline()).decode().split()
    client = await asyncio.create_subprocess_exec(
        sys.executable, HERE / "events_client.py", port, token, str(CLIENTS), stdin=pipe, stdout=pipe
    )
    assert client.stdout is not None
    try:
        assert await asyncio.wait_for(client.stdout.readline(), 60) == b"ready\n"
        yield Side(server, client)
    finally:
        client.kill()
        server.kill()
        await client.wait()
        await server.wait()


async def bench_fan_out() -> list[Figure]:
    _allow_sockets()
    rates: list[float] = []
    delays: list[float] = []
    bare_rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            ours = await stack.enter_async_context(side("ours", folder))
            bare = await stack.enter_async_context(side("bare", folder))
            for pair in range(PAIRS):
                first, second = (ours, bare) if pair % 2 else (bare, ours)
                measured = {
                    one: (await one.run(BURST, 0), await one.run(PACED, PACE_SECONDS)) for one in (first, second)
                }
                rates.append(measured[ours][0][0] / measured[bare][0][0])
                delays.append(measured[ours][1][1] / measured[bare][1][1])
                bare_rates.append(measured[bare][0][0])
    rate = statistics.median(bare_rates)
    valid = rate >= FLOOR_DELIVERIES_PER_SECOND
    return [
        Figure(
            "events_fan_out", statistics.median(rates), 0.8, floor_ok=valid, note=f"of {rate:.0f} bare deliveries/s"
        ),
        Figure("events_p99", statistics.median(delays), 1.5, at_least=False, floor_ok=valid, note="of the bare p99"),
    ]


def _allow_sockets() -> None:
    """Let the processes that are started have a socket for each client."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 10_000), most))
