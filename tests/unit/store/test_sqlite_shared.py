"""Several processes on one SQLite file: they hear each other, and leases end by the stopwatch."""

import asyncio
import random
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harness.stores import HandStopwatch, following, opened, puts
from lcm.model.base.errors import Conflict, Deposed, Refused, Relist
from lcm.store.base import ABSENT, LEASES_PREFIX, Delete, Entry, Op, Put, scan_all
from lcm.store.sqlite import log as sqlite_log
from lcm.store.sqlite.engine import SqliteStore
from lcm.store.sqlite.file import ChangeCounter, open_file
from lcm.store.sqlite.log import CommitLog, HistoryBreak
from lcm.store.sqlite.recent import MAX_CACHED_BYTES, MAX_CACHED_ENTRIES, SharedEntries
from lcm.system.clock import SystemStopwatch

TTL = 10


@pytest.fixture
def stopwatch() -> HandStopwatch:
    return HandStopwatch()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path, stopwatch: HandStopwatch) -> AsyncIterator[SqliteStore]:
    async with opened(path, stopwatch) as store:
        yield store


@pytest.fixture
def logs(path: Path, stopwatch: HandStopwatch) -> Iterator[list[CommitLog]]:
    logs = []
    for _ in range(2):
        writing, reading = open_file(path)
        reading.close()
        logs.append(CommitLog(writing, stopwatch))
    yield logs
    for log in logs:
        log.close()


async def test_processes_that_make_the_file_together_share_one_history(path: Path) -> None:
    script = (
        "import asyncio, sys, pathlib\n"
        "from lcm.store.base import Put\n"
        "from lcm.store.sqlite.engine import SqliteStore\n"
        "async def main():\n"
        "    sys.stdin.readline()\n"
        "    store = await SqliteStore.open(pathlib.Path(sys.argv[1]))\n"
        "    print(store.epoch, await store.commit(Put(sys.argv[2], b'')))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    pipe = asyncio.subprocess.PIPE
    makers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", script, path, f"k/{n}", stdin=pipe, stdout=pipe)
        for n in range(4)
    ]
    answers = await asyncio.gather(*(maker.communicate(b"go\n") for maker in makers))
    said = [answer[0].decode().split() for answer in answers]
    assert len({epoch for epoch, _ in said}) == 1
    assert sorted(int(revision) for _, revision in said) == [2, 3, 4, 5]


async def test_another_store_on_the_file_is_heard_promptly_and_in_order(path: Path) -> None:
    async with opened(path) as here, opened(path) as there, here.watch("", after=1) as watch:
        for n in range(10):
            await there.commit(Put(f"there/{n}", b""))
            await here.commit(Put(f"here/{n}", b""))
        told = await following(watch, 20)
        assert [changed.revision for changed in told] == list(range(2, 22))
        await asyncio.sleep(0.05)
        revision = await there.commit(Put("there", b"late"))
        async with asyncio.timeout(60):
            assert (await anext(watch)).revision == revision


async def test_a_restore_elsewhere_ends_watches_here(path: Path) -> None:
    async with opened(path) as here, opened(path) as there:
        await here.commit(Put("a", b"1"))
        page = await here.scan("", limit=1)
        watch = here.watch("", after=page.revision)
        revision = await there.load(puts(Put("a", b"restored")), epoch="second")
        with pytest.raises(Relist, match="restored"):
            await following(watch, 1)
        assert (here.epoch, there.epoch) == ("second", "second")
        assert [entry.value for entry in (await scan_all(here, "")).entries] == [b"restored"]
        with pytest.raises(Relist):
            await following(here.watch("", after=page.revision), 1)
        assert await here.commit(Put("b", b"")) == revision + 1


async def test_a_large_restore_is_one_step_and_revisions_only_grow(store: SqliteStore) -> None:
    last = await store.commit(Put("old", b""))
    for count in (1000, 256, 0):
        entries = [Put(f"k/{n:04}", b"", {"n": str(n)}) for n in range(count)]
        revision = await store.load(puts(*entries), epoch=f"of {count}")
        page = await scan_all(store, "")
        assert [entry.key for entry in page.entries] == [f"k/{n:04}" for n in range(count)]
        assert all(last < entry.revision == entry.created <= revision for entry in page.entries)
        assert last < revision == page.revision
        last = revision
    assert await store.commit(Put("new", b"")) == last + 1


