"""How far each sink has got, and its dead letters: in memory for the delivering process, and in the store.

Used by `outbox` and `courier`. Progress is written in groups: events whose progress was not written before a crash
are sent again. A dead letter is written together with the progress past it, so that it is neither lost nor skipped.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog

from lcm.control.delivery.sinks import CODEC, CURSORS, DEAD_LETTERS, dead_letter_key, scan_entries, split_batches
from lcm.control.objects.writer import commit_ops
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Stuck
from lcm.model.base.resource import Moment
from lcm.model.kinds.sink import DeadLetter, SinkStatus
from lcm.store.base import EVENTS_KEY, Delete, Entry, Fence, Op, Put, Store

MAX_LETTERS: Final = 1000
"""The most dead letters of one sink."""

T = TypeVar("T", bound=msgspec.Struct)
_log: Final = structlog.get_logger()


class DeadLetterMark(msgspec.Struct, frozen=True):
    """What is kept in memory about a dead letter."""

    at: Moment
    replay: bool = False


class DeadLetters:
    """Tracks which dead letters exist, and which of them are to be sent again."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        self._marks: dict[str, dict[str, DeadLetterMark]] = defaultdict(dict)
        self._changed: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._read_at = 0

    async def read(self) -> None:
        """Read what the store holds."""
        self._read_at = (await self._store.scan(DEAD_LETTERS, limit=1)).revision
        async for entry in scan_entries(self._store, DEAD_LETTERS):
            self._update_from(entry.key, entry)

    async def follow(self) -> None:
        """Follow the changes that others make, as long as the lease lasts."""
        async with self._store.watch(DEAD_LETTERS, after=self._read_at) as watch:
            async for changed in watch:
                for change in changed.changes:
                    self._update_from(change.key, change.entry)

    def event_ids(self, sink: str) -> Sequence[str]:
        """Return the event ids of a sink's dead letters, oldest first."""
        briefs = self._marks[sink]
        return sorted(briefs, key=lambda event_id: briefs[event_id].at)

    def count(self, sink: str) -> int:
        """Return how many dead letters a sink has."""
        return len(self._marks[sink])

    def sink_names(self) -> set[str]:
        """Return the names of the sinks that have dead letters."""
        return {sink for sink, briefs in self._marks.items() if briefs}

    def update(self, sink: str, event_id: str, brief: DeadLetterMark | None) -> None:
        """Update what is known of a dead letter; None means that it is gone."""
        self._marks[sink].pop(event_id, None)
        if brief is not None:
            self._marks[sink][event_id] = brief
            self._changed[sink].set()

    async def next_replay(self, sink: str) -> tuple[DeadLetter, Entry]:
        """Wait for a dead letter that is to be sent again."""
        while True:
            self._changed[sink].clear()
            for event_id in [one for one, brief in self._marks[sink].items() if brief.replay]:
                entry = await self._store.get(dead_letter_key(sink, event_id))
                letter = _decode_or_none(entry, DeadLetter)
                if entry and letter and letter.replay:
                    return letter, entry
                self.update(sink, event_id, DeadLetterMark(letter.at) if letter else None)
            await self._changed[sink].wait()

    async def finish_replay(self, entry: Entry, letter: DeadLetter, *, taken: bool) -> None:
        """Remove a dead letter that was accepted at last, or store its newest error."""
        op: Op = Delete(entry.key, at=entry.revision)
        if not taken:
            op = Put(entry.key, CODEC.encode(letter), at=entry.revision)
        with suppress(Conflict):  # it was requested again or removed in the meantime: the watch reports that
            await commit_ops(self._store, op, fence=self._fence)
        self.update(letter.sink, letter.event_id, None if taken else DeadLetterMark(letter.at, letter.replay))

    def _update_from(self, key: str, entry: Entry | None) -> None:
        sink, _, event_id = key.removeprefix(DEAD_LETTERS).partition("/")
        self.update(sink, event_id, _decode_or_none(entry, DeadLetterMark))


def _decode_or_none(entry: Entry | None, kind: type[T]) -> T | None:
    """Decode an entry; what this version cannot read is logged and skipped, and must not stop the rest."""
    try:
        return CODEC.decode(entry.value, kind) if entry else None
    except Stuck as error:
        _log.error("dead letter left out", key=entry.key if entry else "", error=str(error))
        return None


MAX_LETTER_BYTES: Final = 250_000
SAVE_SECONDS: Final = 1.0
MAX_UNSAVED_EVENTS: Final = 100
REFRESH_SECONDS: Final = 300.0


