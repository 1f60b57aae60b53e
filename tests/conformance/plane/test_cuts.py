"""The plane over HTTP while connections are cut, fall silent or are refused, and the API is restarted."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from harness.plane_world import KEY, PATIENCE, Site, hand_clock, served, take, template
from harness.servers import LOOPBACK, Proxy, free_port
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Changes, Plane, Ref
from lcm.control.plane.transport import ClientTimeouts
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Relist, Unreachable
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.pool import WorkerTemplate
from lcm.store.sqlite.engine import SqliteStore

T = TypeVar("T")
CONTROLLER = Caller(name="service", role=Role.SERVICE, actor=WORKER_CONTROLLER)
COMMITS = 500
WRITERS = 5
READERS = 3
MOST_CUTS = 40


class Api:
    """An API on a port of its own, which can be stopped and started again, on the same file or another."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._running = AsyncExitStack()
        self.store: SqliteStore | None = None

    @property
    def endpoint(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    async def start(self, file: str = "store.db") -> None:
        self.store = await SqliteStore.open(self._folder / file)
        self._running.push_async_callback(self.store.close)
        site = Site(self.store, hand_clock())
        await site.tokens.start()
        self._running.push_async_callback(site.close)
        await self._running.enter_async_context(served(site.api, self._port))

    async def stop(self) -> None:
        await self._running.aclose()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Api]:
    api = Api(folder)
    await api.start()
    try:
        yield api
    finally:
        await api.stop()


@asynccontextmanager
async def plane_at(endpoint: str, limits: ClientTimeouts | None = None) -> AsyncIterator[HttpPlane]:
    url = f"http://{endpoint}"
    async with HttpPlane.open(url, KEY, actor=WORKER_CONTROLLER, caller=CONTROLLER, limits=limits) as plane:
        yield plane


def name(writer: int) -> str:
    return f"t{writer}"


async def insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat what may be repeated until an answer comes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await attempt()
            except Unreachable:
                await asyncio.sleep(0.005)


async def write(plane: Plane, writer: int, count: int, pause: float = 0.0) -> None:
    ref = Ref(WorkerTemplate, name(writer))
    await insist(lambda: plane.create(template(name(writer)), request=f"make-{writer}"))
    for n in range(1, count):
        await insist(lambda n=n: plane.patch(ref, {"metadata": {"labels": {"n": str(n)}}}))  # type: ignore[misc]
        await asyncio.sleep(pause)


async def follow(plane: Plane, after: int, count: int) -> list[Changes]:
    async with plane.watch(WorkerTemplate, after=after) as watch, asyncio.timeout(PATIENCE):
        return [await anext(watch) for _ in range(count)]


async def cutting(proxy: Proxy, chance: random.Random, work: "asyncio.Future[Any]") -> int:
    """Cut every connection at random moments, so many times at most, until some work is done; count them."""
    cuts = 0
    for _ in range(MOST_CUTS):
        await asyncio.wait({work}, timeout=chance.uniform(0.01, 0.06))
        if work.done():
            break
        cuts += await proxy.cut()
    await work
    return cuts


def check_history(batches: list[Changes], writers: int, each: int) -> None:
    """Hold what a reader saw against what was written: every commit, in order, once."""
    revisions = [batch.revision for batch in batches]
    assert revisions == sorted(set(revisions))
    for writer in range(writers):
        resources = [seen.resource for batch in batches for seen in batch.seen if seen.ref.name == name(writer)]
        numbers = [one.metadata.labels.get("n", "0") for one in resources if one is not None]
        assert numbers == [str(n) for n in range(each)]


async def test_no_commit_is_missed_or_told_twice_while_connections_are_cut(tmp_path: Path) -> None:
    chance = random.Random(4)
    async with running(tmp_path) as api, Proxy(api.endpoint) as proxy, AsyncExitStack() as stack:
        direct = await stack.enter_async_context(plane_at(api.endpoint))
        readers = [await stack.enter_async_context(plane_at(proxy.endpoint)) for _ in range(READERS)]
        start = (await direct.list(WorkerTemplate)).revision
        following = [asyncio.create_task(follow(reader, start, COMMITS)) for reader in readers]
        each = COMMITS // WRITERS
        writing = asyncio.gather(*(write(direct, writer, each) for writer in range(WRITERS)))
        cuts = await cutting(proxy, chance, writing)
        for seen in await asyncio.gather(*following):
            check_history(seen, WRITERS, each)
    assert cuts >= 2 * READERS
    assert proxy.connections > cuts // 2


