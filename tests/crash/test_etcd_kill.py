"""An etcd server is killed and restarted, and its connections are cut, while writers write and watchers watch."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lcm.model.errors import Unreachable
from lcm.store.base import ABSENT, Changed, Happened, Put, everything
from lcm.store.etcd import EtcdStore
from servers import EtcdServer, Proxy, etcd_version

WRITERS = 8
KILLS = 6
CUTS_PER_LIFE = 4
LAST = "log/z"

# Releases that lose acknowledged writes of their own when killed. CI has Debian's, which does not: there it must run.
BROKEN = (3, 5, 0) <= etcd_version() <= (3, 5, 2) and "CI" not in os.environ


class Ledger:
    """What the writers know of their commits."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.over = False

    async def write(self, store: EtcdStore, writer: int) -> None:
        serial = 0
        while not self.over:
            serial += 1
            key = f"log/{writer}/{serial}"
            try:
                # A commit that is secretly repeated meets its own first try, and the test fails with Conflict.
                self.acknowledged[key] = await store.commit(Put(key, b"x" * 200, at=ABSENT), events=[key.encode()])
            except Unreachable:
                self.unknown.add(key)


async def keys_told(watch: AsyncIterator[Changed]) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    async for changed in watch:
        told += [(changed.revision, change.key) for change in changed.changes]
        if told[-1][1] == LAST:
            return told
    raise AssertionError("a watch has no end")


async def events_told(reader: AsyncIterator[Happened]) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    async for happened in reader:
        told += [(happened.revision, event.decode()) for event in happened.events]
        if told[-1][1] == LAST:
            return told
    raise AssertionError("events have no end")


async def havoc(server: EtcdServer, proxies: list[Proxy]) -> int:
    """Cut each path by turns, then kill the server; return the number of connections cut."""
    cuts = 0
    for _ in range(KILLS):
        for turn in range(CUTS_PER_LIFE):
            await asyncio.sleep(0.12)
            cuts += await proxies[turn % len(proxies)].cut()
        await asyncio.sleep(0.12)
        await asyncio.to_thread(server.restart)
    await asyncio.sleep(0.12)
    return cuts


@pytest.mark.skipif(BROKEN, reason="etcd 3.5.0 to 3.5.2 loses writes of its own; use Debian's etcd-server")
async def test_no_acknowledged_write_and_no_watch_event_is_lost_or_doubled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger()
    async with AsyncExitStack() as stack:
        server = stack.enter_context(EtcdServer(tmp_path))
        proxies = [await stack.enter_async_context(Proxy(server.endpoint)) for _ in range(2)]
        stores = [await EtcdStore.open([proxy.endpoint for proxy in order]) for order in (proxies, proxies[::-1])]
        for store in stores:
            stack.push_async_callback(store.close)
        start = (await stores[0].scan("")).revision
        watching = [asyncio.create_task(keys_told(store.watch("log/", after=start))) for store in stores]
        watching.append(asyncio.create_task(events_told(stores[0].events(after=start))))
        writing = [asyncio.create_task(ledger.write(stores[n % 2], n)) for n in range(WRITERS)]
        cuts = await havoc(server, proxies)
        ledger.over = True
        await asyncio.gather(*writing)
        await stores[0].get(LAST)
        ledger.acknowledged[LAST] = await stores[0].commit(Put(LAST, b""), events=[LAST.encode()])
        async with asyncio.timeout(10):
            told = await asyncio.gather(*watching)
        stored = {entry.key: entry.revision for entry in (await everything(stores[0], "log/")).entries}

    truth = [(revision, key) for key, revision in stored.items()]
    lost_writes = sum(stored.get(key) != revision for key, revision in ledger.acknowledged.items())
    lost_events = sum(len(set(truth) - set(one)) for one in told)
    doubled = sum(count - 1 for one in told for count in Counter(one).values())
    with capsys.disabled():
        print(
            f"\netcd: {KILLS} kills, {cuts} connections cut, {len(ledger.acknowledged)} commits acknowledged, "
            f"{len(ledger.unknown)} unknown of which {len(ledger.unknown & stored.keys())} stored; "
            f"{lost_writes} writes lost, {lost_events} events lost, {doubled} doubled"
        )
    assert (lost_writes, lost_events, doubled) == (0, 0, 0)
    assert cuts >= 20
    assert all(one == sorted(truth) for one in told)
    assert stored.keys() <= ledger.acknowledged.keys() | ledger.unknown
