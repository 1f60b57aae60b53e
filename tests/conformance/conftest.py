"""One fixture per protocol, made once for every implementation."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from arenas import Arena, MemoryArena, etcd_arena, sqlite_arena
from lcm.store.base import Store
from servers import EtcdServer


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def arena(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Arena]:
    if request.param == "memory":
        memory = MemoryArena()
        yield memory
        await (await memory.open()).close()
        return
    if request.param == "sqlite":
        opened = sqlite_arena(tmp_path)
    else:
        opened = etcd_arena(request.getfixturevalue("etcd").endpoint)
    yield opened
    await opened.close()


@pytest.fixture
async def store(arena: Arena) -> Store:
    return await arena.open()
