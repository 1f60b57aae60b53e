"""The inside of the SQLite engine: groups of commits, pages, callers that give up, threads that end."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from harness.stores import following, opened
from lcm.model.base.errors import Conflict, Invalid, Relist, Unreachable
from lcm.store.base import ABSENT, Cursor, Delete, Page, Put, scan_all
from lcm.store.sqlite import log
from lcm.store.sqlite import rows as sqlite_rows
from lcm.store.sqlite.engine import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as store:
        yield store


async def test_commits_of_one_group_fail_alone_and_see_each_other(store: SqliteStore) -> None:
    await store.commit(Put("taken", b""))
    answers = await asyncio.gather(
        store.commit(Put("a", b"1", at=ABSENT)),
        store.commit(Put("b", b"1"), Put("taken", b"", at=ABSENT)),
        store.commit(Put("a", b"2", at=ABSENT)),
        store.commit(Put("a", b"2", at=3)),
        store.commit(Put("c", b"1")),
        return_exceptions=True,
    )
    assert [answer if isinstance(answer, int) else type(answer) for answer in answers] == [3, Conflict, Conflict, 4, 5]
    assert [entry.key for entry in (await scan_all(store, "")).entries] == ["a", "c", "taken"]


async def test_more_commits_than_a_group_holds_are_all_made(store: SqliteStore) -> None:
    revisions = await asyncio.gather(*(store.commit(Put(f"k/{n}", b"")) for n in range(700)))
    assert list(revisions) == list(range(2, 702))


async def test_a_wrong_argument_fails_its_own_caller_only(store: SqliteStore) -> None:
    answers = await asyncio.gather(
        store.commit(Put("a", b"", {"x": "\ud800"})),
        store.commit(Put("b", b"")),
        store.scan("\ud800"),
        store.scan("k", limit=1),
        store.scan("", labels=cast("dict[str, str]", ["x"])),
        store.get("b"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers[:4]] == [Invalid, int, Invalid, Page]
    assert isinstance(answers[4], AttributeError | Page)
    with pytest.raises(AttributeError):
        await store.scan("", labels=cast("dict[str, str]", ["x"]))
    assert await store.get("b") is not None
    assert await store.commit(Put("c", b"")) == 3


async def test_a_caller_that_gives_up_harms_nobody(store: SqliteStore) -> None:
    tasks = [asyncio.create_task(store.commit(Put(f"k/{n}", b""))) for n in range(9)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, int) for answer in answers] == [False, True] * 4 + [False]
    assert await store.commit(Put("after", b"")) == 11


async def test_closing_finishes_what_was_asked_and_refuses_the_rest(path: Path) -> None:
    store = await SqliteStore.open(path)
    watch = store.watch("", after=1)
    tasks = [asyncio.create_task(store.commit(Put(f"k/{n}", b""))) for n in range(300)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert [await task for task in tasks] == list(range(2, 302))
    for late in (store.commit(Put("late", b"")), store.get("k/1"), store.scan(""), store.lease("leader")):
        with pytest.raises(Unreachable, match="closed"):
            await late
    for ended in (watch, store.watch("", after=1)):
        with pytest.raises(Relist):
            await following(ended, 1)
    await store.close()
    async with opened(path) as store:
        assert len((await scan_all(store, "")).entries) == 300


async def test_labels_that_match_little_still_fill_a_page(store: SqliteStore) -> None:
    for start in range(0, 1000, 100):
        ops = [Put(f"k/{n:04}", b"", {"rare": str(n % 97 == 0)}) for n in range(start, start + 100)]
        await store.commit(*ops)
    await store.commit(Delete("k/0194"))
    page = await store.scan("k/", labels={"rare": "True"}, limit=4)
    assert [entry.key for entry in page.entries] == ["k/0000", "k/0097", "k/0291", "k/0388"]
    rest = await store.scan("k/", labels={"rare": "True"}, limit=6, cursor=page.next)
    assert [entry.key for entry in rest.entries] == [f"k/{n:04}" for n in range(485, 1000, 97)]
    assert rest.next is None


async def test_history_is_read_in_pieces_that_never_split_a_commit(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_rows, "_HISTORY_BYTES", 2500)
    monkeypatch.setattr(sqlite_rows, "_HISTORY_REVISIONS", 7)
    for n in range(30):
        await store.commit(Put("k/a", b"x" * 400), Put(f"other/{n}", b""), Put("k/b", b"x" * 400))
    async with store.watch("k/", after=1) as watch:
        told = await following(watch, 30)
    assert [changed.revision for changed in told] == list(range(2, 32))
    assert {tuple(change.key for change in changed.changes) for changed in told} == {("k/a", "k/b")}


async def test_compaction_sweeps_in_stretches(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_SWEEP_ROWS", 3)
    for n in range(20):
        await store.commit(Put("hot", str(n).encode()), Put(f"k/{n}", b""))
        await store.commit(Delete(f"k/{n - 1}"))
    kept = (await store.scan("")).revision
    await store.commit(Put("hot", b"newest"), Delete("k/19"))
    before = await scan_all(store, "")
    await store.compact(kept)
    assert await scan_all(store, "") == before
    cursor = Cursor(kept, "a")
    assert [(entry.key, entry.value) for entry in (await store.scan("", cursor=cursor)).entries] == [
        ("hot", b"19"),
        ("k/19", b""),
    ]
    rows = await store._reader.submit(lambda: store._connection.execute("SELECT count(*) FROM entries").fetchone()[0])
    assert rows == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_a_thread_leaves_nobody_waiting(store: SqliteStore) -> None:
    watch = store.watch("", after=1)

    def fail() -> None:
        raise AssertionError("a bug")

    with pytest.raises(Unreachable):
        await store._writer.submit(fail)
    with pytest.raises(Relist):
        await following(watch, 1)
    with pytest.raises(Unreachable):
        await store.commit(Put("a", b""))


async def test_a_watch_of_history_that_is_gone_is_forgotten(store: SqliteStore) -> None:
    await store.commit(Put("a", b"1"))
    await store.compact(await store.commit(Put("a", b"2")))
    watch = store.watch("a", after=1)
    for _ in range(2):
        with pytest.raises(Relist, match="compacted"):
            await following(watch, 1)
    assert not store._hub
