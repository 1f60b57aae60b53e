"""The reference engine: a log in memory. The simulation runs on it; the other engines are compared with it.

Every method suspends once before its effect and once after it, so that a crash harness can stop a caller on either
side.
Lease expiry is a timer of the store itself, not of the holder.
"""

import asyncio
import contextvars
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterable, Awaitable, Generator, Mapping, Sequence

import msgspec

from lcm.model.base.errors import Conflict, Relist, Unreachable
from lcm.store.base import (
    ABSENT,
    EVENTS_KEY,
    LEASES_PREFIX,
    Change,
    CommitChanges,
    Cursor,
    Delete,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    StoreUsage,
    check_commit,
    check_key,
    check_lease,
    check_scan,
    collect_puts,
    compacted_error,
    deposed_error,
    future_revision_error,
    has_labels,
    held_leases_error,
    key_range,
    pack_events,
)
from lcm.store.hub import BACKLOG, CLOSED, Hub, QueueWatch
from lcm.system.tasks import NEXT_TURN

_HISTORY_COMMITS = 100
_EMPTY_CONTEXT = contextvars.Context()


class _HeldLease(msgspec.Struct):
    lease: Lease
    ends_at: float
    """By the loop's clock. A renewal only moves this: the store's timer looks at it when it fires."""


