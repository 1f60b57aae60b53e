"""How far each sink has got: in memory for who delivers, and in the store for who comes after. Used by `outbox`.

Progress is written in groups: what a dying process did not write was sent, and is sent again. A dead letter is written
together with the progress past it, so that it is neither lost nor skipped.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

from lcm.control.outbox_letters import MAX_LETTERS, Brief, Letters
from lcm.control.sinks import CODEC, CURSORS, batches, entries_of, letter_key
from lcm.model.clock import Clock
from lcm.model.sink import DeadLetter, SinkStatus
from lcm.store.base import EVENTS_KEY, Delete, Entry, Fence, Op, Put, Store

LARGEST_LETTER: Final = 250_000
SAVE_SECONDS: Final = 1.0
SAVE_EVENTS: Final = 100
BEAT_SECONDS: Final = 300.0

_log: Final = structlog.get_logger()


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
