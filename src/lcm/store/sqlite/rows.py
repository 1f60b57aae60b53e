"""Reading the SQLite engine's table: an append-only log in which the newest row of a key is the key's state.

A row's id is `revision * 256 + position in the commit`, so that one number orders everything. A row without a value
marks a deletion. Every function runs on the thread that owns the connection: `store.sqlite.engine` calls them on its
reader, `store.sqlite.log` on the writer.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Final

import msgspec

from lcm.model.base.clock import Stopwatch
from lcm.store.base import (
    Change,
    CommitChanges,
    Cursor,
    Entry,
    Lease,
    Page,
    compacted_error,
    future_revision_error,
    has_labels,
    key_range,
)

IDS_PER_REVISION: Final = 256
FIRST_REVISION: Final = 1

_MIN_ROWS: Final = 200
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

_labels_decoder = msgspec.json.Decoder(dict[str, str])


class Meta(msgspec.Struct, frozen=True):
    """The state of the whole file at one moment."""

    epoch: str
    compacted: int
    revision: int


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Run several statements against one consistent state."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        if connection.in_transaction:  # some errors roll back by themselves
            connection.execute("ROLLBACK")


def read_meta(connection: sqlite3.Connection) -> Meta:
    """Return the epoch, the compacted revision and the current revision."""
    epoch, forgotten, last = connection.execute(_META).fetchone()
    # Compaction may remove the newest row; the compacted revision keeps the current one from going back.
    return Meta(epoch, forgotten, max(FIRST_REVISION, forgotten, last // IDS_PER_REVISION))


def read_newest(connection: sqlite3.Connection, key: str) -> Entry | None:
    """Return the current state of a key; None means that there is no such key."""
    row = connection.execute(_NEWEST, (key,)).fetchone()
    return _decode_entry(row) if row else None


def read_page(
    connection: sqlite3.Connection, prefix: str, labels: Mapping[str, str] | None, limit: int, cursor: Cursor | None
) -> Page:
    """Return a page of a scan, at the cursor's revision or at the current one."""
    low, high = key_range(prefix)
    with snapshot(connection):
        meta = read_meta(connection)
        revision = cursor.revision if cursor else meta.revision
        if revision < meta.compacted:
            raise compacted_error(revision)
        if revision > meta.revision:
            raise future_revision_error(revision)
        if cursor:
            low = _next_key(cursor.key)
        found: list[Entry] = []
        for entry in _scan_entries(connection, low, high, revision, max(limit + 1, _MIN_ROWS)):
            if not has_labels(entry.labels, labels):
                continue
            if len(found) == limit:
                return Page(found, revision, Cursor(revision, found[-1].key))
            found.append(entry)
    return Page(found, revision, None)


def read_history(
    connection: sqlite3.Connection, low: str, high: str, after: int, until: int
) -> tuple[Sequence[CommitChanges], int]:
    """Return commits with after < revision <= until, and how far they reach; a page never splits a commit."""
    until = min(until, after + _HISTORY_REVISIONS)
    with snapshot(connection):
        if after < read_meta(connection).compacted:
            raise compacted_error(after)
        return read_commits(connection, low, high, after, until)


def read_commits(
    connection: sqlite3.Connection, low: str, high: str, after: int, until: int
) -> tuple[list[CommitChanges], int]:
    """Like `read_history`, in a transaction that has already checked that nothing was compacted."""
    page: list[CommitChanges] = []
    size = 0
    rows = connection.execute(_HISTORY, ((after + 1) * IDS_PER_REVISION, (until + 1) * IDS_PER_REVISION, low, high))
    for revision, group in groupby(rows, key=lambda row: int(row[0]) // IDS_PER_REVISION):
        if size > _HISTORY_BYTES:
            return page, revision - 1
        changes = [Change(row[1], _decode_entry(row)) for row in group]
        size += sum(len(change.entry.value) for change in changes if change.entry)
        page.append(CommitChanges(revision, changes))
    return page, until


def read_lease(connection: sqlite3.Connection, name: str, stopwatch: Stopwatch) -> Lease | None:
    """Return a lease if it is held."""
    held = [
        lease for lease, alive in _read_lease_rows(connection, _LEASES + " WHERE name = ?", (name,), stopwatch) if alive
    ]
    return held[0] if held else None


def read_leases(connection: sqlite3.Connection, stopwatch: Stopwatch, *, held: bool) -> list[Lease]:
    """Return the leases that are held, or those that have expired but were not ended yet."""
    return [lease for lease, alive in _read_lease_rows(connection, _LEASES, (), stopwatch) if alive is held]


def encode_labels(labels: Mapping[str, str]) -> str | None:
    """Return labels as JSON; None without labels, to save space."""
    return msgspec.json.encode(labels).decode() if labels else None


def _read_lease_rows(
    connection: sqlite3.Connection, query: str, values: tuple[str, ...], stopwatch: Stopwatch
) -> Iterator[tuple[Lease, bool]]:
    rows = connection.execute(query, values).fetchall()
    # Read after the rows: a lease just acquired elsewhere must not seem to have too much time left.
    now = stopwatch.seconds()
    for name, holder, term, ttl_seconds, expires_at in rows:
        # A lease with more than its whole time left was acquired before a reboot, which reset the stopwatch.
        alive = now < expires_at <= now + ttl_seconds
        yield Lease(name, holder, term, ttl_seconds), alive


def _scan_entries(connection: sqlite3.Connection, low: str, high: str, revision: int, step: int) -> Iterator[Entry]:
    while True:
        rows = connection.execute(_PAGE, (low, high, (revision + 1) * IDS_PER_REVISION, step)).fetchall()
        for row in rows:
            if entry := _decode_entry(row):
                yield entry
        if len(rows) < step:
            return
        low = _next_key(rows[-1][1])


def _decode_entry(row: Row) -> Entry | None:
    number, key, created, labels, value = row
    if value is None:
        return None
    return Entry(key, value, _labels_decoder.decode(labels) if labels else {}, number // IDS_PER_REVISION, created)


def _next_key(key: str) -> str:
    return key + "\x00"
