"""The store's contract: watches and events."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest

from harness.stores import Arena
from lcm.model.base.errors import Relist
from lcm.store.base import Change, CommitChanges, Delete, Put, Store, StoreWatch

T = TypeVar("T")


async def take(source: AsyncIterator[T], count: int) -> list[T]:
    async with asyncio.timeout(60):
        return [await anext(source) for _ in range(count)]


def told(batch: CommitChanges) -> list[tuple[str, bytes | None]]:
    return [(change.key, change.entry.value if change.entry else None) for change in batch.changes]


async def quiet(watch: StoreWatch) -> bool:
    try:
        async with asyncio.timeout(0.15):
            await anext(watch)
    except TimeoutError:
        return True
    return False


async def test_a_watch_tells_of_commits_in_order_each_once(store: Store) -> None:
    start = (await store.scan("")).revision
    async with store.watch("a/", after=start) as watch:
        await store.commit(Put("a/1", b"1"), Put("b/1", b"1"))
        await store.commit(Put("b/2", b"2"))
        await store.commit(Put("a/2", b"2"), Delete("a/1"))
        batches = await take(watch, 2)
        assert await quiet(watch)
    assert [batch.revision for batch in batches] == [start + 1, start + 3]
    assert [told(batch) for batch in batches] == [[("a/1", b"1")], [("a/2", b"2"), ("a/1", None)]]


async def test_a_change_carries_the_whole_entry(store: Store) -> None:
    first = await store.commit(Put("a", b"1"))
    await store.commit(Put("a", b"2", {"x": "y"}))
    [batch] = await take(store.watch("", after=first), 1)
    entry = await store.get("a")
    assert batch == CommitChanges(first + 1, [Change("a", entry)])


async def test_the_operations_of_a_commit_stay_together_and_in_order(store: Store) -> None:
    start = (await store.scan("")).revision
    await store.commit(*(Put(f"k/{n % 7}{n}", b"") for n in range(60)))
    [batch] = await take(store.watch("k/", after=start), 1)
    assert [change.key for change in batch.changes] == [f"k/{n % 7}{n}" for n in range(60)]


async def test_history_and_the_present_join_without_gap_or_duplicate(store: Store) -> None:
    start = (await store.scan("")).revision
    written = [await store.commit(Put("a", str(n).encode())) for n in range(30)]

    async def write() -> None:
        written.extend([await store.commit(Put("a", str(n).encode())) for n in range(30, 60)])

    writing = asyncio.create_task(write())
    batches = await take(store.watch("a", after=start), 60)
    await writing
    # Not counted from `start`: a lease that another test left on the same server may run out in between.
    assert [batch.revision for batch in batches] == written
    assert [told(batch) for batch in batches] == [[("a", str(n).encode())] for n in range(60)]


async def test_a_reader_resumes_where_it_stopped(store: Store) -> None:
    start = (await store.scan("")).revision
    written = [await store.commit(Put("a", str(n).encode())) for n in range(10)]
    async with store.watch("a", after=start) as watch:
        seen = await take(watch, 4)
    async with store.watch("a", after=seen[-1].revision) as watch:
        seen += await take(watch, 6)
    assert [batch.revision for batch in seen] == written


async def test_a_revision_ahead_of_the_present_is_waited_for(store: Store) -> None:
    start = await store.commit(Put("a", b"0"))
    async with store.watch("a", after=start + 2) as watch:
        for n in range(1, 5):
            await store.commit(Put("a", str(n).encode()))
        assert [batch.revision for batch in await take(watch, 2)] == [start + 3, start + 4]


async def test_a_long_history_is_read_whole(store: Store) -> None:
    start = (await store.scan("")).revision
    for batch in range(30):
        await asyncio.gather(*(store.commit(Put(f"k/{batch}/{n}", b"")) for n in range(50)))
    async with store.watch("k/", after=start) as watch:
        batches = await take(watch, 1500)
    assert [batch.revision for batch in batches] == list(range(start + 1, start + 1501))


async def test_clients_see_each_other_in_the_same_order(arena: Arena) -> None:
    here, there = await arena.open(), await arena.open()
    start = (await here.scan("")).revision
    async with here.watch("k/", after=start) as mine, there.watch("k/", after=start) as theirs:
        await asyncio.gather(*((here if n % 2 else there).commit(Put(f"k/{n}", b"")) for n in range(50)))
        first, second = await take(mine, 50), await take(theirs, 50)
    assert first == second
    assert [batch.revision for batch in first] == list(range(start + 1, start + 51))


async def test_an_empty_prefix_watches_all_but_the_engines_own(store: Store) -> None:
    start = (await store.scan("")).revision
    async with store.watch("", after=start) as watch:
        await store.acquire("leader", "me", ttl_seconds=15)
        await store.commit(Put("a", b"1"), events=[b"event"])
        [batch] = await take(watch, 1)
    assert told(batch) == [("a", b"1")]


async def test_watching_from_compacted_history_says_relist(store: Store) -> None:
    first = await store.commit(Put("a", b"1"))
    await store.commit(Put("a", b"2"))
    last = await store.commit(Put("a", b"3"))
    await store.compact(last)
    with pytest.raises(Relist):
        await take(store.watch("a", after=first), 1)
    with pytest.raises(Relist):
        await take(store.watch("a", after=last - 1), 1)
    async with store.watch("a", after=last) as watch:
        await store.commit(Put("a", b"4"))
        assert [told(batch) for batch in await take(watch, 1)] == [[("a", b"4")]]


async def test_a_live_watch_does_not_mind_compaction(store: Store) -> None:
    start = await store.commit(Put("a", b"0"))
    async with store.watch("a", after=start) as watch:
        await store.commit(Put("a", b"1"))
        await take(watch, 1)
        await store.compact(await store.commit(Put("a", b"2")))
        await store.commit(Put("a", b"3"))
        assert [told(batch) for batch in await take(watch, 2)] == [[("a", b"2")], [("a", b"3")]]


async def test_a_slow_reader_is_cut_off_and_told_to_relist(arena: Arena) -> None:
    store = await arena.open(backlog=10)
    start = await store.commit(Put("a", b"0"))
    async with store.watch("a", after=start) as slow, store.watch("a", after=start) as quick:
        await store.commit(Put("a", b"1"))
        await take(slow, 1)
        await take(quick, 1)
        for n in range(2, 32):
            await store.commit(Put("a", str(n).encode()))
            await take(quick, 1)
        with pytest.raises(Relist):
            await take(slow, 30)


async def test_reading_a_history_longer_than_the_backlog_is_not_slowness(arena: Arena) -> None:
    store = await arena.open(backlog=10)
    start = await store.commit(Put("a", b"0"))
    for n in range(1, 41):
        await store.commit(Put("a", str(n).encode()))
    async with store.watch("a", after=start) as watch:
        seen = await take(watch, 1)
        for n in range(41, 46):
            await store.commit(Put("a", str(n).encode()))
        seen += await take(watch, 44)
    assert [batch.revision for batch in seen] == list(range(start + 1, start + 46))


async def test_closing_ends_the_watch(store: Store) -> None:
    watch = store.watch("a", after=0)
    await watch.aclose()
    await watch.aclose()
    with pytest.raises(Relist):
        await anext(watch)


async def test_a_watch_of_a_closed_store_is_over(arena: Arena) -> None:
    await arena.open()
    store = await arena.open()
    revision = await store.commit(Put("a", b"1"), events=[b"1"])
    before = store.watch("a", after=revision - 1)
    await store.close()
    for reader in (before, store.watch("a", after=revision - 1), store.events(after=revision - 1)):
        for _ in range(2):
            with pytest.raises(Relist, match="closed"):
                await take(reader, 1)


async def test_a_cancelled_read_loses_nothing(store: Store) -> None:
    start = (await store.scan("")).revision
    async with store.watch("a", after=start) as watch:
        assert await quiet(watch)
        await store.commit(Put("a", b"1"))
        assert [told(batch) for batch in await take(watch, 1)] == [[("a", b"1")]]


async def test_events_are_committed_with_their_change(store: Store) -> None:
    start = (await store.scan("")).revision
    await store.commit(Put("a", b"1"), events=[b"one", b"two"])
    await store.commit(Put("a", b"2"))
    await store.commit(events=[b"three"])
    async with store.events(after=start) as reader:
        happened = await take(reader, 2)
    assert [(one.revision, list(one.events)) for one in happened] == [
        (start + 1, [b"one", b"two"]),
        (start + 3, [b"three"]),
    ]
    async with store.events(after=start + 1) as reader:
        assert [one.revision for one in await take(reader, 1)] == [start + 3]


async def test_compacted_events_say_relist(store: Store) -> None:
    first = await store.commit(events=[b"1"])
    await store.compact(await store.commit(events=[b"2"]))
    with pytest.raises(Relist):
        await take(store.events(after=first - 1), 1)
