"""Writing the SQLite engine's table: the commits of one group in one transaction, and the updates for watches.

Called by `store.sqlite.engine` and `store.sqlite.threads` on the writing thread. Each operation checks everything
before it writes anything, so that one that fails leaves the others of its group unharmed.
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
    CommitChanges,
    Delete,
    Entry,
    Fence,
    Lease,
    Op,
    Put,
    compacted_error,
    deposed_error,
    held_leases_error,
    pack_events,
    went_back_error,
)
from lcm.store.hub import TOO_SLOW
from lcm.store.sqlite.file import BUSY_SECONDS, execute_with_retry
from lcm.store.sqlite.rows import (
    IDS_PER_REVISION,
    Row,
    encode_labels,
    read_commits,
    read_lease,
    read_leases,
    read_meta,
    snapshot,
)

_SWEEP_ROWS = 1_000
_TRIM_PAGES = 256
_SPARE_SHARE = 4
"""One page in so many may stay empty for the next writes: what is freed in one hour is used in the next."""
_MAX_CATCH_UP = 20_000
"""More commits of others than this, after a long sleep of this process, are skipped and not read."""
_ALL_KEYS = ("", "\x7f")
_DELETED = 0
"""Marks a deletion in the column that otherwise holds the revision of creation."""
_NO_ROW = (0, _DELETED)
_MAX_HEADS = 10_000

Head = tuple[int, int]
"""The revision of a key's newest state, and the one that created it; ABSENT and 0 for a key that is not there."""
_ABSENT_HEAD: Head = (ABSENT, _DELETED)

_LATEST_ROW = "SELECT id, created FROM entries WHERE key = ? ORDER BY id DESC LIMIT 1"
_APPEND = "INSERT INTO entries (id, key, created, labels, value) VALUES (?, ?, ?, ?, ?)"
_SWEEP_END = "SELECT max(id) FROM (SELECT id FROM entries WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)"
_SWEEP = """
DELETE FROM entries WHERE id >= ? AND id <= ? AND (
    value IS NULL OR EXISTS (
        SELECT 1 FROM entries AS newer WHERE newer.key = entries.key AND newer.id > entries.id AND newer.id < ?
    )
)
"""


class HistoryBreak(msgspec.Struct, frozen=True):
    """A break in the history: watches end with `error`, and new ones begin after `revision`."""

    revision: int
    epoch: str
    error: LcmError


LogUpdate = CommitChanges | HistoryBreak


