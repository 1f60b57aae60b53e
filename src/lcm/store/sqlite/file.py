"""The file of the SQLite engine: its schema, the checks when it is opened, and the meaning of SQLite's errors.

`store.sqlite.engine` opens it; `store.sqlite.threads` translates errors. Nothing here reads the file except through
SQLite: closing a descriptor of our own would drop the locks that another connection of this process holds on it.
"""

import os
import shutil
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from lcm.model.base.errors import LcmError, StoreFull, Stuck, Unreachable, WentBack
from lcm.store.base import MAX_BYTES, StoreUsage
from lcm.store.sqlite.rows import snapshot

APPLICATION_ID: Final = 1279479123
SCHEMA_VERSION: Final = 1
BUSY_SECONDS: Final = 10

_PAGE_BYTES: Final = 8_192
"""Twice SQLite's own choice, of which a usual object of 2 KB fills only half: less is written, and less stays empty."""
_LEAST_FREE_BYTES: Final = 4 * MAX_BYTES
_RETRY_SECONDS: Final = 0.001
_never_set = threading.Event()

# Several processes may run this at the same time on a new file.
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    created INTEGER NOT NULL,
    labels TEXT,
    value BLOB
);
CREATE INDEX IF NOT EXISTS entries_key ON entries (key);
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    term INTEGER NOT NULL,
    ttl_seconds INTEGER NOT NULL,
    expires_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (epoch TEXT NOT NULL, compacted INTEGER NOT NULL);
INSERT INTO meta SELECT lower(hex(randomblob(4))), 0 WHERE NOT EXISTS (SELECT * FROM meta);
PRAGMA application_id = 1279479123;
PRAGMA user_version = 1;
COMMIT;
"""

_DAMAGED_MESSAGE = "the file is damaged; keep a copy of it, then restore a backup to another path"
_UNUSABLE_MESSAGE = "the file cannot be used; check its path, owner and permissions, and those of its folder"
_ERROR_MEANINGS: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_BUSY: ("", "another process keeps it locked"),
    sqlite3.SQLITE_LOCKED: ("", "another connection keeps it locked"),
    sqlite3.SQLITE_PROTOCOL: ("", "another process keeps it locked"),
    sqlite3.SQLITE_IOERR: ("", "the disk did not answer"),
    sqlite3.SQLITE_CORRUPT: ("store_damaged", _DAMAGED_MESSAGE),
    sqlite3.SQLITE_NOTADB: ("store_foreign", "this is no SQLite file; choose another path or move the file away"),
    sqlite3.SQLITE_CANTOPEN: ("store_unusable", _UNUSABLE_MESSAGE),
    sqlite3.SQLITE_PERM: ("store_unusable", _UNUSABLE_MESSAGE),
    sqlite3.SQLITE_READONLY: ("store_unusable", _UNUSABLE_MESSAGE),
}
"""Meaning of each primary error code: a reason if only a person can help (else empty), and a message."""


def translate_error(error: sqlite3.Error, path: Path) -> LcmError | sqlite3.Error:
    """Return the error that tells the caller what to do about an error of SQLite.

    One that only a bug of ours explains is returned unchanged.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    found: LcmError
    if code == sqlite3.SQLITE_FULL:
        found = StoreFull(f"{path}: nothing was written, the disk is full; make room on it")
    elif code in _ERROR_MEANINGS:
        reason, words = _ERROR_MEANINGS[code]
        message = f"{path}: {words} ({error})"
        found = Stuck(reason, message) if reason else Unreachable(message)
    else:
        return error
    found.__cause__ = error
    return found


def read_usage(path: Path) -> StoreUsage:
    """Return how much room the file takes, and how much it and the rest of its disk have together."""
    used = sum(one.stat().st_size for one in (path, Path(f"{path}-wal")) if one.exists())
    return StoreUsage(used, used + shutil.disk_usage(path.parent).free)


def check_disk(path: Path) -> None:
    """Raise StoreFull when not even a few commits would fit any more: a small write may still find room in the file."""
    free = shutil.disk_usage(path.parent).free
    if free < _LEAST_FREE_BYTES:
        raise StoreFull(f"{path}: its disk has {free} bytes left; make room on it")