async def test_a_restore_waits_for_leases_to_end(store: SqliteStore, stopwatch: HandStopwatch) -> None:
    lease = await store.acquire("leader", "me", ttl_seconds=TTL)
    assert lease is not None
    with pytest.raises(Refused, match="leader"):
        await store.load(puts(Put("a", b"restored")), epoch="second")
    stopwatch.step(TTL)
    await store.load(puts(Put("a", b"restored")), epoch="second")
    assert store.epoch == "second"


def put(log: CommitLog, *, compact: bool = False) -> None:
    log.begin()
    log.commit([Put("a", b"")], (), None)
    if compact:
        log.compact(log.revision)
        log.sweep(0, log.revision)
    log.end()


@pytest.mark.parametrize(("compact", "far", "match"), [(True, 100, "compacted"), (False, 2, "behind")])
def test_history_that_others_wrote_and_nobody_can_tell_cuts_off(
    logs: list[CommitLog], monkeypatch: pytest.MonkeyPatch, far: int, match: str, *, compact: bool
) -> None:
    monkeypatch.setattr(sqlite_log, "_MAX_CATCH_UP", far)
    here, there = logs
    for _ in range(3):
        put(there, compact=compact)
    here.poll_others()
    [cut] = here.take_updates()
    assert isinstance(cut, HistoryBreak)
    assert cut.revision == here.revision == there.revision
    with pytest.raises(Relist, match=match):
        raise cut.error


def test_what_others_did_is_told_even_if_our_group_fails(logs: list[CommitLog]) -> None:
    here, there = logs
    put(there)
    here.begin()
    here.commit([Put("b", b"")], (), None)
    here.abandon()
    assert [item.revision for item in here.take_updates()] == [2]
    put(here)
    assert [item.revision for item in here.take_updates()] == [3]


def test_a_revision_that_another_process_replaced_is_refused(logs: list[CommitLog]) -> None:
    here, there = logs
    put(here)
    put(there)
    here.begin()
    with pytest.raises(Conflict) as raised:
        here.commit([Put("a", b"", at=2)], (), None)
    assert (raised.value.wanted, raised.value.found) == (2, 3)
    assert here.commit([Put("a", b"", at=3)], (), None) == 4
    here.end()


def test_what_a_group_wrote_in_vain_is_not_taken_for_written(logs: list[CommitLog]) -> None:
    here, _ = logs
    for _ in range(2):
        here.begin()
        here.commit([Put("b", b"", at=ABSENT)], (), None)
        here.abandon()


def test_a_key_is_known_by_what_was_done_to_it_last(logs: list[CommitLog], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "_MAX_HEADS", 3)
    here, there = logs
    known = dict.fromkeys("abcdef", ABSENT)
    chance = random.Random(5)
    for _ in range(300):
        log, keys = chance.choice([here, here, here, there]), chance.sample(sorted(known), 2)
        choices: list[list[Op]] = [[Put(key, b"", at=known[key]), Delete(key, at=known[key])] for key in keys]
        ops = [chance.choice(either) for either in choices]
        log.begin()
        revision = log.commit(ops, (), None)
        log.end()
        log.take_updates()
        known |= {op.key: revision if isinstance(op, Put) else ABSENT for op in ops}


async def test_what_another_process_committed_is_read_from_then_on(path: Path) -> None:
    async with opened(path) as here, opened(path) as there:
        for number in range(50):
            revision = await there.commit(Put("a", str(number).encode()))
            for store in (here, there, here):
                entry = await store.get("a")
                assert entry is not None
                assert (entry.revision, entry.value) == (revision, str(number).encode())
        await there.commit(Delete("a"))
        assert await here.get("a") is None


async def test_nobody_reads_what_was_before_a_commit_that_somebody_was_told_of(path: Path) -> None:
    told = dict.fromkeys(("k/0", "k/1"), 0)
    chance = random.Random(3)

    async def write(store: SqliteStore) -> None:
        for _ in range(100):
            key = chance.choice(sorted(told))
            told[key] = max(told[key], await store.commit(Put(key, b"")))

    async def read(store: SqliteStore) -> None:
        for _ in range(1_000):
            key = chance.choice(sorted(told))
            known, entry = told[key], await store.get(key)
            assert (entry.revision if entry else 0) >= known
            if chance.random() < 0.3:
                await asyncio.sleep(0)

    async def listen(store: SqliteStore) -> None:
        async with store.watch("k/", after=1) as watch:
            for _ in range(200):
                changed = await anext(watch)
                for change in changed.changes:
                    entry = await store.get(change.key)
                    assert entry is not None
                    assert entry.revision >= changed.revision

    async with opened(path) as here, opened(path) as there:
        await asyncio.gather(*(act(store) for act in (write, read, listen, read) for store in (here, there)))


