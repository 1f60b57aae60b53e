"""Backup and restore through a file, on every engine."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import given
from harness.stores import Arena
from lcm.model.base.errors import Invalid, Refused, Relist, TooLarge
from lcm.store.backup import BackupHeader, BackupRecord, BackupTrailer, restore_backup, write_backup
from lcm.store.base import MAX_BYTES, Delete, Put, Store, scan_all
from lcm.store.memory import MemoryStore

NOW = given.moment("09:00")
SOON_SECONDS = 60
_serial = itertools.count(1)


def new_epoch() -> str:
    return f"epoch-{next(_serial)}"


async def contents(store: Store) -> dict[str, tuple[bytes, dict[str, str]]]:
    return {entry.key: (entry.value, dict(entry.labels)) for entry in (await scan_all(store, "")).entries}


async def furnish(store: Store) -> None:
    await store.commit(Put("workers/default/w1", b"\x00\xff", {"track": "ccna"}), Put("empty", b""))
    await store.commit(Put("workers/default/w1", b"newer", {"track": "ccnp"}), events=[b"changed"])
    await store.commit(Put("gone", b"1"))
    await store.commit(Delete("gone"))


async def given_slowly(*entries: Put) -> AsyncIterator[Put]:
    for entry in entries:
        await asyncio.sleep(0)
        yield entry


def contents_of(path: Path) -> bytes:
    return path.read_bytes()


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def modes(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lcm.backup"


async def test_a_restore_brings_back_the_state_of_the_backup(store: Store, path: Path) -> None:
    await furnish(store)
    before = await contents(store)
    assert before == {"workers/default/w1": (b"newer", {"track": "ccnp"}), "empty": (b"", {})}
    header = await write_backup(store, path, now=NOW)
    assert (header.epoch, header.taken_at) == (store.epoch, NOW)
    last = await store.commit(Put("workers/default/w1", b"later"), Put("more", b"1"), Delete("empty"))
    assert await restore_backup(store, path, epoch=new_epoch()) == header
    assert await contents(store) == before
    assert (await scan_all(store, "")).revision > last


async def test_a_backup_moves_between_engines(store: Store, path: Path) -> None:
    other = MemoryStore(epoch=new_epoch())
    await furnish(store)
    await write_backup(store, path, now=NOW)
    await restore_backup(other, path, epoch=new_epoch())
    assert await contents(other) == await contents(store)
    await other.commit(Put("moved", b"1", {"x": "y"}))
    await write_backup(other, path, now=NOW)
    await restore_backup(store, path, epoch=new_epoch())
    assert await contents(store) == await contents(other)
    await other.close()


async def test_a_restore_begins_a_new_epoch(arena: Arena, path: Path) -> None:
    here, there = await arena.open(), await arena.open()
    await furnish(here)
    await write_backup(here, path, now=NOW)
    epoch = new_epoch()
    assert here.epoch == there.epoch != epoch
    await restore_backup(here, path, epoch=epoch)
    assert here.epoch == epoch
    assert (await arena.open()).epoch == epoch


async def test_whoever_watches_again_after_a_restore_knows_the_new_epoch(arena: Arena, path: Path) -> None:
    here, there = await arena.open(), await arena.open()
    await furnish(here)
    await write_backup(here, path, now=NOW)
    epoch = new_epoch()
    async with there.events(after=(await scan_all(there, "")).revision) as old, asyncio.timeout(SOON_SECONDS):
        await restore_backup(here, path, epoch=epoch)
        with pytest.raises(Relist):
            await anext(old)
    async with there.events(after=(await scan_all(there, "")).revision) as fresh, asyncio.timeout(SOON_SECONDS):
        await here.commit(Put("after", b"1"), events=[b"happened"])
        assert (await anext(fresh)).events == [b"happened"]
    assert there.epoch == epoch


async def test_an_old_epoch_is_not_used_again(store: Store, path: Path) -> None:
    await furnish(store)
    header = await write_backup(store, path, now=NOW)
    with pytest.raises(AssertionError, match="old epoch"):
        await restore_backup(store, path, epoch=header.epoch)
    await restore_backup(store, path, epoch=new_epoch())
    for old in (store.epoch, header.epoch):
        with pytest.raises(AssertionError, match="old epoch"):
            await restore_backup(store, path, epoch=old)


async def test_watches_from_before_a_restore_end_with_relist(arena: Arena, path: Path) -> None:
    here, there = await arena.open(), await arena.open()
    await furnish(here)
    await write_backup(here, path, now=NOW)
    old = (await scan_all(here, "")).revision
    watches = [store.watch("workers/", after=old) for store in (here, there)]
    readers = [store.events(after=old) for store in (here, there)]
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(anext(watch)) for watch in watches]
    waiting += [asyncio.ensure_future(anext(reader)) for reader in readers]
    await asyncio.sleep(0.05)
    await restore_backup(here, path, epoch=new_epoch())
    async with asyncio.timeout(SOON_SECONDS):
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [Relist] * 4
    for watch in (here.watch("workers/", after=old), there.watch("", after=old)):
        async with watch, asyncio.timeout(SOON_SECONDS):
            with pytest.raises(Relist):
                await anext(watch)


async def test_a_watch_from_the_restored_state_sees_what_follows(store: Store, path: Path) -> None:
    await furnish(store)
    await write_backup(store, path, now=NOW)
    await restore_backup(store, path, epoch=new_epoch())
    revision = (await scan_all(store, "")).revision
    async with store.watch("", after=revision) as watch, asyncio.timeout(SOON_SECONDS):
        after = await store.commit(Put("next", b"1"))
        changed = await anext(watch)
    assert (changed.revision, [one.key for one in changed.changes]) == (after, ["next"])


async def test_a_restore_is_refused_while_a_lease_is_held(arena: Arena, path: Path) -> None:
    here, there = await arena.open(), await arena.open()
    await furnish(here)
    await write_backup(here, path, now=NOW)
    await here.commit(Put("later", b"1"))
    before, epoch = await contents(here), here.epoch
    lease = await there.acquire("scheduler", "somebody", ttl_seconds=30)
    assert lease is not None
    with pytest.raises(Refused, match="scheduler"):
        await restore_backup(here, path, epoch=new_epoch())
    assert (await contents(here), here.epoch) == (before, epoch)
    await there.renew(lease)
    await there.release(lease)
    await restore_backup(here, path, epoch=new_epoch())
    assert "later" not in await contents(here)


async def test_a_term_after_a_restore_is_greater_than_all_before(store: Store, path: Path) -> None:
    await furnish(store)
    await write_backup(store, path, now=NOW)
    before = await store.acquire("scheduler", "a", ttl_seconds=30)
    assert before is not None
    await store.release(before)
    await restore_backup(store, path, epoch=new_epoch())
    after = await store.acquire("scheduler", "a", ttl_seconds=30)
    assert after is not None
    assert after.term > before.term
    await store.release(after)


async def test_a_restore_can_be_repeated(store: Store, path: Path) -> None:
    await furnish(store)
    await write_backup(store, path, now=NOW)
    before = await contents(store)
    revisions = []
    for _ in range(3):
        await restore_backup(store, path, epoch=new_epoch())
        assert await contents(store) == before
        revisions.append((await scan_all(store, "")).revision)
    assert revisions == sorted(set(revisions))


async def test_an_empty_store_is_backed_up_and_restored(store: Store, path: Path) -> None:
    await write_backup(store, path, now=NOW)
    await furnish(store)
    await restore_backup(store, path, epoch=new_epoch())
    assert await contents(store) == {}


async def test_a_big_state_is_brought_back(store: Store, path: Path) -> None:
    puts = [Put(f"sessions/{number:05}", b"%05d" % number * 40, {"n": str(number)}) for number in range(1_500)]
    for start in range(0, len(puts), 125):
        await store.commit(*puts[start : start + 125])
    await store.commit(Put("large/1", b"x" * (MAX_BYTES - 100)))
    await store.commit(Put("large/2", b"y" * (MAX_BYTES - 100)))
    before = await contents(store)
    assert len(before) == 1_502
    await write_backup(store, path, now=NOW)
    await store.commit(*(Delete(put.key) for put in puts[:100]))
    await restore_backup(store, path, epoch=new_epoch())
    assert await contents(store) == before


async def test_whatever_can_be_committed_can_be_brought_back(store: Store, path: Path) -> None:
    await store.commit(Put("k" * 512, b"", {"x": "\U0001f680" * 249_800}))
    await store.commit(Put("many", b"", {f"{n:05x}": "" for n in range(66_000)}))
    await store.commit(Put("value", b"x" * (MAX_BYTES - 5)))
    before = await contents(store)
    await write_backup(store, path, now=NOW)
    await restore_backup(store, path, epoch=new_epoch())
    assert await contents(store) == before


@pytest.mark.parametrize("bad", [Put("b", b"x" * MAX_BYTES), Put("!leases/x", b""), Put("b", b"", {"x": "\ud800"})])
async def test_what_is_over_the_limits_is_not_loaded(store: Store, bad: Put) -> None:
    await store.commit(Put("a", b"old"))
    before, epoch = await scan_all(store, ""), store.epoch
    with pytest.raises(Refused):
        await store.load(given_slowly(Put("a", b"new"), bad), epoch=new_epoch())
    assert (await scan_all(store, ""), store.epoch) == (before, epoch)


async def test_the_last_entry_of_a_key_is_loaded_without_its_demands(store: Store) -> None:
    await store.load(given_slowly(Put("a", b"1", at=7), Put("b", b"1", at=0), Put("a", b"2", {"x": "y"})), epoch="new")
    assert await contents(store) == {"a": (b"2", {"x": "y"}), "b": (b"1", {})}
    page = await scan_all(store, "")
    assert all(entry.revision == entry.created <= page.revision for entry in page.entries)


async def test_a_lease_taken_while_a_backup_is_read_stops_the_restore(arena: Arena) -> None:
    here, there = await arena.open(), await arena.open()
    await here.commit(Put("a", b"old"))
    taking = there.acquire("scheduler", "somebody", ttl_seconds=30)

    async def entries() -> AsyncIterator[Put]:
        yield Put("a", b"new")
        assert await taking is not None

    with pytest.raises(Refused, match="scheduler"):
        await here.load(entries(), epoch=new_epoch())
    assert await contents(here) == {"a": (b"old", {})}
    assert await there.lease("scheduler") is not None


async def test_a_backup_is_taken_at_one_revision(store: Store, path: Path) -> None:
    puts = [Put(f"a/{number:04}", b"0") for number in range(1_200)]
    for start in range(0, len(puts), 120):
        await store.commit(*puts[start : start + 120])
    taken = asyncio.ensure_future(write_backup(store, path, now=NOW))
    for number in range(20):
        await store.commit(Put("a/0000", b"%d" % number), Put("a/1199", b"%d" % number))
    header = await taken
    await restore_backup(store, path, epoch=new_epoch())
    after = await contents(store)
    assert after["a/0000"] == after["a/1199"]
    assert header.revision < (await scan_all(store, "")).revision


MAGIC = b"LCM-BACKUP 1\n"


def framed(*frames: BackupHeader | BackupRecord | BackupTrailer | bytes) -> bytes:
    parts = [one if isinstance(one, bytes) else msgspec.msgpack.encode(one) for one in frames]
    return MAGIC + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


HEADER = BackupHeader("elsewhere", 7, NOW)
RECORD = BackupRecord("a", b"1", {})
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "foreign": lambda _: b"SQLite format 3\0" + bytes(100),
    "a later format": lambda whole: whole.replace(b"BACKUP 1", b"BACKUP 2", 1),
    "heading only": lambda _: MAGIC,
    "without its end": lambda whole: whole[:-60],
    "cut in the middle": lambda whole: whole[: len(whole) // 2],
    "one byte altered": lambda whole: whole.replace(b"newer", b"Newer", 1),
    "something appended": lambda whole: whole + b"\0",
    "twice": lambda whole: whole + whole,
    "a record appended": lambda whole: whole + framed(RECORD)[len(MAGIC) :],
    "a huge length": lambda whole: whole[:40] + b"\xff" * 4 + whole[44:],
    "no header": lambda _: framed(RECORD, BackupTrailer(1, b"")),
    "no text": lambda _: framed(HEADER, b"\x84\xa4type\xa6record\xa3key\xa1\xff\xa5value\xc4\x00\xa6labels\x80"),
    "a wrong proof": lambda _: framed(HEADER, RECORD, BackupTrailer(1, bytes(32))),
    "another type": lambda _: framed(HEADER, msgspec.msgpack.encode({"type": "surprise"})),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_file_is_refused_before_anything_is_touched(store: Store, path: Path, damage: str) -> None:
    await furnish(store)
    await write_backup(store, path, now=NOW)
    rewrite(path, DAMAGE[damage](contents_of(path)))
    await store.commit(Put("later", b"1"))
    before, epoch = await scan_all(store, ""), store.epoch
    with pytest.raises(Invalid) as raised:
        await restore_backup(store, path, epoch=new_epoch())
    (fault,) = raised.value.faults
    assert fault.path == str(path)
    assert fault.remedy == "use another backup; nothing was changed"
    assert (await scan_all(store, ""), store.epoch) == (before, epoch)


async def in_memory(path: Path) -> MemoryStore:
    store = MemoryStore(epoch=new_epoch())
    await furnish(store)
    await write_backup(store, path, now=NOW)
    return store


async def refused(store: Store, path: Path) -> str:
    with pytest.raises(Invalid) as raised:
        await restore_backup(store, path, epoch=new_epoch())
    return str(raised.value)


async def test_a_file_cut_at_any_byte_is_refused(path: Path) -> None:
    store = await in_memory(path)
    whole = contents_of(path)
    for length in range(len(whole)):
        rewrite(path, whole[:length])
        await refused(store, path)
    rewrite(path, whole)
    await restore_backup(store, path, epoch=new_epoch())


async def test_a_file_altered_at_any_byte_is_refused(path: Path) -> None:
    store = await in_memory(path)
    whole = contents_of(path)
    for place in range(len(whole)):
        rewrite(path, whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        await refused(store, path)


async def test_a_file_that_cannot_be_read_is_named(path: Path, tmp_path: Path) -> None:
    store = await in_memory(path)
    assert "No such file" in await refused(store, tmp_path / "missing")
    assert "directory" in await refused(store, tmp_path)


async def test_only_its_owner_can_read_a_backup(path: Path) -> None:
    for left in (path, path.with_name("lcm.backup.partial")):
        rewrite(left, b"left by somebody")
        left.chmod(0o644)
    await in_memory(path)
    assert modes(path.parent) == {"lcm.backup": 0o600}


async def test_a_backup_that_cannot_be_written_is_refused_and_leaves_the_old_one(path: Path, tmp_path: Path) -> None:
    store = await in_memory(path)
    with pytest.raises(Invalid, match="cannot be written: No such file"):
        await write_backup(store, tmp_path / "missing" / "lcm.backup", now=NOW)
    (tmp_path / "folder").mkdir()
    with pytest.raises(Invalid, match="cannot be written"):
        await write_backup(store, tmp_path / "folder", now=NOW)
    assert set(modes(tmp_path)) == {"folder", "lcm.backup"}
    await restore_backup(store, path, epoch=new_epoch())


async def test_what_no_restore_would_read_is_not_written(path: Path) -> None:
    store = await in_memory(path)
    before = contents_of(path)
    store._write([Put("big", b"x" * MAX_BYTES)])
    with pytest.raises(TooLarge):
        await write_backup(store, path, now=NOW)
    assert (contents_of(path), list(modes(path.parent))) == (before, ["lcm.backup"])


async def test_a_backup_says_where_it_comes_from(path: Path) -> None:
    store = await in_memory(path)
    frames: list[Any] = []
    whole = contents_of(path)
    place = len(MAGIC)
    while place < len(whole):
        size = int.from_bytes(whole[place : place + 4], "big")
        frames.append(msgspec.msgpack.decode(whole[place + 4 : place + 4 + size]))
        place += 4 + size
    assert [frame["type"] for frame in frames] == ["header", "record", "record", "closing"]
    assert (frames[0]["epoch"], frames[-1]["count"]) == (store.epoch, 2)
