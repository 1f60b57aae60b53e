"""How far each sink has got: in memory for who delivers, and in the store for who comes after. Used by `outbox`.

Progress is written in groups: what a dying process did not write was sent, and is sent again. A dead letter is written
together with the progress past it, so that it is neither lost nor skipped.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog

from lcm.control.delivery.sinks import CODEC, CURSORS, LETTERS, batches, entries_of, letter_key
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Stuck
from lcm.model.base.resource import Moment
from lcm.model.kinds.sink import DeadLetter, SinkStatus
from lcm.store.base import EVENTS_KEY, Delete, Entry, Fence, Op, Put, Store

MAX_LETTERS: Final = 1000
"""Of one sink."""

T = TypeVar("T", bound=msgspec.Struct)
_log: Final = structlog.get_logger()


class Brief(msgspec.Struct, frozen=True):
    """What is kept in memory of a dead letter."""

    at: Moment
    replay: bool = False


class Letters:
    """Knows which dead letters there are, and which are to be sent once more."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        self._briefs: dict[str, dict[str, Brief]] = defaultdict(dict)
        self._news: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._read_at = 0

    async def read(self) -> None:
        """Learn what the store holds."""
        self._read_at = (await self._store.scan(LETTERS, limit=1)).revision
        async for entry in entries_of(self._store, LETTERS):
            self._learn(entry.key, entry)

    async def follow(self) -> None:
        """Learn what others change, as long as the term lasts."""
        async with self._store.watch(LETTERS, after=self._read_at) as watch:
            async for changed in watch:
                for change in changed.changes:
                    self._learn(change.key, change.entry)

    def of(self, sink: str) -> Sequence[str]:
        """Name the dead letters of a sink by their events' ids, oldest first."""
        briefs = self._briefs[sink]
        return sorted(briefs, key=lambda event_id: briefs[event_id].at)

    def count(self, sink: str) -> int:
        """Say how many dead letters a sink has."""
        return len(self._briefs[sink])

    def senders(self) -> set[str]:
        """Name the sinks that have dead letters."""
        return {sink for sink, briefs in self._briefs.items() if briefs}

    def note(self, sink: str, event_id: str, brief: Brief | None) -> None:
        """Take note of what became of a dead letter; None: it is gone."""
        self._briefs[sink].pop(event_id, None)
        if brief is not None:
            self._briefs[sink][event_id] = brief
            self._news[sink].set()

    async def next_replay(self, sink: str) -> tuple[DeadLetter, Entry]:
        """Wait for a dead letter that is to be sent once more."""
        while True:
            self._news[sink].clear()
            for event_id in [one for one, brief in self._briefs[sink].items() if brief.replay]:
                entry = await self._store.get(letter_key(sink, event_id))
                letter = _readable(entry, DeadLetter)
                if entry and letter and letter.replay:
                    return letter, entry
                self.note(sink, event_id, Brief(letter.at) if letter else None)
            await self._news[sink].wait()

    async def settle(self, entry: Entry, letter: DeadLetter, *, taken: bool) -> None:
        """Remove a dead letter that was taken at last, or write down what is new about it."""
        op: Op = Delete(entry.key, at=entry.revision)
        if not taken:
            op = Put(entry.key, CODEC.encode(letter), at=entry.revision)
        with suppress(Conflict):  # somebody asked for it again, or removed it, meanwhile: the watch tells
            await self._store.commit(op, fence=self._fence)
        self.note(letter.sink, letter.event_id, None if taken else Brief(letter.at, letter.replay))

    def _learn(self, key: str, entry: Entry | None) -> None:
        sink, _, event_id = key.removeprefix(LETTERS).partition("/")
        self.note(sink, event_id, _readable(entry, Brief))


def _readable(entry: Entry | None, kind: type[T]) -> T | None:
    """Read what is there; what this version cannot read is left to another, and must not stop the rest."""
    try:
        return CODEC.decode(entry.value, kind) if entry else None
    except Stuck as error:
        _log.error("dead letter left out", key=entry.key if entry else "", error=str(error))
        return None


LARGEST_LETTER: Final = 250_000
SAVE_SECONDS: Final = 1.0
SAVE_EVENTS: Final = 100
BEAT_SECONDS: Final = 300.0