async def test_no_commit_is_missed_or_told_twice_while_the_api_is_restarted(tmp_path: Path) -> None:
    async with running(tmp_path) as api, plane_at(api.endpoint) as plane:
        start = (await plane.list(WorkerTemplate)).revision
        following = [asyncio.create_task(follow(plane, start, 120)) for _ in range(READERS)]
        writing = asyncio.gather(*(write(plane, writer, 40, pause=0.01) for writer in range(3)))
        for _ in range(2):
            await asyncio.sleep(0.15)
            await api.stop()
            await api.start()
        await writing
        for seen in await asyncio.gather(*following):
            check_history(seen, 3, 40)


async def test_a_request_that_was_cut_off_is_done_once(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with running(tmp_path) as api, Proxy(api.endpoint) as proxy, plane_at(proxy.endpoint) as plane:

        async def make(n: int) -> WorkerTemplate:
            return await insist(lambda: plane.create(template(f"t{n:02}"), request=f"make-{n}"))

        making = asyncio.gather(*(make(n) for n in range(40)))
        await cutting(proxy, chance, making)
        made = await making
        assert list((await insist(lambda: plane.list(WorkerTemplate))).items) == made


async def test_a_network_that_swallows_answers_is_noticed(tmp_path: Path) -> None:
    limits = ClientTimeouts(connect_seconds=0.3, request_seconds=0.3, silence_seconds=0.3)
    async with running(tmp_path) as api, Proxy(api.endpoint) as proxy, plane_at(proxy.endpoint, limits) as plane:
        await plane.create(template())
        start = (await plane.list(WorkerTemplate)).revision
        async with plane.watch(WorkerTemplate, after=start) as watch:
            await plane.patch(Ref(WorkerTemplate, "metal"), {"metadata": {"labels": {"n": "1"}}})
            await take(watch)
            proxy.silent = True
            with pytest.raises(Unreachable):
                await plane.get(Ref(WorkerTemplate, "metal"))
            with pytest.raises(Unreachable):
                await plane.patch(Ref(WorkerTemplate, "metal"), {"metadata": {"labels": {"n": "2"}}})
            waiting = asyncio.create_task(take(watch))
            await asyncio.sleep(0.5)
            proxy.silent = False
            [batch] = await waiting
            resource = batch.seen[0].resource
            assert resource is not None
            assert resource.metadata.labels == {"n": "2"}


async def test_an_api_that_is_down_is_unreachable_and_found_again(tmp_path: Path) -> None:
    async with running(tmp_path) as api, plane_at(api.endpoint) as plane:
        made = await plane.create(template())
        lease = await plane.acquire("scheduler", "me", ttl_seconds=15)
        assert lease is not None
        await api.stop()
        ref = Ref(WorkerTemplate, "metal")
        attempts: list[Awaitable[object]] = [
            plane.get(ref),
            plane.list(WorkerTemplate),
            plane.delete(ref),
            plane.lease("scheduler"),
            plane.renew(lease),
        ]
        for attempt in attempts:
            with pytest.raises(Unreachable):
                await attempt
        await api.start()
        assert await plane.get(ref) == made
        await plane.renew(lease)


async def test_an_api_that_comes_back_with_another_history_says_relist(tmp_path: Path) -> None:
    async with running(tmp_path) as api, plane_at(api.endpoint) as plane:
        await plane.create(template())
        start = (await plane.list(WorkerTemplate)).revision
        async with plane.watch(WorkerTemplate, after=start) as watch:
            await plane.patch(Ref(WorkerTemplate, "metal"), {"metadata": {"labels": {"n": "1"}}})
            await take(watch)
            await api.stop()
            await api.start("another.db")
            with pytest.raises(Relist):
                await take(watch)
