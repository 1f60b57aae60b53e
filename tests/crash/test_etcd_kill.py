"""An etcd server is killed and restarted, and its connections are cut, while writers write and watchers watch."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import suite
from harness.servers import EtcdCluster, EtcdServer, Proxy, etcd_version
from lcm.model.base.errors import Unreachable
from lcm.store.base import ABSENT, CommitChanges, CommitEvents, Put, scan_all
from lcm.store.etcd.engine import EtcdStore

WRITERS = 8
KILLS = 6 * suite.TIMES
CUTS_PER_LIFE = 4
LAST = "log/z"


@pytest.fixture(autouse=True)
def sound_etcd() -> None:
    """Skip where etcd itself forgets. Asked when a test runs: tests are also loaded before there is an etcd."""
    if (3, 5, 0) <= etcd_version() <= (3, 5, 2) and "CI" not in os.environ:
        pytest.skip("etcd 3.5.0 to 3.5.2 loses writes of its own when killed; use Debian's etcd-server")


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


async def keys_told(watch: AsyncIterator[CommitChanges]) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    async for changed in watch:
        told += [(changed.revision, change.key) for change in changed.changes]
        if told[-1][1] == LAST:
            return told
    raise AssertionError("a watch has no end")


async def events_told(reader: AsyncIterator[CommitEvents]) -> list[tuple[int, str]]:
    told: list[tuple[int, str]] = []
    async for happened in reader:
        told += [(happened.revision, event.decode()) for event in happened.events]
        if told[-1][1] == LAST:
            return told
    raise AssertionError("events have no end")


class Account(NamedTuple):
    """What was lost or came twice, out of how many."""

    acknowledged: int
    unknown: int
    lost_writes: int
    lost_events: int
    doubled: int


async def under_load(stores: Sequence[EtcdStore], havoc: Callable[[], Awaitable[object]]) -> Account:
    """Write and watch while havoc goes on, then hold what was told against what is stored."""
    ledger = Ledger()
    start = (await stores[0].scan("")).revision
    watching = [asyncio.create_task(keys_told(store.watch("log/", after=start))) for store in stores]
    watching.append(asyncio.create_task(events_told(stores[0].events(after=start))))
    writing = [asyncio.create_task(ledger.write(stores[n % len(stores)], n)) for n in range(WRITERS)]
    await havoc()
    ledger.over = True
    await asyncio.gather(*writing)
    await stores[0].get(LAST)
    ledger.acknowledged[LAST] = await stores[0].commit(Put(LAST, b""), events=[LAST.encode()])
    async with asyncio.timeout(60):
        told = await asyncio.gather(*watching)
    stored = {entry.key: entry.revision for entry in (await scan_all(stores[0], "log/")).entries}
    assert stored.keys() <= ledger.acknowledged.keys() | ledger.unknown
    truth = sorted((revision, key) for key, revision in stored.items())
    assert all(one == sorted(one) for one in told)
    return Account(
        acknowledged=len(ledger.acknowledged),
        unknown=len(ledger.unknown),
        lost_writes=sum(stored.get(key) != revision for key, revision in ledger.acknowledged.items()),
        lost_events=sum(len(set(truth) - set(one)) for one in told),
        doubled=sum(count - 1 for one in told for count in Counter(one).values()),
    )


def check(account: Account, what: str, tell: Callable[[str], None]) -> None:
    tell(f"etcd under load: {what}; {account}")
    assert (account.lost_writes, account.lost_events, account.doubled) == (0, 0, 0)
    assert account.acknowledged > 100


async def test_a_server_is_killed_and_its_connections_are_cut(tmp_path: Path, tell: Callable[[str], None]) -> None:
    cuts = 0

    async def havoc() -> None:
        nonlocal cuts
        for _ in range(KILLS):
            for turn in range(CUTS_PER_LIFE):
                await asyncio.sleep(0.12)
                cuts += await proxies[turn % 2].cut()
            await asyncio.sleep(0.12)
            await asyncio.to_thread(server.restart)
        await asyncio.sleep(0.12)

    async with AsyncExitStack() as stack:
        server = stack.enter_context(EtcdServer(tmp_path))
        proxies = [await stack.enter_async_context(Proxy(server.endpoint)) for _ in range(2)]
        stores = [await opened(stack, [proxy.endpoint for proxy in order]) for order in (proxies, proxies[::-1])]
        account = await under_load(stores, havoc)
    check(account, f"{KILLS} kills, {cuts} connections cut", tell)
    assert cuts >= 20


async def test_the_members_of_a_cluster_are_killed_by_turns(tmp_path: Path, tell: Callable[[str], None]) -> None:
    async def havoc() -> None:
        for member in cluster.members:
            await asyncio.sleep(0.3)
            member.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(member.start)
        await asyncio.sleep(0.3)

    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(EtcdCluster(tmp_path))
        stores = [await opened(stack, [member.endpoint for member in cluster.members]) for _ in range(2)]
        account = await under_load(stores, havoc)
    check(account, f"{len(cluster.members)} members killed by turns", tell)


async def opened(stack: AsyncExitStack, endpoints: list[str]) -> EtcdStore:
    store = await EtcdStore.open(endpoints)
    stack.push_async_callback(store.close)
    return store
