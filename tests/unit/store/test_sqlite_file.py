"""The file of the SQLite engine: what is refused and left alone, what is made, what goes wrong later."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from harness.stores import following, opened
from lcm.model.base.errors import LcmError, StoreFull, Stuck, Unreachable
from lcm.store.base import Delete, Put, scan_all
from lcm.store.sqlite.engine import SqliteStore
from lcm.store.sqlite.file import APPLICATION_ID, SCHEMA_VERSION, open_file, translate_error

PAGE = 8192


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as store:
        yield store


@pytest.fixture
async def filled(path: Path) -> Path:
    async with opened(path) as store:
        for n in range(20):
            await store.commit(*(Put(f"k/{n}/{m}", os.urandom(900)) for m in range(10)))
    return path


def content(path: Path) -> bytes:
    return path.read_bytes()


def execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def garbage(path: Path) -> None:
    path.write_bytes(b"Dear diary, today " * 1000)


def foreign(path: Path) -> None:
    path.unlink()
    execute(path, "PRAGMA application_id = 7", "CREATE TABLE diary (day TEXT)")


def anonymous(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE diary (day TEXT)")


def newer(path: Path) -> None:
    execute(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def holed(path: Path) -> None:
    pages = bytearray(path.read_bytes())
    pages[9 * PAGE : 12 * PAGE] = b"\xa5" * 3 * PAGE
    path.write_bytes(pages)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: 20 * PAGE])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (garbage, "store_foreign"),
        (foreign, "store_foreign"),
        (anonymous, "store_foreign"),
        (newer, "store_newer"),
        (holed, "store_damaged"),
        (cut_short, "store_damaged"),
    ],
)
async def test_a_file_that_is_not_a_sound_store_is_refused_and_left_alone(
    filled: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(filled)
    before = content(filled)
    with pytest.raises(Stuck, match=str(filled)) as raised:
        await SqliteStore.open(filled)
    assert raised.value.reason == reason
    assert content(filled) == before


async def test_a_damaged_file_keeps_what_a_killed_writer_left_beside_it(path: Path, tmp_path: Path) -> None:
    copy, log, copied_log = (tmp_path / name for name in ("copy.db", "store.db-wal", "copy.db-wal"))
    async with opened(path) as store:
        await store.commit(*(Put(f"k/{n}", os.urandom(900)) for n in range(100)))
        execute(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        await store.commit(Put("a", b"only in the log"))
        shutil.copy(path, copy)
        shutil.copy(log, copied_log)
    holed(copy)
    before = content(copy), content(copied_log)
    with pytest.raises(Stuck, match="damaged"):
        await SqliteStore.open(copy)
    assert (content(copy), content(copied_log)) == before
    assert before[1]


@pytest.mark.parametrize("spot", ["", "filled.db/store.db"])
async def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path, spot: str) -> None:
    (tmp_path / "filled.db").touch()
    with pytest.raises(Stuck, match="permissions"):
        await SqliteStore.open(tmp_path / spot)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Give up the rights to write everything everywhere, if the tests have them."""
    mighty = os.geteuid() == 0
    if mighty:
        os.seteuid(65534)
    try:
        yield
    finally:
        if mighty:
            os.seteuid(0)


def read_only_copy(path: Path, folder: Path) -> Path:
    copy = Path(shutil.copy(path, folder))
    copy.chmod(0o444)
    folder.chmod(0o777)
    return copy