class DeliveryProgress:
    """The delivery progress of all sinks during one lease; every write is fenced by that lease."""

    def __init__(self, store: Store, fence: Fence, clock: Clock, letters: DeadLetters) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._letters = letters
        self._statuses: dict[str, SinkStatus] = {}
        self._unsaved: dict[str, None] = {}
        self._unsaved_events = 0
        self._lock = asyncio.Lock()
        self._some, self._plenty = asyncio.Event(), asyncio.Event()

    def __getitem__(self, name: str) -> SinkStatus:
        return self._statuses[name]

    async def open_sink(self, name: str, sink: Entry | None) -> None:
        """Read how far a sink has got. A new sink, even under an old name, begins with its creation.

        `sink` None stands for one that the settings define; it begins with its first delivery.
        """
        entry = await self._store.get(CURSORS + name)
        status = CODEC.decode(entry.value, SinkStatus) if entry else None
        epoch, made = self._store.epoch, sink.created if sink else 0
        if status is None or (status.epoch == epoch and status.sink != made):
            begin = made or (await self._store.scan(CURSORS, limit=1)).revision
            status = SinkStatus(epoch=epoch, revision=begin, sink=made, at=self._clock.now())
        self._statuses[name] = status
        self.update(name, sink=made)

    def close_sink(self, name: str) -> None:
        """Forget a sink that is no longer delivered to."""
        self._statuses.pop(name, None)
        self._unsaved.pop(name, None)

    def update(self, name: str, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        """Change a sink's status; it is saved soon."""
        self._statuses[name] = msgspec.structs.replace(self._statuses[name], **changes)
        self._unsaved[name] = None
        self._unsaved_events += "n" in changes
        self._some.set()
        if self._unsaved_events >= MAX_UNSAVED_EVENTS:
            self._plenty.set()

    async def add_dead_letter(self, letter: DeadLetter, **changes: Any) -> None:  # noqa: ANN401  likewise
        """Store a dead letter together with the progress past it."""
        name, value = letter.sink, CODEC.encode(letter)
        kept = len(value) <= MAX_LETTER_BYTES
        async with self._lock:
            oldest = self._letters.event_ids(name)
            surplus = oldest[: max(0, len(oldest) + kept - MAX_LETTERS)]
            dropped = len(surplus) + (not kept)
            status = msgspec.structs.replace(self[name], **changes, dropped=self[name].dropped + dropped)
            ops: list[Op] = [Delete(dead_letter_key(name, event_id)) for event_id in surplus]
            if kept:
                ops.append(Put(dead_letter_key(name, letter.event_id), value))
            await commit_ops(self._store, self._cursor_put(name, status), *ops, fence=self._fence)
        self._statuses[name] = status
        for event_id in surplus:
            self._letters.update(name, event_id, None)
        if kept:
            self._letters.update(name, letter.event_id, DeadLetterMark(letter.at))
        if dropped:
            _log.warning("dead letters dropped", sink=name, count=dropped)

    async def save(self) -> None:
        """Write all changes."""
        async with self._lock:
            self._some.clear()
            self._plenty.clear()
            self._unsaved_events = 0
            written = {name: self[name] for name in self._unsaved}
            for batch in split_batches(self._cursor_put(name, status) for name, status in written.items()):
                await commit_ops(self._store, *batch, fence=self._fence)
            for name, status in written.items():
                if self._statuses.get(name) is status:
                    del self._unsaved[name]

    async def keep_saving(self) -> None:
        """Write changes every second or after a number of events, as long as the lease lasts."""
        while True:
            await self._some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_SECONDS):
                    await self._plenty.wait()
            await self.save()

    async def keep_refreshing(self) -> None:
        """Refresh all positions now and then.

        A sink without events would look abandoned, and its old position would hold back compaction.
        """
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            page = await self._store.scan(EVENTS_KEY, limit=1)
            newest = page.entries[0].revision if page.entries else 0
            for name, status in self._statuses.items():
                idle = newest <= status.revision < page.revision and not status.reset
                self.update(name, revision=page.revision if idle else status.revision)

    async def remove_all_but(self, names: Collection[str]) -> None:
        """Remove the records of deleted sinks."""
        found = [entry.key async for entry in scan_entries(self._store, CURSORS)]
        ops: list[Op] = [Delete(key) for key in found if key.removeprefix(CURSORS) not in names]
        for name in sorted(self._letters.sink_names() - set(names)):
            ops += [Delete(dead_letter_key(name, event_id)) for event_id in self._letters.event_ids(name)]
        for batch in split_batches(ops):
            await commit_ops(self._store, *batch, fence=self._fence)

    def _cursor_put(self, name: str, status: SinkStatus) -> Put:
        now, letters = self._clock.now(), self._letters.count(name)
        return Put(CURSORS + name, CODEC.encode(msgspec.structs.replace(status, at=now, dead_letters=letters)))