class CommitLog:
    """A writing connection, and the updates of all commits up to `revision`, ours and other processes'."""

    def __init__(self, connection: sqlite3.Connection, stopwatch: Stopwatch) -> None:
        self.lock_wait_seconds: float = BUSY_SECONDS
        self._connection = connection
        self._stopwatch = stopwatch
        with snapshot(connection):
            meta = read_meta(connection)
            self._version = self._read_number("data_version")
        connection.execute("PRAGMA busy_timeout = 0")  # from here on `execute_with_retry` waits, which is fairer
        self.epoch = meta.epoch
        self.revision = meta.revision
        self._updates: list[LogUpdate] = []
        self._heads: dict[str, Head] = {}
        self._rows: list[Row] = []
        self._cursor = connection.cursor()
        self._settled = (0, self.revision, self.epoch)

    def begin(self) -> None:
        if len(self._heads) > _MAX_HEADS:
            self._heads.clear()
        execute_with_retry(self._connection, "BEGIN IMMEDIATE", self.lock_wait_seconds)
        self._catch_up()

    def end(self) -> None:
        self._append_rows()
        self._connection.execute("COMMIT")
        self._settle()

    def abandon(self) -> None:
        """Roll back the group. Updates about other processes' commits are kept."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        count, self.revision, self.epoch = self._settled
        del self._updates[count:]
        self._rows.clear()
        self._heads.clear()

    def take_updates(self) -> list[LogUpdate]:
        updates, self._updates = self._updates, []
        self._settle()
        return updates

    def poll_others(self) -> None:
        """Read what other processes committed."""
        if self._read_number("data_version") != self._version:
            with snapshot(self._connection):
                self._catch_up()

    def close(self) -> None:
        self._connection.close()

    def commit(self, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> int:
        if fence is not None:
            self._require_lease(fence)
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
        lease = self._require_lease(fence)
        expires_at = self._stopwatch.seconds() + lease.ttl_seconds
        self._connection.execute("UPDATE leases SET expires_at = ? WHERE name = ?", (expires_at, lease.name))

    def release(self, fence: Fence) -> None:
        query = "SELECT * FROM leases WHERE name = ? AND term = ?"
        if self._connection.execute(query, (fence.lease, fence.term)).fetchone():
            self._end_lease(fence.lease)

    def end_expired_leases(self) -> None:
        for lease in read_leases(self._connection, self._stopwatch, held=False):
            self._end_lease(lease.name)

    def has_expired_leases(self) -> bool:
        return bool(read_leases(self._connection, self._stopwatch, held=False))

    def compact(self, revision: int) -> int:
        """Mark history as compacted; `sweep` removes it. Return the revision below which to sweep."""
        self._append_rows()
        revision = min(revision, self.revision)
        self._connection.execute("UPDATE meta SET compacted = max(compacted, ?)", (revision,))
        return read_meta(self._connection).compacted

    def sweep(self, start: int, revision: int) -> int | None:
        """Remove compacted rows, one batch at a time, oldest first.

        Returns where the next batch starts; None when there is nothing left.
        """
        self._append_rows()
        limit = (revision + 1) * IDS_PER_REVISION
        # Oldest first: a deletion may go only after all rows that it hides.
        stretch = self._connection.execute(_SWEEP_END, (start, limit, _SWEEP_ROWS)).fetchone()[0]
        if stretch is None:
            return None
        self._connection.execute(_SWEEP, (start, stretch, limit))
        return int(stretch) + 1

    def trim(self) -> bool:
        """Free some empty pages of the file; return whether there are still more than the next writes may use.

        A file that was made without that ability keeps them for later writes.
        """
        if not self._read_number("auto_vacuum"):
            return False
        for _ in range(_TRIM_PAGES):
            if self._read_number("freelist_count") * _SPARE_SHARE <= self._read_number("page_count"):
                return False
            # Each call frees one page, whatever its number says: Python does not read the rows, which have no columns.
            self._connection.execute("PRAGMA incremental_vacuum(1)")
        return True

    def probe(self) -> None:
        """Write what stands there already."""
        self._connection.execute("UPDATE meta SET epoch = epoch")

    def load(self, puts: Sequence[Put], epoch: str) -> int:
        if held := read_leases(self._connection, self._stopwatch, held=True):
            raise held_leases_error(lease.name for lease in held)
        self._append_rows()
        first = self.revision + 1
        rows = [
            (first * IDS_PER_REVISION + n, put.key, first + n // IDS_PER_REVISION, encode_labels(put.labels), put.value)
            for n, put in enumerate(puts)
        ]
        self._heads.clear()
        self._connection.execute("DELETE FROM leases")
        self._connection.execute("DELETE FROM entries")
        self._connection.executemany(_APPEND, rows)
        self.revision = first + max(0, len(rows) - 1) // IDS_PER_REVISION
        self.epoch = epoch
        self._connection.execute("UPDATE meta SET epoch = ?, compacted = ?", (epoch, self.revision))
        self._updates.append(_restore_break(self.revision, epoch))
        return self.revision

    def _catch_up(self) -> None:
        version = self._read_number("data_version")
        if version == self._version:
            return
        meta = read_meta(self._connection)
        if meta.epoch == self.epoch and meta.revision < self.revision:
            raise went_back_error(self.revision, meta.revision)
        if meta.epoch != self.epoch:
            self._break_history(_restore_break(meta.revision, meta.epoch))
        elif meta.compacted > self.revision:
            self._break_history(HistoryBreak(meta.compacted, meta.epoch, compacted_error(self.revision)))
        elif meta.revision > self.revision + _MAX_CATCH_UP:
            self._break_history(HistoryBreak(meta.revision, meta.epoch, Relist(TOO_SLOW)))
        while self.revision < meta.revision:
            page, reached = read_commits(self._connection, *_ALL_KEYS, self.revision, meta.revision)
            for commit in page:
                self._note_commit(commit)
            self.revision = reached
            self._settle()
        self._version = version

    def _break_history(self, cut: HistoryBreak) -> None:
        self._updates.append(cut)
        self._heads.clear()
        self.revision, self.epoch = cut.revision, cut.epoch
        self._settle()

    def _settle(self) -> None:
        self._settled = (len(self._updates), self.revision, self.epoch)

    def _write(self, ops: Sequence[Op]) -> int:
        revision = self.revision + 1
        rows: list[Row] = []
        changes: list[Change] = []
        for op in ops:
            key, (found, created) = op.key, self._heads.get(op.key) or self._read_head(op.key)
            if op.at is not None and op.at != found:
                raise Conflict(key, wanted=op.at, found=found)
            number = revision * IDS_PER_REVISION + len(rows)
            if isinstance(op, Put):
                entry = Entry(key, op.value, dict(op.labels), revision, created or revision)
                rows.append((number, key, entry.created, encode_labels(op.labels), op.value))
                changes.append(Change(key, entry))
            elif found and isinstance(op, Delete):
                rows.append((number, key, _DELETED, None, None))
                changes.append(Change(key, None))
        if rows:
            self._rows += rows
            self._note_commit(CommitChanges(revision, changes))
            self.revision = revision
        return self.revision

    def _append_rows(self) -> None:
        """Write what the group's commits have put together; one call for all of them is twice as fast."""
        rows, self._rows = self._rows, []
        self._connection.executemany(_APPEND, rows)

    def _note_commit(self, commit: CommitChanges) -> None:
        self._updates.append(commit)
        for change in commit.changes:
            self._heads[change.key] = (commit.revision, change.entry.created) if change.entry else _ABSENT_HEAD

    def _read_head(self, key: str) -> Head:
        number, created = self._cursor.execute(_LATEST_ROW, (key,)).fetchone() or _NO_ROW
        head = self._heads[key] = (number // IDS_PER_REVISION, created) if created else _ABSENT_HEAD
        return head

    def _require_lease(self, fence: Fence) -> Lease:
        lease = read_lease(self._connection, fence.lease, self._stopwatch)
        if lease is None or lease.term != fence.term:
            raise deposed_error(fence)
        return lease

    def _end_lease(self, name: str) -> None:
        self._connection.execute("DELETE FROM leases WHERE name = ?", (name,))
        self._write([Delete(LEASES_PREFIX + name)])

    def _read_number(self, pragma: str) -> int:
        return int(self._connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def _restore_break(revision: int, epoch: str) -> HistoryBreak:
    return HistoryBreak(revision, epoch, Relist("the store was restored; list again"))