class _Suspension:
    """Awaited before each effect, it suspends the caller; raises Unreachable if the store is closed by then."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def __await__(self) -> Generator[None, None, None]:
        yield
        if self._store.is_closed:
            raise Unreachable(CLOSED)


class MemoryStore:
    """A store that lasts as long as the process."""

    def __init__(self, *, epoch: str = "memory", backlog: int = BACKLOG) -> None:
        self._epoch = epoch
        self._revision = 1
        self._compacted = 0
        self._keys: list[str] = []
        self._states: dict[str, list[tuple[int, Entry | None]]] = {}
        self._compactable: dict[str, None] = {}
        """Keys with more than one state, or only a deletion: the ones that a compaction looks at."""
        self._log: list[CommitChanges] = []
        self._leases: dict[str, _HeldLease] = {}
        self._lease_timer: asyncio.TimerHandle | None = None
        """Goes off no later than the first lease ends."""
        self.is_closed = False
        self._suspended = _Suspension(self)
        self._hub = Hub(self._history, tail=self._revision, backlog=backlog)

    @property
    def epoch(self) -> str:
        return self._epoch

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        check_commit(ops, events, fence)
        await self._suspend()
        self._check_fence(fence)
        for op in ops:
            if op.at is not None and (found := self._current_revision(op.key)) != op.at:
                raise Conflict(op.key, wanted=op.at, found=found)
        writes: list[Op] = [*ops, Put(EVENTS_KEY, pack_events(events))] if events else list(ops)
        revision = self._write(writes)
        await NEXT_TURN
        return revision

    async def get(self, key: str) -> Entry | None:
        if key not in self._states:
            check_key(key)
        await self._suspend()
        return self._newest(key)

    async def get_all(self, *keys: str) -> Sequence[Entry | None]:
        for key in keys:
            check_key(key)
        await self._suspend()
        return [self._newest(key) for key in keys]

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        check_scan(limit)
        await self._suspend()
        revision = cursor.revision if cursor else self._revision
        if revision < self._compacted:
            raise compacted_error(revision)
        if revision > self._revision:
            raise future_revision_error(revision)
        low, high = key_range(prefix)
        start = bisect_right(self._keys, cursor.key) if cursor else bisect_left(self._keys, low)
        found: list[Entry] = []
        for key in self._keys[start : bisect_left(self._keys, high)]:
            entry = self._state_at(key, revision)
            if entry is None or (labels and not has_labels(entry.labels, labels)):
                continue
            if len(found) == limit:
                return Page(found, revision, Cursor(revision, found[-1].key))
            found.append(entry)
        return Page(found, revision, None)

    def watch(self, *prefixes: str, after: int) -> QueueWatch:
        return self._hub.watch(prefixes, after)

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        check_lease(name, holder, ttl_seconds)
        await self._suspend()
        if name in self._leases:
            return None
        lease = Lease(name, holder, self._revision + 1, ttl_seconds)
        self._write([Put(LEASES_PREFIX + name, msgspec.json.encode(lease))])
        self._leases[name] = _HeldLease(lease, asyncio.get_running_loop().time() + ttl_seconds)
        self._set_lease_timer()
        await NEXT_TURN
        return lease

    async def renew(self, *leases: Lease) -> None:
        await self._suspend()
        now, over = asyncio.get_running_loop().time(), None
        for lease in leases:
            held = self._leases.get(lease.name)
            if held is None or held.lease.term != lease.term:
                over = over or lease
            else:
                held.ends_at = now + held.lease.ttl_seconds
        if over is not None:
            raise deposed_error(over.fence())
        await NEXT_TURN

    async def release(self, lease: Lease) -> None:
        await self._suspend()
        self._end_lease(lease)
        await NEXT_TURN

    async def lease(self, name: str) -> Lease | None:
        await self._suspend()
        held = self._leases.get(name)
        return held.lease if held else None

    async def probe(self) -> None:
        await self._suspend()

    async def usage(self) -> StoreUsage | None:
        await self._suspend()
        return None

    async def compact(self, revision: int) -> None:
        await self._suspend()
        self._compacted = max(self._compacted, min(revision, self._revision))
        self._log = self._log[bisect_right(self._log, self._compacted, key=_revision_of) :]
        aged, self._compactable = self._compactable, {}
        for key in aged:
            states = self._states[key]
            kept = states[max(0, bisect_right(states, self._compacted, key=_state_revision) - 1) :]
            if len(kept) == 1 and kept[0][1] is None and kept[0][0] <= self._compacted:
                del self._states[key]
                del self._keys[bisect_left(self._keys, key)]
                continue
            self._states[key] = kept
            if len(kept) > 1 or kept[0][1] is None:
                self._compactable[key] = None

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        fresh = await collect_puts(entries)
        if self._leases:
            raise held_leases_error(self._leases)
        self._keys.clear()
        self._states.clear()
        self._compactable.clear()
        self._log.clear()
        self._epoch = epoch
        self._revision += 1
        for put in fresh:
            self._apply(put, self._revision)
        self._compacted = self._hub.tail = self._revision
        self._hub.end(Relist("the store was restored; list again"))
        return self._revision

    async def close(self) -> None:
        self.is_closed = True
        self._hub.close()
        if self._lease_timer is not None:
            self._lease_timer.cancel()

    def _suspend(self) -> Awaitable[None]:
        return self._suspended

    def _write(self, ops: Sequence[Op]) -> int:
        revision = self._revision + 1
        changes = [change for op in ops if (change := self._apply(op, revision))]
        if not changes:
            return self._revision
        self._revision = revision
        self._log.append(CommitChanges(revision, changes))
        self._hub.publish(revision, changes)
        return revision

    def _apply(self, op: Op, revision: int) -> Change | None:
        before = self._newest(op.key)
        match op:
            case Put():
                created = before.created if before else revision
                entry: Entry | None = Entry(op.key, op.value, dict(op.labels), revision, created)
            case Delete() if before is not None:
                entry = None
            case _:
                return None
        if op.key not in self._states:
            insort(self._keys, op.key)
            self._states[op.key] = [(revision, entry)]
        else:
            self._states[op.key].append((revision, entry))
            self._compactable[op.key] = None
        return Change(op.key, entry)

    def _newest(self, key: str) -> Entry | None:
        states = self._states.get(key)
        return states[-1][1] if states else None

    def _current_revision(self, key: str) -> int:
        entry = self._newest(key)
        return entry.revision if entry else ABSENT

    def _state_at(self, key: str, revision: int) -> Entry | None:
        states = self._states[key]
        if states[-1][0] <= revision:
            return states[-1][1]
        place = bisect_right(states, revision, key=_state_revision)
        return states[place - 1][1] if place else None

    async def _history(self, prefix: str, after: int, until: int) -> tuple[Sequence[CommitChanges], int]:
        await NEXT_TURN
        if after < self._compacted:
            raise compacted_error(after)
        low, high = key_range(prefix)
        start = bisect_right(self._log, after, key=_revision_of)
        stop = bisect_right(self._log, until, key=_revision_of)
        page = [
            CommitChanges(changed.revision, mine)
            for changed in self._log[start : min(stop, start + _HISTORY_COMMITS)]
            if (mine := [change for change in changed.changes if low <= change.key < high])
        ]
        return page, until if start + _HISTORY_COMMITS >= stop else self._log[start + _HISTORY_COMMITS - 1].revision

    def _check_fence(self, fence: Fence | None) -> None:
        if fence is None:
            return
        held = self._leases.get(fence.lease)
        if held is None or held.lease.term != fence.term:
            raise deposed_error(fence)

    def _set_lease_timer(self) -> None:
        """Look at leases again when the first of them ends, unless they are looked at before."""
        ends_at, timer = min(held.ends_at for held in self._leases.values()), self._lease_timer
        if timer is not None and timer.when() <= ends_at:
            return
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._lease_timer = loop.call_at(ends_at, self._end_leases, context=_EMPTY_CONTEXT)

    def _end_leases(self) -> None:
        """End the leases whose time is over, and look again when the next one's will be."""
        now, self._lease_timer = asyncio.get_running_loop().time(), None
        for held in [one for one in self._leases.values() if one.ends_at <= now]:
            self._end_lease(held.lease)
        if self._leases:
            self._set_lease_timer()

    def _end_lease(self, lease: Lease) -> None:
        held = self._leases.get(lease.name)
        if held is None or held.lease.term != lease.term:
            return
        del self._leases[lease.name]
        self._write([Delete(LEASES_PREFIX + lease.name)])


def _revision_of(changed: CommitChanges) -> int:
    return changed.revision


def _state_revision(state: tuple[int, Entry | None]) -> int:
    return state[0]
