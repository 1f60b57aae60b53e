"""A store that is alone on its file remembers what it read, and never gives what a commit has replaced."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.stores import HandStopwatch, following, opened
from lcm.model.base.errors import Conflict, Unreachable
from lcm.store.base import ABSENT, LEASES_PREFIX, Delete, Entry, Put
from lcm.store.sqlite.engine import SqliteStore
from lcm.store.sqlite.recent import MAX_CACHED_BYTES, MAX_CACHED_ENTRIES, OwnEntries

KEYS = [f"k/{number}" for number in range(5)]


@pytest.fixture(name="store")
async def open_store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "store.db", alone=True)
    yield store
    await store.close()


async def test_who_was_told_of_a_commit_never_reads_what_was_before_it(store: SqliteStore) -> None:
    chance = random.Random(7)
    told = dict.fromkeys(KEYS, 0)
    """The newest revision of each key that somebody was told of, by an answer or by the watch."""

    async def write(turns: int) -> None:
        for _ in range(turns):
            keys = chance.sample(KEYS, chance.randrange(1, 3))
            revision = await store.commit(*(Put(key, chance.randbytes(8)) for key in keys))
            told.update({key: max(told[key], revision) for key in keys})

    async def read(turns: int) -> None:
        for _ in range(turns):
            key = chance.choice(KEYS)
            known = told[key]
            entry = await store.get(key)
            assert (entry.revision if entry else 0) >= known
            if chance.random() < 0.2:
                await asyncio.sleep(0)

    async def listen() -> None:
        async with store.watch("k/", after=0) as watch:
            async for changed in watch:
                for change in changed.changes:
                    told[change.key] = max(told[change.key], changed.revision)
                    entry = await store.get(change.key)
                    assert entry is not None
                    assert entry.revision >= changed.revision

    listening = asyncio.create_task(listen())
    await asyncio.gather(*(write(150) for _ in range(4)), *(read(1_500) for _ in range(8)))
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening


async def test_a_commit_that_nobody_waits_for_is_read_all_the_same(store: SqliteStore) -> None:
    first = await store.commit(Put("k/0", b"1"))
    assert (entry := await store.get("k/0")) is not None
    assert entry.revision == first
    impatient = asyncio.create_task(store.commit(Put("k/0", b"2")))
    await asyncio.sleep(0)
    impatient.cancel()
    await store.commit(Put("k/1", b"x"))
    assert (entry := await store.get("k/0")) is not None
    assert entry.value == b"2"


async def test_what_is_read_while_a_commit_goes_on_that_nobody_waits_for_is_not_kept(store: SqliteStore) -> None:
    await store.commit(Put("k/0", b"1"))
    gate = threading.Event()
    busy = store._writer.submit(gate.wait)
    impatient = asyncio.create_task(store.commit(Put("k/0", b"2")))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert (entry := await store.get("k/0")) is not None
    assert entry.value == b"1"
    gate.set()
    await busy
    await store.commit(Put("k/1", b"x"))
    assert (entry := await store.get("k/0")) is not None
    assert entry.value == b"2"


async def test_what_was_removed_or_refused_is_read_as_it_is(store: SqliteStore) -> None:
    await store.commit(Put("k/0", b"1"))
    await store.get("k/0")
    with pytest.raises(Conflict):
        await store.commit(Put("k/0", b"2", at=ABSENT))
    assert (entry := await store.get("k/0")) is not None
    assert entry.value == b"1"
    await store.commit(Delete("k/0"))
    assert await store.get("k/0") is None


async def test_what_was_known_before_a_commit_is_known_after_it(store: SqliteStore) -> None:
    assert await store.get("k/0") is None
    first = await store.commit(Put("k/0", b"1", {"a": "b"}))
    assert store._recent.get("k/0") == (Entry("k/0", b"1", {"a": "b"}, first, first),)
    second = await store.commit(Put("k/0", b"2"), Put("k/1", b"not read before"))
    assert store._recent.get("k/0") == (Entry("k/0", b"2", {}, second, first),)
    assert store._recent.get("k/1") is None
    assert store._recent.get("k/0") == (await read_anew(store, "k/0"),)
    await asyncio.gather(*(store.commit(Put("k/0", b"%d" % number)) for number in range(3)))
    assert (entry := await store.get("k/0")) is not None
    assert (entry.value, entry.created) == (b"2", first)


async def read_anew(store: SqliteStore, key: str) -> Entry | None:
    [entry] = (await store.scan(key)).entries
    return entry


async def test_a_restore_leaves_nothing_of_before(store: SqliteStore) -> None:
    await store.commit(Put("k/0", b"1"))
    await store.get("k/0")

    async def entries() -> AsyncIterator[Put]:
        yield Put("k/0", b"restored")

    await store.load(entries(), epoch="other")
    assert (entry := await store.get("k/0")) is not None
    assert entry.value == b"restored"


async def test_a_closed_store_remembers_nothing(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "closed.db", alone=True)
    await store.commit(Put("k/0", b"1"))
    await store.get("k/0")
    await store.close()
    with pytest.raises(Unreachable):
        await store.get("k/0")


async def test_a_lease_that_another_connection_ends_is_told_to_who_watches(tmp_path: Path) -> None:
    stopwatch, path = HandStopwatch(), tmp_path / "leases.db"
    store = await SqliteStore.open(path, stopwatch=stopwatch, alone=True)
    async with opened(path, stopwatch) as beside:
        lease = await beside.acquire("leader", "a", ttl_seconds=10)
        assert lease is not None
        async with store.watch(LEASES_PREFIX, after=lease.term) as watch:
            await beside.release(lease)
            [ended] = await following(watch, 1)
    assert [(change.key, change.entry) for change in ended.changes] == [(LEASES_PREFIX + "leader", None)]
    await store.close()


def test_only_so_much_is_remembered() -> None:
    recent = OwnEntries()
    for number in range(MAX_CACHED_ENTRIES + 1):
        recent.add(f"k/{number}", Entry(f"k/{number}", b"", {}, 1, 1), asked_at=0)
    recent.add("k/large", Entry("k/large", b"x" * (MAX_CACHED_BYTES + 1), {}, 1, 1), asked_at=0)
    assert recent.get("k/0") is None
    assert recent.get("k/large") is None
    assert recent.get(f"k/{MAX_CACHED_ENTRIES}") is not None
