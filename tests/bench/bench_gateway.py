"""Consoles through the gateway, against a bare relay of TCP to the same node.

Each part is a process of its own, the client is this one. It writes and reads the same way on both sides, but that on
ours each chunk has the head of a frame: unmasked from the gateway, with a mask of zeros to it, which it must apply.
"""

import asyncio
import base64
import statistics
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure

PAIRS = 7
BULK_BYTES = 100_000_000
CONSOLES = 50
KEYS = 120
PACE_SECONDS = 0.05
"""A pause of the machine meets all consoles at once, so a percentile needs many moments, not only many keys."""
CHUNK = 65_536
FLOOR_BYTES_PER_SECOND = 50_000_000
HERE = Path(__file__).parent
PATH = "/api/lablet-sessions/s1/consoles/{console}"


class Line:
    """A connection to the node, by either way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, framed: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._framed = framed

    async def send(self, data: bytes) -> None:
        if not self._framed:
            self._writer.write(data)
        elif len(data) < 126:
            self._writer.write(bytes([0x82, 0x80 | len(data), 0, 0, 0, 0]) + data)
        else:
            self._writer.write(struct.pack(">BBQ4x", 0x82, 0xFF, len(data)) + data)
        await self._writer.drain()

    async def receive(self) -> int:
        """Read some bytes; give how many were the node's."""
        if not self._framed:
            return len(await self._reader.read(CHUNK))
        head = await self._reader.readexactly(2)
        size = head[1] & 127
        if size >= 126:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
        left = size
        while left:
            left -= len(await self._reader.read(left))
        return size if head[0] & 15 == 2 else 0

    async def receive_all(self, count: int) -> None:
        while count > 0:
            count -= await self.receive()

    def close(self) -> None:
        self._writer.transport.abort()


class Way(NamedTuple):
    """A way to the node: a port, and for the gateway a token."""

    port: int
    token: str = ""

    async def open(self, console: str = "PC_pat_tcp_22") -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=4 * CHUNK)
        if self.token:
            key = base64.b64encode(bytes(16)).decode()
            head = [
                f"GET {PATH.format(console=console)} HTTP/1.1",
                *("Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
                *(f"Sec-WebSocket-Key: {key}", f"Authorization: Bearer {self.token}", "", ""),
            ]
            writer.write("\r\n".join(head).encode())
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        return Line(reader, writer, framed=bool(self.token))


async def pour(way: Way) -> float:
    """Return the bytes a second from the node."""
    line, loop = await way.open(), asyncio.get_running_loop()
    began = loop.time()
    await line.send(b"pour %d\n" % BULK_BYTES)
    await line.receive_all(BULK_BYTES)
    seconds = loop.time() - began
    line.close()
    return BULK_BYTES / seconds


async def fill(way: Way) -> float:
    """Return the bytes a second to the node."""
    line, loop, chunk = await way.open(), asyncio.get_running_loop(), bytes(CHUNK)
    began = loop.time()
    await line.send(b"take %d\n" % (BULK_BYTES // CHUNK * CHUNK))
    for _ in range(BULK_BYTES // CHUNK):
        await line.send(chunk)
    await line.receive_all(len(b"taken\n"))
    seconds = loop.time() - began
    line.close()
    return BULK_BYTES / seconds


async def delay(way: Way) -> float:
    """Return the 99th percentile of the time from a key to its echo, in seconds, at many consoles at once."""
    lines = [await way.open("R1_serial") for _ in range(CONSOLES)]
    for line in lines:
        await line.send(b"echo\n")
    await asyncio.sleep(0.2)
    found = await asyncio.gather(*(type_keys(line, number) for number, line in enumerate(lines)))
    for line in lines:
        line.close()
    return statistics.quantiles([one for some in found for one in some], n=100)[98]


async def type_keys(line: Line, number: int) -> list[float]:
    loop, delays = asyncio.get_running_loop(), []
    await asyncio.sleep(PACE_SECONDS * number / CONSOLES)
    for _ in range(KEYS):
        began = loop.time()
        await line.send(b"x")
        await line.receive_all(1)
        delays.append(loop.time() - began)
        await asyncio.sleep(PACE_SECONDS)
    return delays


@asynccontextmanager
async def program(name: str, *words: str) -> AsyncIterator[list[str]]:
    """Run one of the programs here, and give the last line that it prints at its start."""
    started = await asyncio.create_subprocess_exec(sys.executable, HERE / name, *words, stdout=asyncio.subprocess.PIPE)
    assert started.stdout is not None
    try:
        async with asyncio.timeout(60):
            line = await started.stdout.readline()
            while name == "gateway_server.py" and not line.startswith(b"ready"):
                line = await started.stdout.readline()
        yield line.decode().split()
    finally:
        started.kill()
        await started.wait()


async def bench_gateway() -> list[Figure]:
    down: list[float] = []
    up: list[float] = []
    later: list[float] = []
    bares: list[float] = []
    async with AsyncExitStack() as stack:
        node = (await stack.enter_async_context(program("gateway_node.py")))[0]
        bare = Way(int((await stack.enter_async_context(program("baseline/relay.py", node)))[0]))
        _, port, token = await stack.enter_async_context(program("gateway_server.py", node))
        ours = Way(int(port), token)
        for pair in range(PAIRS):
            both = (ours, bare) if pair % 2 else (bare, ours)
            seen = {way: (await pour(way), await fill(way), await delay(way)) for way in both}
            down.append(seen[ours][0] / seen[bare][0])
            up.append(seen[ours][1] / seen[bare][1])
            later.append((seen[ours][2] - seen[bare][2]) * 1000)
            bares.append(min(seen[bare][:2]))
    rate = statistics.median(bares)
    valid, note = rate >= FLOOR_BYTES_PER_SECOND, f"of {rate / 1e6:.0f} bare MB/s"
    return [
        Figure("gateway_from_node", statistics.median(down), 0.5, floor_ok=valid, note=note),
        Figure("gateway_to_node", statistics.median(up), 0.5, floor_ok=valid, note=note),
        Figure(
            "gateway_p99_ms", statistics.median(later), 20, at_least=False, floor_ok=valid, note="ms above the bare p99"
        ),
    ]
