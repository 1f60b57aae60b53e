"""The store's protocol and its contract, which every engine keeps.

Keys are paths such as `workers/default/w1`; values are bytes (see `store.codec`). A *commit* applies several operations
and the events they cause, all or none, and gets one revision, greater than all before. A reader scans at a revision and
then watches from it. Names that begin with `!` belong to the engines.

Called by `control`, which alone reads and writes the store, and by `compose` and `cli`, which open a store and back it
up. Everything else uses the control plane.
"""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import msgspec

from lcm.model.base.errors import Deposed, Fault, Invalid, Refused, Relist, TooLarge, WentBack
from lcm.model.base.resource import shorten_text

MAX_OPERATIONS: Final = 128
MAX_BYTES: Final = 1_000_000
MAX_KEY_BYTES: Final = 512
MAX_HOLDER_BYTES: Final = 512
MIN_LEASE_SECONDS: Final = 2
MAX_LEASE_SECONDS: Final = 86_400
ABSENT: Final = 0

EVENTS_KEY: Final = "!events"
LEASES_PREFIX: Final = "!leases/"
FIRST_KEY: Final = '"'
"""The character after `!`: an empty prefix covers every key except the engines' own."""

_KEY = re.compile(r"[A-Za-z0-9][\x21-\x7e]*")
_PREFIX = re.compile(r"[\x21-\x7e]+")
_LENGTH_BYTES: Final = 5
"""The most bytes that an envelope spends on the length of a text or an event."""


class Put(msgspec.Struct, frozen=True):
    """Write a value. `at` is a precondition: None for any state, ABSENT for no such key, else that revision."""

    key: str
    value: bytes
    labels: Mapping[str, str] = {}
    at: int | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove a key. Without `at`, removing a missing key is no change."""

    key: str
    at: int | None = None


class CheckRevision(msgspec.Struct, frozen=True):
    """Require a key's revision, without a change; ABSENT means that the key must not exist."""

    key: str
    at: int


Op = Put | Delete | CheckRevision


class Fence(msgspec.Struct, frozen=True):
    """Condition of a commit: it succeeds only while this term of the lease lasts."""

    lease: str
    term: int


class Entry(msgspec.Struct, frozen=True):
    """A key as it was at a revision. `created` is the revision of its first write since it was last absent."""

    key: str
    value: bytes
    labels: Mapping[str, str]
    revision: int
    created: int


class Cursor(msgspec.Struct, frozen=True):
    """The start of the next page of a scan: after this key, at this revision."""

    revision: int
    key: str


class Page(msgspec.Struct, frozen=True):
    """Part of a scan, as of `revision`. `next` is None on the last page."""

    entries: Sequence[Entry]
    revision: int
    next: Cursor | None


class Change(msgspec.Struct, frozen=True):
    """What a commit did to one key; `entry` is None when it removed the key."""

    key: str
    entry: Entry | None


class CommitChanges(msgspec.Struct, frozen=True):
    """What one commit changed under a watched prefix, in the order of its operations."""

    revision: int
    changes: Sequence[Change]


class CommitEvents(msgspec.Struct, frozen=True):
    """The events of one commit; the position in `events` is the N of an event id."""

    revision: int
    events: Sequence[bytes]


class Lease(msgspec.Struct, frozen=True):
    """A lease on `name`, valid for `ttl_seconds` after each renewal. `term` grows with every new holder."""

    name: str
    holder: str
    term: int
    ttl_seconds: int

    def fence(self) -> Fence:
        """Return the fence that binds a commit to this term."""
        return Fence(self.name, self.term)


class StoreUsage(msgspec.Struct, frozen=True):
    """How many bytes a store takes, how many it can take at most, and how many of those taken hold nothing any more."""

    used_bytes: int
    limit_bytes: int
    unused_bytes: int = 0

    @property
    def percent(self) -> float:
        """The share of the limit that is taken."""
        return 100 * self.used_bytes / self.limit_bytes if self.limit_bytes else 100.0


class StoreWatch(Protocol):
    """An endless reader of changes. Close it, or use it as an async context manager."""

    def __aiter__(self) -> AsyncIterator[CommitChanges]:
        """Iterate over commits in order, each once."""
        ...

    async def __anext__(self) -> CommitChanges:
        """Wait for the next commit. Raises Relist when history is gone or the reader was too slow."""
        ...

    async def aclose(self) -> None:
        """Stop watching. May be called again."""
        ...

    async def __aenter__(self) -> Self:
        """Return the watch itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...


class EventReader:
    """An endless reader of committed events: a watch on the key whose history they are."""

    def __init__(self, watch: StoreWatch) -> None:
        """Read from a watch of EVENTS_KEY."""
        self._watch = watch

    def __aiter__(self) -> Self:
        """Iterate over commits that have events, in order, each once."""
        return self

    async def __anext__(self) -> CommitEvents:
        """Wait for the next events. Raises Relist like the watch."""
        changed = await anext(self._watch)
        entry = changed.changes[0].entry
        assert entry is not None, "the events key is never deleted"
        return CommitEvents(changed.revision, unpack_events(entry.value))

    async def aclose(self) -> None:
        """Stop reading. May be called again."""
        await self._watch.aclose()

    async def __aenter__(self) -> Self:
        """Return the reader itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()