async def test_a_file_that_may_not_be_written_is_refused_before_the_first_commit(filled: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = read_only_copy(filled, Path(folder))
        with as_nobody(), pytest.raises(Stuck, match="permissions") as raised:
            await SqliteStore.open(path)
        assert raised.value.reason == "store_unusable"
        assert content(path) == content(filled)


async def test_a_new_file_and_its_folder_are_made_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "there?" / "store #1%20.db"
    async with opened(path) as store:
        await store.commit(Put("a", b"1"))
        files = list(path.parent.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@pytest.mark.parametrize("start", [Path.touch, lambda path: execute(path, "PRAGMA journal_mode = WAL")])
async def test_an_empty_file_becomes_a_store(path: Path, start: Callable[[Path], None]) -> None:
    start(path)
    async with opened(path) as store:
        assert await store.commit(Put("a", b"1")) == 2


async def test_everything_is_still_there_when_opened_again(path: Path) -> None:
    async with opened(path) as store:
        epoch = store.epoch
        await store.commit(Put("a", b"1", {"x": "y"}))
        await store.commit(Put("b", b"1"), Delete("a"))
        lease = await store.acquire("leader", "me", ttl_seconds=60)
        before = await scan_all(store, "")
    async with opened(path) as store:
        assert store.epoch == epoch
        assert await scan_all(store, "") == before
        assert await store.lease("leader") == lease
        assert [changed.revision for changed in await following(store.watch("", after=1), 2)] == [2, 3]


async def rewrite_and_compact(path: Path, *, alive: int) -> int:
    """Write 5 MB of history, keep so many entries of 10 KB, and return how large the closed file is."""
    async with opened(path) as store:
        for n in range(500):
            await store.commit(Put(f"k/{n % 100}", os.urandom(10_000)))
        revision = await store.commit(*(Delete(f"k/{n}") for n in range(alive, 100)))
        await store.compact(revision)
        assert len((await scan_all(store, "k/")).entries) == alive
    return len(content(path))


@pytest.mark.parametrize("alive", [80, 20, 0])
async def test_compaction_leaves_a_file_as_large_as_what_is_alive(path: Path, alive: int) -> None:
    assert await rewrite_and_compact(path, alive=alive) < 1.5 * (alive * 10_000 + 20 * PAGE)


async def test_a_file_made_without_the_ability_to_shrink_is_compacted_all_the_same(path: Path) -> None:
    async with opened(path):
        pass
    execute(path, "PRAGMA auto_vacuum = NONE", "VACUUM")
    large = await rewrite_and_compact(path, alive=20)
    assert large > 4_000_000
    assert await rewrite_and_compact(path, alive=20) == pytest.approx(large, rel=0.1)


async def test_watchers_are_told_when_the_file_breaks_under_them(filled: Path) -> None:
    other = sqlite3.connect(filled, isolation_level=None)
    async with opened(filled) as store:
        root = other.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entries'").fetchone()[0]
        watch = store.watch("", after=(await store.scan("")).revision)
        file = os.open(filled, os.O_WRONLY)
        os.pwrite(file, b"\xa5" * PAGE, (root - 1) * PAGE)
        other.execute("UPDATE meta SET compacted = compacted + 1")
        with pytest.raises(Stuck, match="damaged"):
            await following(watch, 1)
        for verb in (store.commit(Put("a", b"")), store.scan("")):
            with pytest.raises(Stuck, match="damaged"):
                await verb
    os.close(file)
    other.close()


async def test_a_full_disk_says_later_and_writes_nothing(store: SqliteStore) -> None:
    writing = store._log._connection
    pages = writing.execute("PRAGMA page_count").fetchone()[0]
    writing.execute(f"PRAGMA max_page_count = {pages + 2}")
    answers = await asyncio.gather(
        store.commit(Put("small", b"")), store.commit(Put("big", b"x" * 100_000)), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreFull, StoreFull]
    assert (await scan_all(store, "")).entries == []
    writing.execute("PRAGMA max_page_count = 1000000")
    assert await store.commit(Put("big", b"x" * 100_000)) == 2


async def test_a_file_that_stays_locked_is_unreachable_and_comes_back(path: Path, store: SqliteStore) -> None:
    store._log.lock_wait_seconds = 0.05
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, match="locked"):
            await store.commit(Put("a", b""))
        assert await store.get("a") is None
        other.execute("ROLLBACK")
    assert await store.commit(Put("a", b"")) == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, Unreachable),
        (sqlite3.SQLITE_IOERR | 4 << 8, Unreachable),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_CORRUPT, Stuck),
        (sqlite3.SQLITE_READONLY, Stuck),
    ],
)
def test_an_error_of_sqlite_says_what_to_do(code: int, kind: type[LcmError]) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    meaning = translate_error(error, Path("/some/store.db"))
    assert type(meaning) is kind
    assert "/some/store.db" in str(meaning)


def test_an_error_that_only_a_bug_explains_stays_what_it_is() -> None:
    error = sqlite3.ProgrammingError("no such column")
    assert translate_error(error, Path("store.db")) is error


def test_the_file_names_its_program(path: Path) -> None:
    for connection in open_file(path):
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        connection.close()