class Ledger:
    """The progress of all sinks that are delivered to, during one term: every write is bound to it."""

    def __init__(self, store: Store, fence: Fence, clock: Clock, letters: Letters) -> None:
        self._store = store
        self._fence = fence
        self._clock = clock
        self._letters = letters
        self._statuses: dict[str, SinkStatus] = {}
        self._unsaved: dict[str, None] = {}
        self._noted = 0
        self._turn = asyncio.Lock()
        self._some, self._plenty = asyncio.Event(), asyncio.Event()

    def __getitem__(self, name: str) -> SinkStatus:
        return self._statuses[name]

    async def open(self, name: str, sink: Entry | None) -> None:
        """Learn how far a sink has got; one that is new, if only under an old name, begins with its making.

        None stands for one that the settings make, which begins when it is first delivered to.
        """
        entry = await self._store.get(CURSORS + name)
        status = CODEC.decode(entry.value, SinkStatus) if entry else None
        epoch, made = self._store.epoch, sink.created if sink else 0
        if status is None or (status.epoch == epoch and status.sink != made):
            begin = made or (await self._store.scan(CURSORS, limit=1)).revision
            status = SinkStatus(epoch=epoch, revision=begin, sink=made, at=self._clock.now())
        self._statuses[name] = status
        self.note(name, sink=made)

    def close(self, name: str) -> None:
        """Forget a sink that is not delivered to any more."""
        self._statuses.pop(name, None)
        self._unsaved.pop(name, None)

    def note(self, name: str, **changes: Any) -> None:  # noqa: ANN401  fields of a status
        """Change a sink's status; it is saved before long."""
        self._statuses[name] = msgspec.structs.replace(self._statuses[name], **changes)
        self._unsaved[name] = None
        self._noted += "n" in changes
        self._some.set()
        if self._noted >= SAVE_EVENTS:
            self._plenty.set()

    async def bury(self, letter: DeadLetter, **changes: Any) -> None:  # noqa: ANN401  likewise
        """Keep a dead letter, together with the progress past it."""
        name, value = letter.sink, CODEC.encode(letter)
        kept = len(value) <= LARGEST_LETTER
        async with self._turn:
            oldest = self._letters.of(name)
            surplus = oldest[: max(0, len(oldest) + kept - MAX_LETTERS)]
            dropped = len(surplus) + (not kept)
            status = msgspec.structs.replace(self[name], **changes, dropped=self[name].dropped + dropped)
            ops: list[Op] = [Delete(letter_key(name, event_id)) for event_id in surplus]
            if kept:
                ops.append(Put(letter_key(name, letter.event_id), value))
            await self._store.commit(self._put(name, status), *ops, fence=self._fence)
        self._statuses[name] = status
        for event_id in surplus:
            self._letters.note(name, event_id, None)
        if kept:
            self._letters.note(name, letter.event_id, Brief(letter.at))
        if dropped:
            _log.warning("dead letters dropped", sink=name, count=dropped)

    async def save(self) -> None:
        """Write what has changed."""
        async with self._turn:
            self._some.clear()
            self._plenty.clear()
            self._noted = 0
            written = {name: self[name] for name in self._unsaved}
            for batch in batches(self._put(name, status) for name, status in written.items()):
                await self._store.commit(*batch, fence=self._fence)
            for name, status in written.items():
                if self._statuses.get(name) is status:
                    del self._unsaved[name]

    async def keep_saving(self) -> None:
        """Write what has changed, every second or after so many events, as long as the term lasts."""
        while True:
            await self._some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_SECONDS):
                    await self._plenty.wait()
            await self.save()

    async def beat(self) -> None:
        """Renew all progress now and then: without events it would look abandoned, and hold back compaction."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            page = await self._store.scan(EVENTS_KEY, limit=1)
            newest = page.entries[0].revision if page.entries else 0
            for name, status in self._statuses.items():
                idle = newest <= status.revision < page.revision and not status.reset
                self.note(name, revision=page.revision if idle else status.revision)

    async def forget_all_but(self, names: Collection[str]) -> None:
        """Remove what deleted sinks left behind."""
        found = [entry.key async for entry in entries_of(self._store, CURSORS)]
        ops: list[Op] = [Delete(key) for key in found if key.removeprefix(CURSORS) not in names]
        for name in sorted(self._letters.senders() - set(names)):
            ops += [Delete(letter_key(name, event_id)) for event_id in self._letters.of(name)]
        for batch in batches(ops):
            await self._store.commit(*batch, fence=self._fence)

    def _put(self, name: str, status: SinkStatus) -> Put:
        now, letters = self._clock.now(), self._letters.count(name)
        return Put(CURSORS + name, CODEC.encode(msgspec.structs.replace(status, at=now, dead_letters=letters)))
