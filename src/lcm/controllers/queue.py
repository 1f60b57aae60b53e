"""What there is to look at, and when: each key once, however often it was asked for. Used by `runtime`.

A key that is asked for while somebody looks at it comes again afterwards, and is never looked at twice at once.
"""

import asyncio
import math
from collections.abc import Hashable
from datetime import timedelta
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

AT_ONCE: Final = timedelta(0)


class Queue(Generic[K]):
    """Keys with one moment each, the earliest that was asked for; those whose moment came are first in, first out."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._taken: dict[K, float] = {}
        """What somebody looks at now, and when it is wanted again."""

    def add(self, key: K, after: timedelta = AT_ONCE) -> None:
        """Ask for a key after a while. It comes earlier if it was asked for earlier."""
        due = _now() + max(0.0, after.total_seconds())
        if key in self._taken:
            self._taken[key] = min(self._taken[key], due)
        elif key not in self._queued:
            self._plan(key, due)

    async def take(self) -> K:
        """Wait for the next key, which nobody else takes until it is `done`."""
        key = await self._ready.get()
        self._queued.discard(key)
        self._taken[key] = math.inf
        return key

    def done(self, key: K) -> None:
        """Give a key back."""
        due = self._taken.pop(key)
        if due < math.inf:
            self._plan(key, due)

    def clear(self) -> None:
        """Forget every key that nobody has taken."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queued.clear()
        self._ready = asyncio.Queue()

    def __len__(self) -> int:
        """Count the keys that wait for somebody now."""
        return len(self._queued)

    def _plan(self, key: K, due: float) -> None:
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        if due <= _now():
            self._ripen(key)
        else:
            self._timers[key] = asyncio.get_running_loop().call_at(due, self._ripen, key)

    def _ripen(self, key: K) -> None:
        self._timers.pop(key, None)
        self._queued.add(key)
        self._ready.put_nowait(key)


def _now() -> float:
    return asyncio.get_running_loop().time()
