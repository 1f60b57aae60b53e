"""Writing the SQLite engine's table: the commits of one group inside one transaction, and what watchers must be told.

Called by `sqlite` and `sqlite_work` on the writing thread. Each verb checks everything before it writes anything, so
that one that fails leaves the others of its group unharmed.
"""

import sqlite3
from collections.abc import Sequence

import msgspec

from lcm.model.base.clock import Stopwatch
from lcm.model.base.errors import Conflict, LcmError, Relist
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    Change,
    Changed,
    Delete,
    Entry,
    Fence,
    Lease,
    Op,
    Put,
    compacted,
    deposed,
    held_leases,
    pack_events,
)
from lcm.store.hub import TOO_SLOW
from lcm.store.sqlite.file import BUSY_SECONDS, insist
from lcm.store.sqlite.rows import PLACES, Row, encode_labels, read_commits, read_lease, read_leases, read_meta, snapshot

_SWEEP_ROWS = 1_000
_FAR_BEHIND = 20_000
"""More commits of others than this, after a long sleep of this process, are not read but skipped."""
_ALL_KEYS = ("", "\x7f")
_DELETED = 0
"""What a deletion has instead of a revision of creation."""
_NO_ROW = (0, _DELETED)

_STATE = "SELECT id, created FROM entries WHERE key = ? ORDER BY id DESC LIMIT 1"
_APPEND = "INSERT INTO entries (id, key, created, labels, value) VALUES (?, ?, ?, ?, ?)"
_STRETCH = "SELECT max(id) FROM (SELECT id FROM entries WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)"
_SWEEP = """
DELETE FROM entries WHERE id >= ? AND id <= ? AND (
    value IS NULL OR EXISTS (
        SELECT 1 FROM entries AS newer WHERE newer.key = entries.key AND newer.id > entries.id AND newer.id < ?
    )
)
"""


class Cut(msgspec.Struct, frozen=True):
    """The history that watches follow does not go on: they end with `error`, new ones begin after `revision`."""

    revision: int
    epoch: str
    error: LcmError


News = Changed | Cut


