"""`lcm serve` on an etcd that is away, full, or put back: each is told in plain words, and nothing looks healthy."""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest

from harness.commands import SOON, Running
from harness.documents import document
from harness.servers import EtcdServer
from lcm.store.etcd.wire import rpc

KEY = "a-key-that-nobody-guesses"
QUOTA = 16 * 1024**2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    (tmp_path / "etcd").mkdir()
    with EtcdServer(tmp_path / "etcd", f"--quota-backend-bytes={QUOTA}") as server:
        yield server


def started(home: Path, server: EtcdServer, *parts: str, **more: str) -> Running:
    said = {
        "CONTROL_PLANE_API_KEY": KEY,
        "LCM_DATA_DIR": str(home / "data"),
        "LCM_CLOUD": "simulated",
        "ETCD_ENDPOINTS": server.endpoint,
        "ETCD_QUOTA_BYTES": str(QUOTA),
    }
    return Running(home, "serve", *parts, **said, **more)


async def until(holds: Callable[[], object], seconds: float = SOON) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)


async def test_a_process_waits_for_an_etcd_that_is_away_at_its_start(tmp_path: Path, server: EtcdServer) -> None:
    server.stop()
    with (
        started(tmp_path, server, "api", "--port=0") as waiting,
        started(tmp_path, server, "api", "--port=0") as given_up,
    ):
        await until(lambda: "waiting for the store" in waiting.output and "waiting for the store" in given_up.output)
        assert given_up.stop(signal.SIGTERM)[0] == 0, given_up.output
        server.start()
        waiting.ready()
        assert waiting.stop()[0] == 0
        assert "Traceback" not in waiting.output + given_up.output


async def fill(server: EtcdServer) -> None:
    async with grpc.aio.insecure_channel(server.endpoint) as channel:
        for number in range(40):
            await rpc.KVStub(channel).Put(rpc.PutRequest(key=b"/junk/%d" % number, value=os.urandom(900_000)))


async def test_a_full_etcd_is_not_ready_and_says_so(tmp_path: Path, server: EtcdServer) -> None:
    with started(tmp_path, server, "api", "--port=0") as api:
        async with api.ready().client(KEY) as client:
            with suppress(grpc.aio.AioRpcError):
                await fill(server)
            await until(lambda: httpx.get(f"{api.url}/readyz", trust_env=False).status_code == 503)
            for _ in range(20):
                refused = await client.post("/api/workers", json=document("LabWorker"))
                assert (refused.status_code, refused.json()["reason"]) == (503, "StoreFull")
            alerts = {one["alert"] for one in (await client.get("/api/alerts")).json()["items"]}
            assert "StoreNotWritable" in alerts
        assert api.output.count("request could not be done") == 1
        assert api.output.count("store takes no writes") == 1


async def test_an_etcd_that_is_put_back_ends_every_process_with_a_clear_word(
    tmp_path: Path, server: EtcdServer
) -> None:
    data, copy = tmp_path / "etcd" / "data", tmp_path / "copy"
    with started(tmp_path, server, "api", "--port=0") as api:
        api.ready()
        server.stop()
        shutil.copytree(data, copy)
        server.start()
        with started(tmp_path, server, "scheduler", CONTROL_PLANE_API_URL=api.url) as scheduler:
            async with api.client(KEY) as client:
                for name in ("a", "b", "c"):
                    made = await client.post("/api/workers", json=document("LabWorker") | {"metadata": {"name": name}})
                    assert made.status_code == 201, made.text
            await until(lambda: '"elected"' in scheduler.output)
            server.stop()
            shutil.rmtree(data)
            copy.rename(data)
            server.start()
            assert api.process.wait(SOON) == 9, api.output
            port = api.url.rpartition(":")[2]
            with started(tmp_path, server, "api", f"--port={port}") as again:
                again.ready()
                assert scheduler.process.wait(SOON) == 9, scheduler.output
            for output in (api.output, scheduler.output):
                assert "error: the store went back: it was at revision" in output
                assert "Traceback" not in output
