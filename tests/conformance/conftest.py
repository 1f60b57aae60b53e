"""One fixture per protocol, made once for every implementation."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiobotocore.session import AioSession

from harness.lab_hosts import CmlSim
from harness.servers import EtcdServer, MotoServer
from harness.stores import (
    Arena,
    Depot,
    DirectoryDepot,
    MemoryArena,
    MemoryDepot,
    S3Depot,
    aws_session,
    etcd_arena,
    sqlite_arena,
)
from lcm.store.base import Store


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    # It stands idle for most of the run, and an idle server costs what its heart beats.
    with EtcdServer(tmp_path_factory.mktemp("etcd"), "--heartbeat-interval=100", "--election-timeout=1000") as server:
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


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    with MotoServer(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> AioSession:
    """Share what is slow to read: the vendor's descriptions of its services."""
    return aws_session(tmp_path_factory.mktemp("aws"))


@pytest.fixture(params=["memory", "directory", "s3"])
async def depot(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Depot]:
    opened: Depot
    if request.param == "memory":
        opened = MemoryDepot()
    elif request.param == "directory":
        opened = await DirectoryDepot.open(tmp_path)
    else:
        opened = await S3Depot.open(request.getfixturevalue("moto").url, request.getfixturevalue("aws"))
    yield opened
    await opened.artifacts.close()


@pytest.fixture(scope="session")
def cml_sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CmlSim]:
    with CmlSim(tmp_path_factory.mktemp("cml-sim")) as sim:
        yield sim
