"""The store's protocol and contract, held by every engine.

Keys are paths such as `workers/default/w1`; values are bytes (see `codec`). A *commit* applies several operations and
the events they cause, all or none, and gives one revision, greater than all before. Time goes one way: a reader scans
at a revision and watches from it. Names that begin with `!` belong to the engines.

Called by `control`, which alone reads and writes it, and by `compose` and `cli`, which open a store and back it up. All
else sees the plane.
"""

import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Final, Protocol, Self

import msgspec

from lcm.model.base.errors import Deposed, Fault, Invalid, Refused, Relist, TooLarge

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
"""The character after `!`: an empty prefix covers every key but the engines' own."""

_KEY = re.compile(r"[A-Za-z0-9][\x21-\x7e]*")
_PREFIX = re.compile(r"[\x21-\x7e]+")
_LENGTH_BYTES: Final = 5
"""What an envelope spends, at most, on the length of a text or an event."""


class Put(msgspec.Struct, frozen=True):
    """Write a value. `at` demands a state first: None any, ABSENT not there, else exactly that revision."""

    key: str
    value: bytes
    labels: Mapping[str, str] = {}
    at: int | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove a key. Without `at`, removing what is not there is no change."""

    key: str
    at: int | None = None


class Check(msgspec.Struct, frozen=True):
    """Demand a state and change nothing."""

    key: str
    at: int


Op = Put | Delete | Check


class Fence(msgspec.Struct, frozen=True):
    """Commit only while this term of the lease lasts."""

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
    """Where the next page of a scan begins: after this key, at this revision."""

    revision: int
    key: str


class Page(msgspec.Struct, frozen=True):
    """Part of a scan, true at `revision`. `next` is None on the last page."""

    entries: Sequence[Entry]
    revision: int
    next: Cursor | None


class Change(msgspec.Struct, frozen=True):
    """What a commit did to one key; `entry` is None when it removed the key."""

    key: str
    entry: Entry | None


class Changed(msgspec.Struct, frozen=True):
    """What one commit changed under a watched prefix, in the order of its operations."""

    revision: int
    changes: Sequence[Change]


class Happened(msgspec.Struct, frozen=True):
    """The events committed with one revision; the place in `events` is the N of an event id."""

    revision: int
    events: Sequence[bytes]


class Lease(msgspec.Struct, frozen=True):
    """Somebody holds `name` for `ttl_seconds` after each renewal. `term` grows with every new holder."""

    name: str
    holder: str
    term: int
    ttl_seconds: int

    def fence(self) -> Fence:
        """Bind a commit to this term."""
        return Fence(self.name, self.term)


class Watch(Protocol):
    """An endless reader of changes. Close it, or use it as an async context manager."""

    def __aiter__(self) -> AsyncIterator[Changed]:
        """Iterate over commits in order, each once."""
        ...

    async def __anext__(self) -> Changed:
        """Wait for the next commit. Raises Relist when history is gone or the reader was too slow."""
        ...

    async def aclose(self) -> None:
        """Stop watching. May be repeated."""
        ...

    async def __aenter__(self) -> Self:
        """Return the watch itself."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        ...


class EventReader:
    """An endless reader of committed events, made of a watch on the key whose history they are."""

    def __init__(self, watch: Watch) -> None:
        """Read a watch of EVENTS_KEY."""
        self._watch = watch

    def __aiter__(self) -> Self:
        """Iterate over commits that caused events, in order, each once."""
        return self

    async def __anext__(self) -> Happened:
        """Wait for the next events. Raises Relist like the watch."""
        changed = await anext(self._watch)
        entry = changed.changes[0].entry
        assert entry is not None, "the events key is never deleted"
        return Happened(changed.revision, unpack_events(entry.value))

    async def aclose(self) -> None:
        """Stop reading. May be repeated."""
        await self._watch.aclose()

    async def __aenter__(self) -> Self:
        """Return the reader itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()


class Store(Protocol):
    """Versioned keys, watch, leases.

    Every method but `close` may raise Unreachable, and Later while a restore of the store is under way.
    """

    @property
    def epoch(self) -> str:
        """Name this history of revisions; a restore begins another, which an open store learns when it next watches."""
        ...

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        """Apply all operations and events, or none, and return the commit's revision.

        At most MAX_OPERATIONS operations (the events together count one, the fence one) and MAX_BYTES; each key once;
        else TooLarge or Invalid before the engine sees it. Raises Conflict when a precondition fails, Deposed when the
        fence does. A commit that changes nothing spends no revision. After Unreachable the outcome is unknown: read
        before repeating, or repeat with preconditions.
        """
        ...

    async def get(self, key: str) -> Entry | None:
        """Read the newest state of one key; None means that the store answered "not there"."""
        ...

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        """Read a page of the keys with this prefix that carry all these labels, in key order.

        All pages reached through cursors are true at the first page's revision; Relist if that was compacted or never
        happened. A limit below 1 is Invalid.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> Watch:
        """Follow every commit with a revision above `after` that touches the prefix: no gap, no duplicate.

        Survives cut connections. Ends with Relist when `after` was compacted, or when the reader, having once caught
        up, falls behind by more commits than the engine's backlog, or when the store is closed or was closed before.
        """
        ...

    def events(self, *, after: int) -> EventReader:
        """Follow the committed events, like `watch`."""
        ...

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        """Take the lease if nobody holds it; None means held, also by this very holder, who may be its own ghost.

        Visible as a change of `!leases/NAME`, as are release and expiry. At least MIN_LEASE_SECONDS and at most
        MAX_LEASE_SECONDS, a holder of at most MAX_HOLDER_BYTES, else Invalid.
        """
        ...

    async def renew(self, lease: Lease) -> None:
        """Start the lease's time anew, from any process that knows name and term. Raises Deposed when it is over."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back at once. May be repeated; a term that is over is no error."""
        ...

    async def lease(self, name: str) -> Lease | None:
        """Tell who holds the lease; None means nobody."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget superseded states before `revision`, which stays readable, as the newest does. May be repeated."""
        ...

    async def load(self, entries: AsyncIterable[Put], *, epoch: str) -> int:
        """Replace everything by these entries under a new epoch; earlier revisions count as compacted.

        Refused while a lease is held: stop every process first. Each entry must be within the limits of a commit; the
        last of those with one key counts, and their preconditions mean nothing. Interrupted, it leaves either the old
        state or a store that refuses to open until `load` is repeated.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and threads. May be repeated."""
        ...


