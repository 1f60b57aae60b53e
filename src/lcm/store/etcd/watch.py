"""Watches on etcd: list, watch and resume without gap or duplicate. Made by the etcd engine.

A pump reads the stream into a bounded queue and takes it up again after every cut, from the last revision it delivered.
While a restore is under way it delivers nothing; when that is over it says Relist.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Self

from lcm.model.base.errors import Later, LcmError, Relist, Stuck
from lcm.store.base import Change, Changed, compacted
from lcm.store.etcd.keys import EPOCH_KEY, Keys
from lcm.store.etcd.wire import Message, Wire, pause, rpc
from lcm.store.hub import CLOSED, TOO_SLOW

RESTORED: Final = "the store was restored; list again"

_EPOCH_ID: Final = 1
_KEYS_ID: Final = 2
_MAX_REFUSALS: Final = 3
_DELETE: Final = rpc.Event.DELETE


class EtcdWatch:
    """One reader and the pump that feeds it. The pump starts with the first read."""

    def __init__(
        self,
        wire: Wire,
        keys: Keys,
        prefix: str,
        *,
        after: int,
        backlog: int,
        history: Callable[[], Awaitable[int]],
        on_end: Callable[["EtcdWatch"], None],
    ) -> None:
        """Watch a prefix. `history` reads the revision of the last restore, 0 before any; Later while one goes on."""
        self._wire = wire
        self._keys = keys
        self._low, self._high = keys.span(prefix)
        self._after = after
        self._backlog = backlog
        self._history = history
        self._on_end = on_end
        self._epoch: int | None = None
        self._joined = 0
        self._caught_up = False
        self._failures = self._refusals = 0
        self._commit: list[Message] = []
        self._queue: deque[Changed] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changed:
        while self._error is None:
            if self._queue:
                self._room.set()
                return self._queue.popleft()
            if self._pump is None:
                self._pump = asyncio.create_task(self._run())
                self._pump.add_done_callback(self._stopped)
            self._news.clear()
            await self._news.wait()
        raise self._error

    async def aclose(self) -> None:
        await self.end(Relist(CLOSED))

    async def end(self, error: LcmError) -> None:
        """Fail, and stop the pump."""
        self.fail(error)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    def fail(self, error: BaseException) -> None:
        """Let the reader get this error, or the one that came before."""
        self._error = self._error or error
        self._news.set()
        self._on_end(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _run(self) -> None:
        while self._error is None:
            try:
                await self._follow()
            except Later:
                self._failures += 1
                await asyncio.sleep(pause(self._failures))
            except LcmError as error:
                self.fail(error)

    async def _follow(self) -> None:
        self._commit.clear()
        epoch, keys = self._requests()
        async with aclosing(self._wire.watch(epoch, keys)) as responses:
            async for response in responses:
                await self._take(response)

    def _requests(self) -> tuple[Message, Message]:
        # From `after` itself, not from the next: only so does etcd tell that `after` was compacted.
        start = max(1, self._after)
        low, high = self._keys.span(EPOCH_KEY)
        epoch = rpc.WatchCreateRequest(key=low, range_end=high, watch_id=_EPOCH_ID)
        keys = rpc.WatchCreateRequest(
            key=self._low,
            range_end=self._high,
            watch_id=_KEYS_ID,
            start_revision=start,
            progress_notify=True,
            fragment=True,
        )
        return rpc.WatchRequest(create_request=epoch), rpc.WatchRequest(create_request=keys)

    async def _take(self, response: Message) -> None:
        if response.canceled:
            raise self._refusal(response)
        if response.watch_id == _EPOCH_ID:
            if response.events:
                raise Later(RESTORED)
        elif response.created:
            self._joined = response.header.revision
            await self._check_epoch()
            self._failures = self._refusals = 0
        elif response.events:
            await self._deliver(response.events, last=not response.fragment)
        else:
            self._after = max(self._after, response.header.revision)

    def _refusal(self, response: Message) -> LcmError:
        if response.compact_revision:
            return compacted(self._after)
        self._refusals += 1
        if self._refusals < _MAX_REFUSALS:
            return Later(response.cancel_reason)
        return Stuck("etcd-watch", f"etcd refuses to watch: {response.cancel_reason}")

    async def _check_epoch(self) -> None:
        """Make sure that what was read is not the clearing of the store by a restore."""
        epoch = await self._history()
        if self._epoch not in {None, epoch} or self._after < epoch:
            raise Relist(RESTORED)
        self._epoch = epoch

    async def _deliver(self, events: Sequence[Message], *, last: bool) -> None:
        if any(event.type == _DELETE for event in events):
            await self._check_epoch()
        # A stream that keeps up carries one commit per response; more of them are history.
        live = last and not self._commit and events[0].kv.mod_revision == events[-1].kv.mod_revision > self._joined
        for event in events:
            if self._commit and self._commit[0].kv.mod_revision != event.kv.mod_revision:
                await self._close_commit(live=live)
            self._commit.append(event)
        if last:
            await self._close_commit(live=live)

    async def _close_commit(self, *, live: bool) -> None:
        """Pass on the commit whose events are now complete."""
        events, self._commit = self._commit, []
        revision = events[0].kv.mod_revision
        if revision <= self._after:
            return
        self._caught_up |= live and not self._queue
        while len(self._queue) >= self._backlog:
            if live and self._caught_up:
                raise Relist(TOO_SLOW)
            self._room.clear()
            await self._room.wait()
        self._queue.append(Changed(revision, [self._change(event) for event in events]))
        self._after = revision
        self._news.set()

    def _change(self, event: Message) -> Change:
        if event.type == _DELETE:
            return Change(self._keys.key(event.kv.key), None)
        entry = self._keys.entry(event.kv)
        return Change(entry.key, entry)

    def _stopped(self, pump: "asyncio.Task[None]") -> None:
        if not pump.cancelled() and (error := pump.exception()) is not None:
            self.fail(error)