class Store(Protocol):
    """Versioned keys, watches and leases.

    Every method but `close` may raise Unreachable, Later while a restore of the store is in progress, and WentBack when
    the store was put back to an earlier state, or replaced, under this process. A write may raise StoreFull.
    """

    @property
    def epoch(self) -> str:
        """The identifier of this history of revisions.

        A restore begins a new epoch; an open store learns of it when it next watches.
        """
        ...

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        """Apply all operations and events, or none, and return the commit's revision.

        Limits: MAX_OPERATIONS operations (the events together count as one, the fence as one), MAX_BYTES, and
        each key once; beyond them TooLarge or Invalid is raised before the engine sees the commit. Raises
        Conflict when a precondition fails, Deposed when the fence does. A commit that changes nothing uses no
        revision. After Unreachable the outcome is unknown: read before repeating, or repeat with preconditions.
        """
        ...

    async def get(self, key: str) -> Entry | None:
        """Return the newest state of one key; None means that the store has no such key."""
        ...

    async def get_all(self, *keys: str) -> Sequence[Entry | None]:
        """Return what `get` returns of several keys, in their order. They need not be of one revision."""
        ...

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        """Return a page of the keys with this prefix that have all these labels, in key order.

        All pages reached through cursors are as of the first page's revision. Raises Relist if that revision was
        compacted or never existed, and Invalid for a limit below 1.
        """
        ...

    def watch(self, *prefixes: str, after: int) -> StoreWatch:
        """Follow every commit with a revision above `after` that touches one of the prefixes: no gap, no duplicate.

        Of each commit only the changes under these prefixes are told.
        Survives lost connections. Ends with Relist when `after` was compacted, when the reader, having once
        caught up, falls behind by more commits than the engine's backlog, or when the store is closed or was
        closed before.
        """
        ...

    def events(self, *, after: int) -> EventReader:
        """Follow the committed events, like `watch`."""
        ...

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        """Acquire the lease if nobody holds it; None means that it is held.

        A lease held under the same holder's name counts as held too: it may be left over from an earlier run.
        Acquiring, releasing and expiry are visible as changes of `!leases/NAME`. Raises Invalid unless
        `ttl_seconds` is between MIN_LEASE_SECONDS and MAX_LEASE_SECONDS and the holder has at most
        MAX_HOLDER_BYTES.
        """
        ...

    async def renew(self, *leases: Lease) -> None:
        """Restart the time of leases, from any process that knows name and term.

        Raises Deposed when one is over; the others are restarted all the same.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Release the lease at once. May be called again; a term that is over is no error."""
        ...

    async def lease(self, name: str) -> Lease | None:
        """Return the current lease; None means that nobody holds it."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget superseded states before `revision`. That revision and later ones stay readable.

        May be called again.
        """
        ...

    async def probe(self) -> None:
        """Find out whether the store takes writes: raises what a commit would raise.

        Costs one small write, uses no revision and is seen by no watch.
        """
        ...

    async def usage(self) -> StoreUsage | None:
        """Return how much room the store takes; None means that nobody knows."""
        ...

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        """Replace everything by these entries under a new epoch; earlier revisions count as compacted.

        Refused while a lease is held: stop every process first. Each entry must be within the limits of a commit.
        The last of several entries with one key counts; preconditions are ignored. An interrupted load leaves
        either the old state or a store that refuses to open until `load` is repeated.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads. May be called again."""
        ...


def pack_events(events: Sequence[bytes]) -> bytes:
    """Encode a commit's events as one value."""
    return msgspec.msgpack.encode(events)


def unpack_events(value: bytes) -> list[bytes]:
    """Decode what `pack_events` encoded."""
    return msgspec.msgpack.decode(value, type=list[bytes])


async def scan_all(store: Store, prefix: str, *, labels: Mapping[str, str] | None = None) -> Page:
    """Return all pages of a scan as one."""
    page = await store.scan(prefix, labels=labels)
    entries = list(page.entries)
    while page.next is not None:
        page = await store.scan(prefix, labels=labels, cursor=page.next)
        entries.extend(page.entries)
    return Page(entries, page.revision, None)


async def scan_from(store: Store, prefix: str, first: str) -> AsyncIterator[Entry]:
    """Yield the entries under a prefix whose keys are behind a first one, as they were when this began."""
    page = await store.scan(prefix, limit=1)
    cursor: Cursor | None = Cursor(page.revision, first) if page.entries else None
    while cursor is not None:
        page = await store.scan(prefix, cursor=cursor)
        for entry in page.entries:
            yield entry
        cursor = page.next