def pack_events(events: Sequence[bytes]) -> bytes:
    """Make one value of a commit's events."""
    return msgspec.msgpack.encode(events)


def unpack_events(value: bytes) -> list[bytes]:
    """Undo `pack_events`."""
    return msgspec.msgpack.decode(value, type=list[bytes])


async def everything(store: Store, prefix: str, *, labels: Mapping[str, str] | None = None) -> Page:
    """Read all pages of a scan as one."""
    page = await store.scan(prefix, labels=labels)
    entries = list(page.entries)
    while page.next is not None:
        page = await store.scan(prefix, labels=labels, cursor=page.next)
        entries.extend(page.entries)
    return Page(entries, page.revision, None)


async def collected(entries: AsyncIterable[Put]) -> list[Put]:
    """Read what is to be loaded, and hold it against the limits, before anything is cleared."""
    fresh: dict[str, Put] = {}
    async for entry in entries:
        check_commit([entry], (), None)
        fresh[entry.key] = Put(entry.key, entry.value, entry.labels)
    return list(fresh.values())


def check_commit(ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> None:
    """Hold a commit against the contract's limits; raises TooLarge or Invalid."""
    count = len(ops) + bool(events) + (fence is not None)
    if count > MAX_OPERATIONS:
        message = f"{count} operations in one commit; the limit is {MAX_OPERATIONS}"
        raise TooLarge(message)
    size = sum(_size(event) + _LENGTH_BYTES for event in events)
    for op in ops:
        check_key(op.key)
        size += len(op.key)
        if isinstance(op, Put):
            size += _size(op.value) + (_labels_size(op.labels) if op.labels else 0)
    if size > MAX_BYTES:
        message = f"{size} bytes in one commit; the limit is {MAX_BYTES}"
        raise TooLarge(message)
    if len({op.key for op in ops}) < len(ops):
        raise Invalid(Fault("commit", "a key occurs twice", "put one operation per key into a commit"))


def check_key(key: str) -> None:
    """Refuse a key that some engine could not hold, or that belongs to the engines."""
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        remedy = f"use at most {MAX_KEY_BYTES} visible ASCII characters, a letter or digit first"
        raise Invalid(Fault("key", f"{key[:80]!r} is no key", remedy))


def check_scan(limit: int) -> None:
    """Refuse a page that could hold nothing."""
    if limit < 1:
        raise Invalid(Fault("limit", f"{limit} is too small", "use at least 1"))


def check_lease(name: str, holder: str, ttl_seconds: int) -> None:
    """Refuse a lease that some engine could not hold."""
    check_key(name)
    if _text_size("holder", holder) > MAX_HOLDER_BYTES:
        raise Invalid(Fault("holder", f"{holder[:80]!r} is too long", f"use at most {MAX_HOLDER_BYTES} bytes"))
    if not MIN_LEASE_SECONDS <= ttl_seconds <= MAX_LEASE_SECONDS:
        remedy = f"use {MIN_LEASE_SECONDS} to {MAX_LEASE_SECONDS} seconds"
        raise Invalid(Fault("ttl_seconds", f"no lease can last {ttl_seconds}", remedy))


def key_range(prefix: str) -> tuple[str, str]:
    """Turn a prefix into a half-open range of keys; Invalid when no key could begin so."""
    if not prefix:
        return FIRST_KEY, "\x7f"
    if not _PREFIX.fullmatch(prefix):
        raise Invalid(Fault("prefix", f"no key begins with {prefix[:80]!r}", "use visible ASCII characters"))
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def matches(labels: Mapping[str, str], wanted: Mapping[str, str] | None) -> bool:
    """Tell whether labels hold every wanted pair."""
    return not wanted or all(labels.get(name) == value for name, value in wanted.items())


def compacted(revision: int) -> Relist:
    """Say that a revision can no longer be read."""
    return Relist(f"revision {revision} was compacted; list again and watch from there")


def not_yet(revision: int) -> Relist:
    """Say that a revision was asked for that this history does not have."""
    return Relist(f"revision {revision} has not happened; list again and watch from there")


def deposed(fence: Fence) -> Deposed:
    """Say that a term is over."""
    return Deposed(f"term {fence.term} of lease {fence.lease} is over")


def held_leases(names: Iterable[str]) -> Refused:
    """Say that processes still run on a store that should be replaced."""
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
        raise Invalid(Fault(where, f"{text[:80]!r} is no text", "leave out lone surrogates")) from error