class FileIdentity:
    """Which file the path meant when it was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()

    def check(self) -> None:
        """Raise WentBack when the path means another file by now: what we write would be in none that anybody has."""
        if self._read() != self._known:
            raise WentBack(
                f"{self._path} was replaced or removed while this process used it, so this process ends. If that was on"
                " purpose, remove what is left of the old file (-wal, -shm) and start every process again"
            )

    def _read(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def open_file(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Open the file, created if missing; return a writing and a reading connection.

    Raises Stuck, without changing the file, if it is not ours.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create_if_missing(path)
        # Check with a read-only connection: only that is sure not to change a file that we then refuse.
        with closing(_connect(path, "ro")) as looking, snapshot(looking):
            _check_file(looking, path)
        with ExitStack() as undo:
            writing = undo.enter_context(closing(_connect(path, "rw")))
            _prepare_file(writing, path)
            reading = undo.enter_context(closing(_connect(path, "rw")))
            for connection in (writing, reading):
                connection.execute("PRAGMA synchronous = FULL")
            undo.pop_all()
            return writing, reading
    except sqlite3.Error as error:
        raise translate_error(error, path) from error
    except OSError as error:
        raise Stuck("store_unusable", f"{path}: {_UNUSABLE_MESSAGE} ({error})") from error


class ChangeCounter:
    """Tells whether anybody has committed to the file, by a number that SQLite keeps in memory that processes share.

    The only thing that is read on the loop's thread: it takes a few microseconds and waits for no lock.
    """

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path, "ro")
        self._connection.execute("PRAGMA busy_timeout = 0")
        self._cursor = self._connection.cursor()

    def read(self) -> int:
        """Return a number that differs from the last one if anybody committed since; 0 if it cannot be read now."""
        try:
            number: int = self._cursor.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return 0  # whoever reads the file itself learns why
        return number

    def close(self) -> None:
        """Close the connection. May be repeated."""
        self._connection.close()


def execute_with_retry(connection: sqlite3.Connection, statement: str, seconds: float = BUSY_SECONDS) -> sqlite3.Cursor:
    """Run a statement that needs a lock which others hold only briefly, trying every millisecond.

    SQLite's own retries sleep longer each time: a process that writes without pause would starve the others
    until their leases expire. For a change of the journal mode SQLite does not retry at all.
    """
    for _ in range(int(seconds / _RETRY_SECONDS)):
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            _never_set.wait(_RETRY_SECONDS)
    return connection.execute(statement)


def _create_if_missing(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        if not path.is_file():
            raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    application, version = _read_pragma(connection, "application_id"), _read_pragma(connection, "user_version")
    if not application and not version and connection.execute("SELECT * FROM sqlite_schema").fetchone() is None:
        return
    if application != APPLICATION_ID:
        message = f"{path}: this file belongs to another program; choose another path or move the file away"
        raise Stuck("store_foreign", message)
    if version > SCHEMA_VERSION:
        message = f"{path}: written by newer software (schema {version}, known {SCHEMA_VERSION}); update this one"
        raise Stuck("store_newer", message)
    if (verdict := _read_pragma(connection, "quick_check(1)")) != "ok":
        raise Stuck("store_damaged", f"{path}: {_DAMAGED_MESSAGE} ({verdict})")


def _prepare_file(connection: sqlite3.Connection, path: Path) -> None:
    # Only a file that is still empty takes these two.
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    if execute_with_retry(connection, "PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise Stuck("store_unusable", f"{path}: this file system cannot hold a shared SQLite file; choose a local disk")
    if _read_pragma(connection, "user_version") < SCHEMA_VERSION:
        connection.executescript(_SCHEMA)
    # SQLite opens a file without write permission, and even begins a transaction: only a change shows the error.
    execute_with_retry(connection, "BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("ROLLBACK")


def _read_pragma(connection: sqlite3.Connection, pragma: str) -> Any:  # noqa: ANN401 - each pragma has its own type
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]
