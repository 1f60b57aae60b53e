"""The API over a real port: reading against a bare ASGI application, writing against FastAPI with pydantic."""

import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.figures import Figure, ratio
from bench.load import CONNECTIONS, rate
from harness.servers import EtcdServer

READS = 4_000
WRITES = 1_500
FLOOR_BARE_PER_SECOND = 5_000
FLOOR_FASTAPI_PER_SECOND = 300
BODY_BYTES = range(1_900, 2_300)
FOREIGN_COMMITS = 100_000
PAUSE = 0.0473
"""Between two commits of another process: about twenty a second."""
ETCD_CLIENTS = 64
"""As many as the store's own bench has writers: reads that wait for the cluster at the same time share a call."""


@asynccontextmanager
async def served(side: str, folder: Path) -> AsyncIterator[tuple[int, str]]:
    script = Path(__file__).with_name("api_server.py")
    process = await asyncio.create_subprocess_exec(sys.executable, script, side, folder, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        port, token = (await asyncio.wait_for(process.stdout.readline(), 30)).split()
        yield int(port), token.decode()
    finally:
        process.terminate()
        await process.wait()


def request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{content}\r\n".encode() + body


def worker(name: str) -> bytes:
    aws = {
        "region": "us-east-1",
        "ami_name_pattern": "CML-2.9*",
        "subnet_ids": ["subnet-0a1b2c3d"],
        "vpc_id": "vpc-0a1b2c3d",
        "security_group_ids": ["sg-0a1b2c3d"],
        "tags": {"team": "labs", "cost-centre": "4711"},
    }
    labels = {"tier": "gold", "site": "us-east", "purpose": "exams"}
    notes = {"note": "y" * 10}
    spec = {"aws": aws, "lab_track": "ccna", "lab_types": ["CML"]}
    return json.dumps({"metadata": {"name": name, "labels": labels, "annotations": notes}, "spec": spec}).encode()


async def fetched(port: int, ask: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ask)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
    body = await reader.readexactly(length)
    writer.close()
    return body


async def bench_get() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        return [await _compare_reads("api_get", "ours", Path(name), goal=0.7)]


async def bench_get_shared() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        async with _commits_beside(Path(name, "shared.db")):
            return [await _compare_reads("api_get_shared", "shared", Path(name), goal=0.6)]


async def bench_get_etcd() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EtcdServer(folder) as server:
            (folder / "endpoint").write_text(server.endpoint)
            return [await _compare_reads("api_get_etcd", "etcd", folder, goal=0.6, clients=ETCD_CLIENTS)]


@asynccontextmanager
async def _commits_beside(path: Path) -> AsyncIterator[None]:
    """Run another process that commits to a file now and then, as the controllers of an installation do."""
    script = Path(__file__).with_name("outside_writer.py")
    writer = await asyncio.create_subprocess_exec(sys.executable, script, path, str(FOREIGN_COMMITS), str(PAUSE))
    try:
        yield
        assert writer.returncode is None, "it ended early"
    finally:
        writer.kill()
        await writer.wait()


async def _compare_reads(name: str, side: str, folder: Path, *, goal: float, clients: int = CONNECTIONS) -> Figure:
    """Compare reading a worker from a store with a bare application that sends the same bytes."""
    async with served(side, folder) as (port, token):
        await fetched(port, request("POST", "/api/workers", token, worker("w1")))
        ask = request("GET", "/api/workers/w1", token)
        body = await fetched(port, ask)
        assert len(body) in BODY_BYTES, len(body)
        (folder / "body").write_bytes(body)
        async with served("bare", folder) as (bare_port, _):
            measured = await ratio(
                lambda: rate(port, [ask] * READS, connections=clients),
                lambda: rate(bare_port, [ask] * READS, connections=clients),
                pairs=9,
                floor=FLOOR_BARE_PER_SECOND,
            )
    note = f"of {measured.bare:.0f} bare answers/s of {len(body)} bytes to {clients} clients"
    return Figure(name, measured.ratio, goal, floor_ok=measured.valid, note=note)


async def bench_post() -> list[Figure]:
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with served("ours", folder) as (port, token), served("fastapi", folder) as (other_port, other_token):

            async def posts(port: int, token: str) -> float:
                asked = [request("POST", "/api/workers", token, worker(f"w{next(numbers)}")) for _ in range(WRITES)]
                return await rate(port, asked, status=b"201")

            measured = await ratio(
                lambda: posts(port, token),
                lambda: posts(other_port, other_token),
                pairs=9,
                floor=FLOOR_FASTAPI_PER_SECOND,
            )
    note = f"of {measured.bare:.0f} FastAPI creations/s"
    return [Figure("api_post", measured.ratio, 1.4, floor_ok=measured.valid, note=note)]