class Log:
    """A connection that writes, and the news of all commits up to `revision`, ours and those of other processes."""

    def __init__(self, connection: sqlite3.Connection, stopwatch: Stopwatch) -> None:
        self.patience_seconds: float = BUSY_SECONDS
        self._connection = connection
        self._stopwatch = stopwatch
        with snapshot(connection):
            meta = read_meta(connection)
            self._version = self._data_version()
        connection.execute("PRAGMA busy_timeout = 0")  # from here on `insist` waits, which is fairer
        self.epoch = meta.epoch
        self.revision = meta.revision
        self._news: list[News] = []
        self._settled = (0, self.revision, self.epoch)

    def begin(self) -> None:
        insist(self._connection, "BEGIN IMMEDIATE", self.patience_seconds)
        self._catch_up()

    def end(self) -> None:
        self._connection.execute("COMMIT")
        self._settle()

    def abandon(self) -> None:
        """Undo the group. What other processes did stays told."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        count, self.revision, self.epoch = self._settled
        del self._news[count:]

    def take_news(self) -> list[News]:
        news, self._news = self._news, []
        self._settle()
        return news

    def look(self) -> None:
        """Find out what other processes did."""
        if self._data_version() != self._version:
            with snapshot(self._connection):
                self._catch_up()

    def close(self) -> None:
        self._connection.close()

    def commit(self, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> int:
        if fence is not None:
            self._held(fence)
        if events:
            ops = (*ops, Put(EVENTS_KEY, pack_events(events)))
        return self._write(ops)

    def acquire(self, name: str, holder: str, ttl_seconds: int) -> Lease | None:
        if read_lease(self._connection, name, self._stopwatch):
            return None
        self._end_lease(name)
        lease = Lease(name, holder, self.revision + 1, ttl_seconds)
        self._write([Put(LEASES_PREFIX + name, msgspec.json.encode(lease))])
        row = (name, holder, lease.term, ttl_seconds, self._stopwatch.seconds() + ttl_seconds)
        self._connection.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", row)
        return lease

    def renew(self, fence: Fence) -> None:
        lease = self._held(fence)
        expires_at = self._stopwatch.seconds() + lease.ttl_seconds
        self._connection.execute("UPDATE leases SET expires_at = ? WHERE name = ?", (expires_at, lease.name))

    def release(self, fence: Fence) -> None:
        query = "SELECT * FROM leases WHERE name = ? AND term = ?"
        if self._connection.execute(query, (fence.lease, fence.term)).fetchone():
            self._end_lease(fence.lease)

    def reap(self) -> None:
        for lease in read_leases(self._connection, self._stopwatch, held=False):
            self._end_lease(lease.name)

    def has_expired(self) -> bool:
        return bool(read_leases(self._connection, self._stopwatch, held=False))

    def compact(self, revision: int) -> int:
        """Forget history, but leave removing it to `sweep`; return the revision below which to sweep."""
        revision = min(revision, self.revision)
        self._connection.execute("UPDATE meta SET compacted = max(compacted, ?)", (revision,))
        return read_meta(self._connection).compacted

    def sweep(self, start: int, revision: int) -> int | None:
        """Remove what `compact` forgot, a stretch at a time, oldest first; return where the next one starts."""
        limit = (revision + 1) * PLACES
        # Oldest first: a deletion goes only after all that it hides.
        stretch = self._connection.execute(_STRETCH, (start, limit, _SWEEP_ROWS)).fetchone()[0]
        if stretch is None:
            return None
        self._connection.execute(_SWEEP, (start, stretch, limit))
        return int(stretch) + 1

    def load(self, puts: Sequence[Put], epoch: str) -> int:
        if held := read_leases(self._connection, self._stopwatch, held=True):
            raise held_leases(lease.name for lease in held)
        first = self.revision + 1
        rows = [
            (first * PLACES + n, put.key, first + n // PLACES, encode_labels(put.labels), put.value)
            for n, put in enumerate(puts)
        ]
        self._connection.execute("DELETE FROM leases")
        self._connection.execute("DELETE FROM entries")
        self._connection.executemany(_APPEND, rows)
        self.revision = first + max(0, len(rows) - 1) // PLACES
        self.epoch = epoch
        self._connection.execute("UPDATE meta SET epoch = ?, compacted = ?", (epoch, self.revision))
        self._news.append(_restored(self.revision, epoch))
        return self.revision

    def _catch_up(self) -> None:
        version = self._data_version()
        if version == self._version:
            return
        meta = read_meta(self._connection)
        if meta.epoch != self.epoch:
            self._skip(_restored(meta.revision, meta.epoch))
        elif meta.compacted > self.revision:
            self._skip(Cut(meta.compacted, meta.epoch, compacted(self.revision)))
        elif meta.revision > self.revision + _FAR_BEHIND:
            self._skip(Cut(meta.revision, meta.epoch, Relist(TOO_SLOW)))
        while self.revision < meta.revision:
            page, reached = read_commits(self._connection, *_ALL_KEYS, self.revision, meta.revision)
            self._news.extend(page)
            self.revision = reached
            self._settle()
        self._version = version

    def _skip(self, cut: Cut) -> None:
        self._news.append(cut)
        self.revision, self.epoch = cut.revision, cut.epoch
        self._settle()

    def _settle(self) -> None:
        self._settled = (len(self._news), self.revision, self.epoch)

    def _write(self, ops: Sequence[Op]) -> int:
        revision = self.revision + 1
        rows: list[Row] = []
        changes: list[Change] = []
        for op in ops:
            number, created = self._connection.execute(_STATE, (op.key,)).fetchone() or _NO_ROW
            found = number // PLACES if created else ABSENT
            if op.at is not None and op.at != found:
                raise Conflict(op.key, wanted=op.at, found=found)
            number = revision * PLACES + len(rows)
            if isinstance(op, Put):
                entry = Entry(op.key, op.value, dict(op.labels), revision, created or revision)
                rows.append((number, op.key, entry.created, encode_labels(op.labels), op.value))
                changes.append(Change(op.key, entry))
            elif found and isinstance(op, Delete):
                rows.append((number, op.key, _DELETED, None, None))
                changes.append(Change(op.key, None))
        if rows:
            self._connection.executemany(_APPEND, rows)
            self._news.append(Changed(revision, changes))
            self.revision = revision
        return self.revision

    def _held(self, fence: Fence) -> Lease:
        lease = read_lease(self._connection, fence.lease, self._stopwatch)
        if lease is None or lease.term != fence.term:
            raise deposed(fence)
        return lease

    def _end_lease(self, name: str) -> None:
        self._connection.execute("DELETE FROM leases WHERE name = ?", (name,))
        self._write([Delete(LEASES_PREFIX + name)])

    def _data_version(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])


def _restored(revision: int, epoch: str) -> Cut:
    return Cut(revision, epoch, Relist("the store was restored; list again"))
