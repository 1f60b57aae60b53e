"""Reads of single keys in etcd, all that are asked for at a time in one transaction, and where the pages of scans end.

Used by `store.etcd.engine`. A call costs far more than a key in it. So a read that is asked for while others are under
way waits for the next transaction, together with all that are asked for meanwhile. It is never answered by a
transaction that was sent before: what was committed before a read began is in its answer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from lcm.model.base.errors import LcmError, TooLarge, Unreachable
from lcm.store.base import MAX_OPERATIONS, Entry
from lcm.store.etcd.keys import EtcdKeys
from lcm.store.etcd.transactions import build_reads, restoring_error
from lcm.store.etcd.wire import TXN, EtcdClient, Message
from lcm.store.hub import CLOSED

PATIENCE_SECONDS: Final = 0.05
"""How long a call may keep later reads waiting: one that hangs must not delay them all."""

_MOST_PAGES: Final = 4_096

Found = Entry | LcmError | None
Answer = asyncio.Future[Entry | None]


class GroupedReads:
    """Reads the newest states of keys."""

    def __init__(self, client: EtcdClient, keys: EtcdKeys) -> None:
        self._client = client
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, list[Answer]] = {}
        self._calls: set[asyncio.Task[Mapping[str, Found]]] = set()
        self._next: asyncio.Handle | None = None
        """The next call, when it is due."""

    async def read(self, key: str) -> Entry | None:
        """Return the newest state of a key; None means that there is no such key."""
        return await self._ask(key)

    async def read_all(self, keys: Iterable[str]) -> Sequence[Entry | None]:
        """Return the newest states of several keys."""
        return await asyncio.gather(*map(self._ask, keys))

    def _ask(self, key: str) -> Answer:
        answer: Answer = self._loop.create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._next is None:
            self._schedule(PATIENCE_SECONDS if self._calls else 0)
        return answer

    def _schedule(self, delay: float) -> None:
        """Make the next call after a while, or with all that is asked for in this turn of the loop."""
        if self._next is not None:
            self._next.cancel()
        self._next = self._loop.call_later(delay, self._begin) if delay else self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Ask for the keys that somebody waits for."""
        self._next = None
        asked = {key: self._waiting.pop(key) for key in list(self._waiting)[:MAX_OPERATIONS]}
        call = asyncio.create_task(self._read_keys(list(asked)))
        self._calls.add(call)
        call.add_done_callback(partial(self._finish, asked))

    def _finish(self, asked: Mapping[str, Sequence[Answer]], call: asyncio.Task[Mapping[str, Found]]) -> None:
        self._calls.discard(call)
        error = Unreachable(CLOSED) if call.cancelled() else call.exception()
        for key, answers in asked.items():
            _settle(answers, error or call.result()[key])
        if self._waiting:
            self._schedule(0)

    async def _read_keys(self, keys: Sequence[str]) -> Mapping[str, Found]:
        try:
            answer = await self._client.call_with_retry(TXN, build_reads(self._keys, keys))
        except TooLarge:
            if len(keys) == 1:
                raise
            half = len(keys) // 2
            return {**await self._read_keys(keys[:half]), **await self._read_keys(keys[half:])}
        if not answer.succeeded:
            raise restoring_error()
        states = (response.response_range.kvs for response in answer.responses)
        return {key: self._decode(kvs[0]) if kvs else None for key, kvs in zip(keys, states, strict=True)}

    def _decode(self, kv: Message) -> Entry | LcmError:
        try:
            return self._keys.decode_entry(kv)
        except LcmError as error:
            return error


def _settle(answers: Sequence[Answer], found: Entry | BaseException | None) -> None:
    for answer in answers:
        if answer.done():
            continue  # who asked no longer waits
        if isinstance(found, BaseException):
            answer.set_exception(found)
        else:
            answer.set_result(found)


class PageEnds:
    """Where the pages of earlier scans ended. etcd counts all keys of a range, however few it is to return.

    A page that is asked for again ends where it ended before; keys may have come and gone in it meanwhile.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, bytes] = OrderedDict()

    def find(self, low: bytes, high: bytes) -> bytes:
        """Return where the page that begins at a key is to end: at the end of its range if nothing is known of it."""
        return min(high, self._ends.get(low, high))

    def note(self, low: bytes, last: bytes) -> bytes:
        """Note the last key of a page, if it is the largest that began there, and return where the next one begins."""
        end = last + b"\0"
        self._ends[low] = max(end, self._ends.get(low, end))
        self._ends.move_to_end(low)
        if len(self._ends) > _MOST_PAGES:
            self._ends.popitem(last=False)
        return end

    def forget(self, low: bytes) -> None:
        """Forget where a page ended."""
        self._ends.pop(low, None)
