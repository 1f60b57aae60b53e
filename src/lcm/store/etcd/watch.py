"""Watches on etcd that resume without gap or duplicate. Made by `store.etcd.engine`.

A pump task reads the stream into a bounded queue and resumes it after every lost connection, from the last revision it
delivered. While a restore is in progress it delivers nothing; when that is over the watch ends with Relist.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, Self

from lcm.model.base.errors import Later, LcmError, Relist, Stuck
from lcm.store.base import Change, CommitChanges, compacted_error
from lcm.store.etcd.keys import EPOCH_KEY, EtcdKeys
from lcm.store.etcd.wire import EtcdClient, Message, backoff_seconds, rpc
from lcm.store.hub import CLOSED, TOO_SLOW

RESTORED: Final = "the store was restored; list again"

_EPOCH_ID: Final = 1
_KEYS_ID: Final = 2
_MAX_REFUSALS: Final = 3
_DELETE: Final = rpc.Event.DELETE


class EtcdWatch:
    """One reader and the pump task that feeds it. The pump starts with the first read."""

    def __init__(
        self,
        wire: EtcdClient,
        keys: EtcdKeys,
        prefixes: tuple[str, ...],
        *,
        after: int,
        backlog: int,
        history: Callable[[], Awaitable[int]],
        on_end: Callable[["EtcdWatch"], None],
    ) -> None:
        """Watch some prefixes. Of several, etcd tells all changes, and others are left out here.

        `history` reads the revision of the last restore, 0 if there was none; it raises Later while one is in
        progress.
        """
        self._client = wire
        self._keys = keys
        self._prefixes = prefixes
        self._low, self._high = keys.encode_range(prefixes[0] if len(prefixes) == 1 else "")
        self._after = after
        self._backlog = backlog
        self._history = history
        self._on_end = on_end
        self._epoch: int | None = None
        self._joined = 0
        self._caught_up = False
        self._failures = self._refusals = 0
        self._commit: list[Message] = []
        self._queue: deque[CommitChanges] = deque()
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CommitChanges:
        while self._error is None:
            if self._queue:
                self._room.set()
                return self._queue.popleft()
            if self._pump is None:
                self._pump = asyncio.create_task(self._run())
                self._pump.add_done_callback(self._on_pump_done)
            self._news.clear()
            await self._news.wait()
        raise self._error

    async def aclose(self) -> None:
        await self.end(Relist(CLOSED))

    async def end(self, error: LcmError) -> None:
        """Fail with this error, and stop the pump."""
        self.fail(error)
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    def fail(self, error: BaseException) -> None:
        """Make the reader raise this error, unless it already has one."""
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
                await asyncio.sleep(backoff_seconds(self._failures))
            except LcmError as error:
                self.fail(error)

    async def _follow(self) -> None:
        self._commit.clear()
        epoch, keys = self._build_requests()
        async with aclosing(self._client.watch(epoch, keys)) as responses:
            async for response in responses:
                await self._handle_response(response)

    def _build_requests(self) -> tuple[Message, Message]:
        # Start at `after` itself, not at the next revision: only then does etcd report that `after` was compacted.
        start = max(1, self._after)
        low, high = self._keys.encode_range(EPOCH_KEY)
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

    async def _handle_response(self, response: Message) -> None:
        if response.canceled:
            raise self._cancel_error(response)
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

    def _cancel_error(self, response: Message) -> LcmError:
        if response.compact_revision:
            return compacted_error(self._after)
        self._refusals += 1
        if self._refusals < _MAX_REFUSALS:
            return Later(response.cancel_reason)
        return Stuck("etcd-watch", f"etcd refuses to watch: {response.cancel_reason}")

    async def _check_epoch(self) -> None:
        """Make sure that the changes read are not a restore's clearing of the store."""
        epoch = await self._history()
        if self._epoch not in {None, epoch} or self._after < epoch:
            raise Relist(RESTORED)
        self._epoch = epoch

    async def _deliver(self, events: Sequence[Message], *, last: bool) -> None:
        if any(event.type == _DELETE for event in events):
            await self._check_epoch()
        # A live stream carries one commit per response; several commits in one response are history.
        live = last and not self._commit and events[0].kv.mod_revision == events[-1].kv.mod_revision > self._joined
        for event in events:
            if self._commit and self._commit[0].kv.mod_revision != event.kv.mod_revision:
                await self._finish_commit(live=live)
            self._commit.append(event)
        if last:
            await self._finish_commit(live=live)

    async def _finish_commit(self, *, live: bool) -> None:
        """Queue the commit whose events are now complete."""
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
        changes = [one for one in map(self._decode_change, events) if one.key.startswith(self._prefixes)]
        self._after = revision
        if changes:
            self._queue.append(CommitChanges(revision, changes))
            self._news.set()

    def _decode_change(self, event: Message) -> Change:
        if event.type == _DELETE:
            return Change(self._keys.decode_key(event.kv.key), None)
        entry = self._keys.decode_entry(event.kv)
        return Change(entry.key, entry)

    def _on_pump_done(self, pump: "asyncio.Task[None]") -> None:
        if not pump.cancelled() and (error := pump.exception()) is not None:
            self.fail(error)
