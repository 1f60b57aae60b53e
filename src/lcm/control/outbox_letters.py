"""The dead letters of all sinks, as far as those who deliver must know them. Used by `outbox`."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
import structlog

from lcm.control.sinks import CODEC, LETTERS, entries_of, letter_key
from lcm.model.errors import Conflict, Stuck
from lcm.model.resource import Moment
from lcm.model.sink import DeadLetter
from lcm.store.base import Delete, Entry, Fence, Op, Put, Store

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