async def collect_puts(entries: AsyncIterable[Put]) -> list[Put]:
    """Read the entries to load and check them against the limits, before anything is cleared."""
    fresh: dict[str, Put] = {}
    async for entry in entries:
        check_commit([entry], (), None)
        fresh[entry.key] = Put(entry.key, entry.value, entry.labels)
    return list(fresh.values())


def check_commit(ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> None:
    """Check a commit against the limits of the contract. Raises TooLarge or Invalid."""
    count = len(ops) + bool(events) + (fence is not None)
    if count > MAX_OPERATIONS:
        raise TooLarge(f"{count} operations in one commit; the limit is {MAX_OPERATIONS}")
    size = sum(_size(event) + _LENGTH_BYTES for event in events) if events else 0
    for op in ops:
        check_key(op.key)
        size += len(op.key)
        if isinstance(op, Put):
            size += _size(op.value) + (_labels_size(op.labels) if op.labels else 0)
    if size > MAX_BYTES:
        raise TooLarge(f"{size} bytes in one commit; the limit is {MAX_BYTES}")
    if len(ops) > 1 and len({op.key for op in ops}) < len(ops):
        raise Invalid(Fault("commit", "a key occurs twice", "put one operation per key into a commit"))


def check_key(key: str) -> None:
    """Refuse a key that some engine could not hold, or that belongs to the engines."""
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        remedy = f"use at most {MAX_KEY_BYTES} visible ASCII characters, a letter or digit first"
        raise Invalid(Fault("key", f"{shorten_text(key, 80)!r} is no key", remedy))


def check_scan(limit: int) -> None:
    """Refuse a page limit below 1."""
    if limit < 1:
        raise Invalid(Fault("limit", f"{limit} is too small", "use at least 1"))


def check_lease(name: str, holder: str, ttl_seconds: int) -> None:
    """Refuse a lease that some engine could not hold."""
    check_key(name)
    if _text_size("holder", holder) > MAX_HOLDER_BYTES:
        raise Invalid(
            Fault("holder", f"{shorten_text(holder, 80)!r} is too long", f"use at most {MAX_HOLDER_BYTES} bytes")
        )
    if not MIN_LEASE_SECONDS <= ttl_seconds <= MAX_LEASE_SECONDS:
        remedy = f"use {MIN_LEASE_SECONDS} to {MAX_LEASE_SECONDS} seconds"
        raise Invalid(Fault("ttl_seconds", f"no lease can last {ttl_seconds}", remedy))


def key_range(prefix: str) -> tuple[str, str]:
    """Return a prefix as a half-open range of keys. Raises Invalid when no key could have the prefix."""
    if not prefix:
        return FIRST_KEY, "\x7f"
    if not _PREFIX.fullmatch(prefix):
        raise Invalid(
            Fault("prefix", f"no key begins with {shorten_text(prefix, 80)!r}", "use visible ASCII characters")
        )
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def has_labels(labels: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    """Return True if the labels include every wanted pair."""
    return not wanted or all(labels.get(name) == value for name, value in wanted.items())


def compacted_error(revision: int) -> Relist:
    """Return the error for a revision that can no longer be read."""
    return Relist(f"revision {revision} was compacted; list again and watch from there")


def future_revision_error(revision: int) -> Relist:
    """Return the error for a revision that this history does not have yet."""
    return Relist(f"revision {revision} has not happened; list again and watch from there")


def went_back_error(known: int, found: int) -> WentBack:
    """Return the error for a store whose revision is lower than one that it already gave."""
    return WentBack(
        f"the store went back: it was at revision {known} and is now at {found}. It was put back from a copy, or"
        " another took its place, so this process ends. If that was on purpose, start every process again"
    )


def deposed_error(fence: Fence) -> Deposed:
    """Return the error for a term that is over."""
    return Deposed(f"term {fence.term} of lease {fence.lease} is over")


async def renew_each(renew: Callable[[Lease], Coroutine[Any, Any, None]], leases: Sequence[Lease]) -> None:
    """Renew leases, all at once and each by itself; raise the error of the first that was not renewed."""
    if len(leases) == 1:
        await renew(leases[0])
        return
    for outcome in await asyncio.gather(*map(renew, leases), return_exceptions=True):
        if outcome is not None:
            raise outcome


def held_leases_error(names: Iterable[str]) -> Refused:
    """Return the error for replacing a store that processes still use."""
    return Refused(f"leases are held ({', '.join(sorted(names))}): stop every process that uses this store first")


def _size(value: bytes) -> int:
    if not isinstance(value, bytes):
        raise Invalid(Fault("commit", f"a value is {type(value).__name__}", "values and events are bytes"))
    return len(value)


def _labels_size(labels: Mapping[str, str]) -> int:
    return sum(_text_size("labels", text) + _LENGTH_BYTES for pair in labels.items() for text in pair)


def _text_size(where: str, text: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise Invalid(Fault(where, f"{shorten_text(text, 80)!r} is no text", "leave out lone surrogates")) from error
