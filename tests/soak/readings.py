"""Looks at a running installation from outside: its processes in /proc, its store by a connection that only reads."""

import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lcm.store.base import Put
from lcm.store.sqlite.engine import SqliteStore
from lcm.store.sqlite.rows import IDS_PER_REVISION

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Keys with a mark in front are the engine's own: the newest events, and leases.
_ALIVE = "FROM entries WHERE value IS NOT NULL AND key > '0' AND id IN (SELECT max(id) FROM entries GROUP BY key)"
_SIZES = f"SELECT count(*), coalesce(sum(length(key) + coalesce(length(labels), 0) + length(value)), 0) {_ALIVE}"


class Processes(NamedTuple):
    """What a process and all its children take."""

    memory_bytes: int
    files: int


class Alive(NamedTuple):
    """What a store holds, its history not counted."""

    entries: int
    value_bytes: int


def read_processes(pid: int) -> Processes:
    """Return the memory and the open files of a process and its children."""
    pids = [pid, *_children(pid)]
    resident = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in pids)
    return Processes(resident * _PAGE_BYTES, sum(1 for one in pids for _ in Path(f"/proc/{one}/fd").iterdir()))


def _children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _children(child)


def raise_priority(pid: int, nice: int) -> bool:
    """Raise the priority of a process and its children; return whether that was allowed.

    Linux shares the machine among sessions first, and every browser has a session of its own.
    """
    try:
        for one in (pid, *_children(pid)):
            os.setpriority(os.PRIO_PROCESS, one, nice)
            group = Path(f"/proc/{one}/autogroup")
            if group.exists():
                group.write_text(str(nice))
    except (PermissionError, BlockingIOError, ProcessLookupError):
        return False
    return True


def read_alive(path: Path) -> Alive:
    """Return how many entries are alive in a store, and their bytes."""
    with closing(_connect(path)) as connection:
        return Alive(*connection.execute(_SIZES).fetchone())


def read_revisions(path: Path) -> tuple[int, int]:
    """Return the revision up to which history is compacted, and the newest one."""
    with closing(_connect(path)) as connection:
        compacted, newest = connection.execute("SELECT compacted, (SELECT max(id) FROM entries) FROM meta").fetchone()
        return compacted, newest // IDS_PER_REVISION


def file_bytes(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


async def rewritten_bytes(path: Path) -> int:
    """Return the size of a new store with what is alive in one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy.db")
        store = await SqliteStore.open(copy)
        await store.load(_read_entries(path), epoch="copy")
        await store.close()
        return file_bytes(copy)


async def _read_entries(path: Path) -> AsyncIterator[Put]:
    with closing(_connect(path)) as connection:
        for key, labels, value in connection.execute(f"SELECT key, labels, value {_ALIVE} ORDER BY key"):
            yield Put(key, value, msgspec.json.decode(labels or "{}"))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=60)