def test_what_was_read_is_known_until_anybody_commits(path: Path, logs: list[CommitLog]) -> None:
    here, _ = logs

    async def look() -> None:
        recent = SharedEntries(ChangeCounter(path))
        entry, large = Entry("a", b"", {}, 2, 2), Entry("b", b"x" * (MAX_CACHED_BYTES + 1), {}, 2, 2)
        for one in (entry, large):
            recent.add(one.key, one, asked_at=recent.state)
        assert (recent.get("a"), recent.get("b")) == ((entry,), None)
        put(here)
        assert recent.get("a") == (entry,), "this was due before the commit"
        await asyncio.sleep(0)
        assert recent.get("a") is None
        recent.add("a", entry, asked_at=recent.state)
        put(here)
        recent.expire()
        assert recent.get("a") is None
        for number in range(MAX_CACHED_ENTRIES + 1):
            recent.add(f"k/{number}", None, asked_at=recent.state)
        assert [recent.get(f"k/{number}") is None for number in (0, 1)] == [True, False]
        recent.close()
        recent.expire()
        assert recent.get("k/1") is None, "what cannot be asked knows nothing"

    asyncio.run(look())


async def test_who_closes_last_leaves_one_file(path: Path) -> None:
    async with opened(path) as store:
        await store.commit(Put("a", b""))
        await store.get("a")
    assert [one.name for one in path.parent.iterdir()] == [path.name]


async def test_a_lease_lasts_by_the_stopwatch(store: SqliteStore, stopwatch: HandStopwatch) -> None:
    lease = await store.acquire("leader", "a", ttl_seconds=TTL)
    assert lease is not None
    stopwatch.step(TTL - 1)
    assert await store.acquire("leader", "b", ttl_seconds=TTL) is None
    await store.renew(lease)
    stopwatch.step(TTL - 1)
    await store.commit(Put("a", b""), fence=lease.fence())
    stopwatch.step(1)
    for late in (store.commit(Put("a", b""), fence=lease.fence()), store.renew(lease)):
        with pytest.raises(Deposed):
            await late
    assert await store.lease("leader") is None


async def test_a_lease_that_ran_out_is_ended_by_any_process(path: Path, stopwatch: HandStopwatch) -> None:
    async with opened(path, stopwatch) as here:
        lease = await here.acquire("leader", "a", ttl_seconds=TTL)
        assert lease is not None
    async with opened(path, stopwatch) as there:
        assert await there.lease("leader") == lease
        async with there.watch(LEASES_PREFIX, after=lease.term) as watch:
            stopwatch.step(TTL)
            [ended] = await following(watch, 1)
    assert [(change.key, change.entry) for change in ended.changes] == [(LEASES_PREFIX + "leader", None)]


async def test_a_lease_from_before_a_reboot_is_held_by_nobody(store: SqliteStore, stopwatch: HandStopwatch) -> None:
    lease = await store.acquire("leader", "a", ttl_seconds=TTL)
    assert lease is not None
    stopwatch.elapsed = 5.0
    assert await store.lease("leader") is None
    with pytest.raises(Deposed):
        await store.renew(lease)
    assert await store.acquire("leader", "b", ttl_seconds=TTL) is not None
    changes = await following(store.watch(LEASES_PREFIX, after=1), 3)
    assert [changed.changes[0].entry is not None for changed in changes] == [True, False, True]


async def test_a_lease_taken_while_another_process_looks_is_seen(path: Path, stopwatch: HandStopwatch) -> None:
    """Whoever read the time before the lease would take it for one from before a reboot."""
    gate = threading.Event()
    async with opened(path, stopwatch) as here, opened(path, stopwatch) as there:
        there._reader.submit(gate.wait)
        looking = asyncio.ensure_future(there.lease("leader"))
        await asyncio.sleep(0)
        stopwatch.step(1)
        taken = await here.acquire("leader", "a", ttl_seconds=TTL)
        gate.set()
        assert await looking == taken


def test_the_machines_stopwatch_goes_forward() -> None:
    stopwatch = SystemStopwatch()
    assert 0 < stopwatch.seconds() <= stopwatch.seconds()
