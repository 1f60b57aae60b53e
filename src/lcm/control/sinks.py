"""The sinks as the store keeps them: what admins read and change, and what housekeeping must leave alone.

Called by `api` for whoever may; `outbox` delivers to what is written here, in whichever process leads.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.model.addresses import Reach
from lcm.model.errors import Conflict, Fault, Gone, Invalid, NoRoom
from lcm.model.resource import Count, Part
from lcm.model.sink import CREDENTIAL, DeadLetter, Format, Sink, SinkStatus
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, everything
from lcm.store.codec import Codec

SINKS: Final = "sinks/"
CURSORS: Final = "sink-cursors/"
LETTERS: Final = "dead-letters/"
MAX_SINKS: Final = 100
"""Each has one event under way at a time, so this bounds what is sent at once."""
KEPT: Final = timedelta(hours=24)
"""How long a sink may be away without losing events: then they become dead letters."""

CODEC: Final = Codec()
_OPERATIONS: Final = 100
_BATCH_BYTES: Final = 500_000
_ROUNDS: Final = 5


class SinkReport(Part):
    """A sink and how it fares; no status means that nobody delivered to it yet."""

    sink: Sink
    resource_version: Count
    status: SinkStatus | None = None


async def list_sinks(store: Store) -> Sequence[SinkReport]:
    """Read all sinks, in the order of their names."""
    found = await everything(store, SINKS)
    entries = {entry.key.removeprefix(CURSORS): entry for entry in (await everything(store, CURSORS)).entries}
    return [_report(entry, entries.get(entry.key.removeprefix(SINKS))) for entry in found.entries]


async def find(store: Store, name: str) -> SinkReport | None:
    """Read one sink; None means that there is none of this name."""
    entry = await store.get(SINKS + name)
    return _report(entry, await store.get(CURSORS + name)) if entry else None


async def put(store: Store, sink: Sink, reach: Reach, *, now: datetime, at: int | None = None) -> SinkReport:
    """Make or replace a sink. Invalid with every fault; NoRoom when there are too many; Conflict as commits say.

    `at` demands a revision, ABSENT that it is new. May be repeated: deliveries go on where they were.
    """
    admit(sink, reach)
    entry = await store.get(SINKS + sink.name)
    found = entry.revision if entry else ABSENT
    if at is not None and at != found:
        raise Conflict(SINKS + sink.name, wanted=at, found=found)
    if entry is None and len((await everything(store, SINKS)).entries) >= MAX_SINKS:
        raise NoRoom(f"there are {MAX_SINKS} sinks already; delete one first")
    created_at = CODEC.decode(entry.value, Sink).created_at if entry else now
    sink = msgspec.structs.replace(sink, created_at=created_at)
    value = CODEC.encode(sink, onto=entry.value if entry else None)
    revision = await store.commit(Put(SINKS + sink.name, value, at=found))
    return SinkReport(sink=sink, resource_version=revision)


async def delete(store: Store, name: str, *, at: int | None = None) -> None:
    """Remove a sink with its dead letters. Gone when there is none."""
    if await store.get(SINKS + name) is None:
        raise Gone(f"there is no sink {name}")
    await store.commit(Delete(SINKS + name, at=at), Delete(CURSORS + name))
    letters = [Delete(entry.key) async for entry in entries_of(store, f"{LETTERS}{name}/")]
    for batch in batches(letters):
        await store.commit(*batch)


async def dead(store: Store, name: str) -> Sequence[DeadLetter]:
    """Read a sink's dead letters, oldest first."""
    letters = [CODEC.decode(entry.value, DeadLetter) async for entry in entries_of(store, f"{LETTERS}{name}/")]
    return sorted(letters, key=lambda letter: (letter.at, letter.event.time, letter.event_id))


async def replay(store: Store, name: str, event_id: str | None = None) -> int:
    """Ask for a dead letter, or for all of a sink's, to be sent once more; return how many are newly asked for.

    What is taken then is gone from the list; what is not stays on it, with the newest error. Gone when the one asked
    for is not there. May be repeated.
    """
    for _ in range(_ROUNDS):
        entries = [entry async for entry in entries_of(store, f"{LETTERS}{name}/") if _is_for(entry, name, event_id)]
        if event_id is not None and not entries:
            raise Gone(f"sink {name} has no dead letter {event_id}")
        try:
            return await _mark(store, entries)
        except Conflict:
            continue  # some were sent meanwhile, or dropped
    raise Conflict(f"{LETTERS}{name}/", wanted=ABSENT, found=ABSENT)


async def oldest_needed(store: Store, now: datetime) -> int | None:
    """Say which revision compaction must not pass, because a sink is yet to read the events after it; None: any.

    A sink nobody delivered to for a day holds nothing back; when it comes back it is told that events were lost.
    """
    cursors = {entry.key.removeprefix(CURSORS): entry async for entry in entries_of(store, CURSORS)}
    found = []
    async for entry in entries_of(store, SINKS):
        report = _report(entry, cursors.get(entry.key.removeprefix(SINKS)))
        since, revision = report.sink.created_at, entry.created
        if report.status is not None and report.status.sink == entry.created:
            since, revision = report.status.at, report.status.revision
        if since is not None and now - since < KEPT:
            found.append(revision)
    return min(found, default=None)


def admit(sink: Sink, reach: Reach) -> None:
    """Raise Invalid if a sink could never work."""
    faults = list[Fault]()
    try:
        reach.target(sink.url.replace(CREDENTIAL, "~"))  # which no host may hold
    except Invalid as error:
        faults += error.faults
    if sink.credential is None and (sink.format is Format.PAGERDUTY or CREDENTIAL in sink.url):
        faults.append(Fault("credential", "missing", "say where it is, for example env:PAGERDUTY_ROUTING_KEY"))
    if sink.previous_secret is not None and sink.secret is None:
        faults.append(Fault("secret", "missing", "name the present one as well as the previous one"))
    if faults:
        raise Invalid(*faults)


def letter_key(sink: str, event_id: str) -> str:
    """Say where a dead letter is kept."""
    return f"{LETTERS}{sink}/{event_id}"


async def entries_of(store: Store, prefix: str) -> AsyncIterator[Entry]:
    """Read all entries with a prefix, a page at a time."""
    page = await store.scan(prefix)
    while True:
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        page = await store.scan(prefix, cursor=page.next)


def batches(ops: Iterable[Op]) -> Iterator[Sequence[Op]]:
    """Split operations into commits that are within the store's limits."""
    batch, size = list[Op](), 0
    for op in ops:
        grown = len(op.value) if isinstance(op, Put) else 0
        if batch and (len(batch) >= _OPERATIONS or size + grown > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += grown
    if batch:
        yield batch


async def _mark(store: Store, entries: Iterable[Entry]) -> int:
    letters = [(entry, CODEC.decode(entry.value, DeadLetter)) for entry in entries]
    puts = [
        Put(entry.key, CODEC.encode(msgspec.structs.replace(letter, replay=True)), at=entry.revision)
        for entry, letter in letters
        if not letter.replay
    ]
    for batch in batches(puts):
        await store.commit(*batch)
    return len(puts)


def _is_for(entry: Entry, name: str, event_id: str | None) -> bool:
    return event_id is None or entry.key == letter_key(name, event_id)


def _report(entry: Entry, cursor: Entry | None) -> SinkReport:
    sink = CODEC.decode(entry.value, Sink)
    status = CODEC.decode(cursor.value, SinkStatus) if cursor else None
    return SinkReport(sink=sink, resource_version=entry.revision, status=status)
