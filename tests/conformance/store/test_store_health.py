"""Every engine: what a probe costs; a store that is full, and one that goes back under whoever uses it."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from harness.servers import EtcdServer
from lcm.model.base.errors import StoreFull, WentBack
from lcm.store.base import Put, Store
from lcm.store.etcd.engine import EtcdStore
from lcm.store.etcd.wire import rpc
from lcm.store.sqlite.engine import SqliteStore

QUOTA = 16 * 1024**2


async def test_a_probe_uses_no_revision_and_no_watch_sees_it(store: Store) -> None:
    before = await store.commit(Put("k/x", b"1"))
    async with store.watch("", after=before) as watch:
        for _ in range(3):
            await store.probe()
        assert (await store.scan("")).revision == before
        after = await store.commit(Put("k/x", b"2"))
        assert (await anext(watch)).revision == after
    usage = await store.usage()
    assert usage is None or 0 < usage.used_bytes < usage.limit_bytes


@pytest.fixture
def server(tmp_path: Path) -> EtcdServer:
    (tmp_path / "etcd").mkdir()
    return EtcdServer(tmp_path / "etcd", f"--quota-backend-bytes={QUOTA}")


@pytest.fixture
async def alone(server: EtcdServer) -> AsyncIterator[EtcdStore]:
    """A store on an etcd of its own."""
    with server:
        opened = await EtcdStore.open([server.endpoint], quota_bytes=QUOTA)
        yield opened
        await opened.close()


async def test_a_full_etcd_is_read_compacted_and_probed_and_takes_writes_again(
    server: EtcdServer, alone: EtcdStore
) -> None:
    last = 0
    with suppress(StoreFull):
        for _ in range(100):
            last = await alone.commit(Put("k/x", os.urandom(900_000)))
    for refused in (alone.probe(), alone.commit(Put("k/y", b"1")), alone.acquire("a", "b", ttl_seconds=15)):
        with pytest.raises(StoreFull):
            await refused
    usage = await alone.usage()
    assert usage is not None
    assert usage.percent >= 95
    assert await alone.get("k/x") is not None
    await alone.compact(last)
    async with grpc.aio.insecure_channel(server.endpoint) as channel:
        upkeep = rpc.MaintenanceStub(channel)
        await upkeep.Defragment(rpc.DefragmentRequest())
        for alarm in (await upkeep.Alarm(rpc.AlarmRequest())).alarms:
            await upkeep.Alarm(rpc.AlarmRequest(action=2, memberID=alarm.memberID, alarm=alarm.alarm))
    await alone.probe()
    await alone.commit(Put("k/y", b"1"))


async def test_an_etcd_that_is_put_back_from_a_copy_is_noticed_by_every_verb_and_watch(
    server: EtcdServer, alone: EtcdStore, tmp_path: Path
) -> None:
    data, copy = tmp_path / "etcd" / "data", tmp_path / "copy"
    await alone.commit(Put("k/x", b"1"))
    server.stop()
    shutil.copytree(data, copy)
    server.start()
    await alone.commit(*(Put(f"k/{number}", b"1") for number in range(5)))
    last = await alone.commit(Put("k/x", b"2"))
    async with alone.watch("k/", after=last) as watch:
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        server.stop()
        shutil.rmtree(data)
        copy.rename(data)
        server.start()
        with pytest.raises(WentBack, match=f"at revision {last} and is now at"):
            await asyncio.wait_for(reading, 30)
    for verb in (alone.get("k/x"), alone.commit(Put("k/y", b"1")), alone.probe(), alone.scan("")):
        with pytest.raises(WentBack):
            await verb
    fresh = await EtcdStore.open([server.endpoint])
    assert await fresh.get("k/y") is None, "nothing was written by who should have known"
    await fresh.close()


async def test_an_etcd_that_restarts_with_its_own_data_did_not_go_back(server: EtcdServer, alone: EtcdStore) -> None:
    async def write(number: int) -> None:
        for turn in range(50):
            await alone.commit(Put(f"k/{number}", b"%d" % turn))

    await asyncio.gather(*(write(number) for number in range(8)))
    server.restart()
    assert (await alone.scan("k/")).entries
    await alone.probe()


@pytest.mark.parametrize("how", ["replaced", "removed"])
async def test_a_file_that_is_replaced_or_removed_under_a_process_is_noticed(tmp_path: Path, how: str) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    first = await SqliteStore.open(path)
    await first.commit(Put("k/x", b"1"))
    await first.close()
    shutil.copy(path, copy)
    store = await SqliteStore.open(path)
    last = await store.commit(Put("k/x", b"2"))
    async with store.watch("k/", after=last) as watch:
        if how == "replaced":
            copy.replace(path)
        else:
            path.unlink()
        with pytest.raises(WentBack, match="replaced or removed"):
            await asyncio.wait_for(anext(watch), 30)
    for verb in (store.commit(Put("k/x", b"3")), store.probe()):
        with pytest.raises(WentBack):
            await verb
    await store.close()


async def test_a_file_whose_rows_went_back_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store, other = await SqliteStore.open(path), await SqliteStore.open(path)
    await store.commit(Put("k/x", b"1"))
    last = await store.commit(Put("k/x", b"2"))
    await other._writer.submit(
        lambda: other._log._connection.execute("DELETE FROM entries WHERE id >= ?", (last * 256,))
    )
    with pytest.raises(WentBack, match=f"at revision {last} and is now at {last - 1}"):
        await store.commit(Put("k/x", b"3"))
    await other.close()
    await store.close()
