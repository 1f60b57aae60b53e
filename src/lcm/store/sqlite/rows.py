"""Reading the SQLite engine's table: an append-only log whose newest row of a key is the key's state.

A row's id is `revision * 256 + place in the commit`, so that one number orders everything. A row without a value marks
a deletion. Every function runs on the thread that owns the connection: `sqlite` calls them on its reader, `sqlite_log`
on the writer.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import msgspec

from lcm.model.base.clock import Stopwatch
from lcm.store.base import Change, Changed, Cursor, Entry, Lease, Page, compacted, key_range, matches, not_yet

PLACES: Final = 256
FIRST_REVISION: Final = 1

_LEAST_ROWS: Final = 200
_HISTORY_REVISIONS: Final = 1_000
_HISTORY_BYTES: Final = 8_000_000

Row = tuple[int, str, int, str | None, bytes | None]

_META = "SELECT epoch, compacted, coalesce((SELECT max(id) FROM entries), 0) FROM meta"
_NEWEST = "SELECT id, key, created, labels, value FROM entries WHERE key = ? ORDER BY id DESC LIMIT 1"
_PAGE = """
SELECT id, key, created, labels, value FROM entries WHERE id IN (
    SELECT max(id) FROM entries WHERE key >= ? AND key < ? AND id < ? GROUP BY key ORDER BY key LIMIT ?
) ORDER BY key
"""
_HISTORY = """
SELECT id, key, created, labels, value FROM entries NOT INDEXED
WHERE id >= ? AND id < ? AND key >= ? AND key < ? ORDER BY id
"""
_LEASES = "SELECT name, holder, term, ttl_seconds, expires_at FROM leases"

_labels = msgspec.json.Decoder(dict[str, str])


class Meta(msgspec.Struct, frozen=True):
    """What holds for the whole file at one moment."""

    epoch: str
    compacted: int
    revision: int


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Let several statements see one moment."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors end it by themselves
            connection.execute("ROLLBACK")


def read_meta(connection: sqlite3.Connection) -> Meta:
    """Read the present moment."""
    epoch, forgotten, last = connection.execute(_META).fetchone()
    # Compaction may remove the newest row; that it happened at that revision keeps the number from going back.
    return Meta(epoch, forgotten, max(FIRST_REVISION, forgotten, last // PLACES))


def read_newest(connection: sqlite3.Connection, key: str) -> Entry | None:
    """Read the present state of a key."""
    row = connection.execute(_NEWEST, (key,)).fetchone()
    return _entry(row) if row else None


def read_page(
    connection: sqlite3.Connection, prefix: str, labels: Mapping[str, str] | None, limit: int, cursor: Cursor | None
) -> Page:
    """Read a page of a scan, at the cursor's revision or at the present one."""
    low, high = key_range(prefix)
    with snapshot(connection):
        meta = read_meta(connection)
        revision = cursor.revision if cursor else meta.revision
        if revision < meta.compacted:
            raise compacted(revision)
        if revision > meta.revision:
            raise not_yet(revision)
        if cursor:
            low = _after(cursor.key)
        found: list[Entry] = []
        for entry in _entries(connection, low, high, revision, max(limit + 1, _LEAST_ROWS)):
            if not matches(entry.labels, labels):
                continue
            if len(found) == limit:
                return Page(found, revision, Cursor(revision, found[-1].key))
            found.append(entry)
    return Page(found, revision, None)


def read_history(
    connection: sqlite3.Connection, low: str, high: str, after: int, until: int
) -> tuple[Sequence[Changed], int]:
    """Read commits with after < revision <= until, and how far they reach; a page never splits a commit."""
    until = min(until, after + _HISTORY_REVISIONS)
    with snapshot(connection):
        if after < read_meta(connection).compacted:
            raise compacted(after)
        return read_commits(connection, low, high, after, until)


def read_commits(
    connection: sqlite3.Connection, low: str, high: str, after: int, until: int
) -> tuple[list[Changed], int]:
    """Like `read_history`, inside a transaction that already made sure that nothing was compacted."""
    page: list[Changed] = []
    size = 0
    rows = connection.execute(_HISTORY, ((after + 1) * PLACES, (until + 1) * PLACES, low, high))
    for revision, group in groupby(rows, key=_revision):
        if size > _HISTORY_BYTES:
            return page, revision - 1
        changes = [Change(row[1], _entry(row)) for row in group]
        size += sum(len(change.entry.value) for change in changes if change.entry)
        page.append(Changed(revision, changes))
    return page, until


def read_lease(connection: sqlite3.Connection, name: str, stopwatch: Stopwatch) -> Lease | None:
    """Read a lease if it is held."""
    held = [lease for lease, alive in _leases(connection, _LEASES + " WHERE name = ?", (name,), stopwatch) if alive]
    return held[0] if held else None


def read_leases(connection: sqlite3.Connection, stopwatch: Stopwatch, *, held: bool) -> list[Lease]:
    """Read the leases that are held, or those that have run out but were not ended yet."""
    return [lease for lease, alive in _leases(connection, _LEASES, (), stopwatch) if alive is held]


def encode_labels(labels: Mapping[str, str]) -> str | None:
    """Write labels as JSON; none at all cost nothing."""
    return msgspec.json.encode(labels).decode() if labels else None


def _leases(
    connection: sqlite3.Connection, query: str, values: tuple[str, ...], stopwatch: Stopwatch
) -> Iterator[tuple[Lease, bool]]:
    rows = connection.execute(query, values).fetchall()
    now = stopwatch.seconds()  # after the rows: a lease just taken elsewhere must not seem to have too much time left
    for name, holder, term, ttl_seconds, expires_at in rows:
        # With more than its whole time left it was taken before a reboot, since when the stopwatch began anew.
        alive = now < expires_at <= now + ttl_seconds
        yield Lease(name, holder, term, ttl_seconds), alive


def _entries(connection: sqlite3.Connection, low: str, high: str, revision: int, step: int) -> Iterator[Entry]:
    while True:
        rows = connection.execute(_PAGE, (low, high, (revision + 1) * PLACES, step)).fetchall()
        for row in rows:
            if entry := _entry(row):
                yield entry
        if len(rows) < step:
            return
        low = _after(rows[-1][1])


def _entry(row: Row) -> Entry | None:
    number, key, created, labels, value = row
    if value is None:
        return None
    return Entry(key, value, _labels.decode(labels) if labels else {}, number // PLACES, created)


def _revision(row: Row) -> int:
    return row[0] // PLACES


def _after(key: str) -> str:
    return key + "\x00"
