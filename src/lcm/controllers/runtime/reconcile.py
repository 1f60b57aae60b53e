"""Looks at every object of a kind again and again: when it changed, when asked to, and at least once in a while.

A controller is a function that is told a name, does one thing and says when it wants to look again. It has no `try`:
what its errors mean for the next look is decided here, once.

| error | next look |
| --- | --- |
| Conflict, Relist | at once; if that goes on, soon |
| Gone | none |
| Later | after what it says, longer each time |
| Stuck, Refused | after seconds, then minutes: somebody must help first |
| what nobody expects: a bug of ours | after minutes, of this object alone: the others can do nothing for it |
| Deposed | none by us: it rises and ends the term |
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import R, Ref, Seen, ref_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Deposed, Gone, Later, LcmError, Refused, Relist, Stuck
from lcm.system.tasks import together

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


CONCURRENCY: Final = 16
RESYNC: Final = timedelta(seconds=30)
SOON: Final = timedelta(seconds=0.1)
LATE: Final = timedelta(seconds=5)
LATEST: Final = timedelta(minutes=5)
"""Nothing that merely has to wait or be repaired is left alone for longer, unless the other side said so."""

_DOUBLINGS: Final = 16
_LONGEST: Final = timedelta(hours=1)
"""No timer is longer, unless looks are to be rarer still: clocks are set, and machines sleep."""
_log: Final = structlog.get_logger()


class Again(msgspec.Struct, frozen=True):
    """When to look again; None: when something changes."""

    after: timedelta | None


DONE: Final = Again(None)


def after(span: timedelta) -> Again:
    """Look again after a while, or earlier if something changes."""
    return Again(span)


def at(moment: datetime, now: datetime) -> Again:
    """Look again at a moment, or earlier if something changes."""
    return Again(max(moment - now, AT_ONCE))


@dataclass(slots=True)
class _Trouble:
    """What is wrong with one key, and how often in a row it was."""

    failures: int = 0
    said: str = ""
    bug: bool = False


def never(_: object) -> bool:
    """Say of nothing that it rests."""
    return False


class Runtime(Generic[R]):
    """One controller: its function, the kind it looks after, and the pace."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[Ref[R]], Awaitable[Again]],
        cache: Cache,
        kind: type[R],
        *,
        clock: Clock,
        chance: Callable[[], float],
        concurrency: int = CONCURRENCY,
        resync: timedelta | Callable[[], timedelta] = RESYNC,
        resting: Callable[[R], bool] = never,
        troubled: Callable[[Ref[R], Exception], Awaitable[object]] | None = None,
    ) -> None:
        """Look at `concurrency` objects at once, and at each at least every `resync`, which may change meanwhile.

        What is `resting` is looked at only when it changes, when asked to, or when it gave a moment.
        Who wants to hear of what nobody expects, each time that it happens, is `troubled`.
        """
        self._name = name
        self._reconcile = reconcile
        self._cache = cache
        self._kind = kind
        self._clock = clock
        self._chance = chance
        self._concurrency = concurrency
        self._resync = resync
        self._resting = resting
        self._met_bug = troubled
        self._queue: Queue[Ref[R]] = Queue()
        self._troubles: dict[Ref[R], _Trouble] = {}
        self.looks = 0
        """How often it has looked, for `/metrics`."""
        self.looked_at: datetime | None = None
        """When it last did."""

    @property
    def waiting(self) -> int:
        """Count what is due and waits for its turn."""
        return len(self._queue)

    @property
    def troubled(self) -> int:
        """Count what could not be done at the last attempt."""
        return len(self._troubles)

    async def run(self) -> None:
        """Look at everything, then at what changes, until cancelled or until an error rises."""
        await self._cache.ready()
        end = self._cache.subscribe(self._note)
        _log.info("controller started", controller=self._name)
        try:
            for resource in self._cache.all(self._kind):
                self.poke(ref_of(resource))
            await together(*(self._work() for _ in range(self._concurrency)))
        finally:
            end()
            self._queue.clear()
            _log.info("controller stopped", controller=self._name)

    def poke(self, ref: Ref[R]) -> None:
        """Have an object looked at now."""
        self._queue.add(ref)

    def _note(self, seen: Seen) -> None:
        if seen.ref.kind is self._kind:
            self.poke(seen.ref)

    async def _work(self) -> None:
        while True:
            ref = await self._queue.take()
            try:
                self._plan(ref, await self._look(ref))
            finally:
                self._queue.done(ref)

    async def _look(self, ref: Ref[R]) -> Again:
        self.looks += 1
        self.looked_at = self._clock.now()
        try:
            again = await self._reconcile(ref)
        except Gone:
            again = DONE
        except (Conflict, Relist, Later, Stuck, Refused) as error:
            return Again(self._delay(ref, error))
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - one object's bug must not take the others' controller away
            again = Again(self._delay(ref, error))
            await self._complain(ref, error)
            return again
        self._recovered(ref)
        return again

    async def _complain(self, ref: Ref[R], error: Exception) -> None:
        if self._met_bug is None:
            return
        try:
            await self._met_bug(ref, error)
        except Deposed:
            raise
        except LcmError as refused:
            _log.warning("cannot complain", controller=self._name, object=str(ref), error=str(refused))

    def _plan(self, ref: Ref[R], again: Again) -> None:
        trouble, resource = self._troubles.get(ref), self._cache.get(ref)
        spans = [min(again.after, max(_LONGEST, self._every()))] if again.after is not None else []
        if resource is not None and not (trouble and trouble.bug) and not self._resting(resource):
            spans.append(self._interval())
        if spans:
            self._queue.add(ref, min(spans))

    def _interval(self) -> timedelta:
        return self._every() * (0.9 + self._chance() / 5)  # what began at one moment does not stay together

    def _every(self) -> timedelta:
        return self._resync() if callable(self._resync) else self._resync

    def _delay(self, ref: Ref[R], error: Exception) -> timedelta:
        trouble = self._troubles.setdefault(ref, _Trouble())
        trouble.failures += 1
        trouble.bug = not isinstance(error, LcmError)
        self._tell(ref, trouble, error)
        doubled = 2 ** min(trouble.failures - 1, _DOUBLINGS)
        match error:
            case Conflict() | Relist():
                span = AT_ONCE if trouble.failures == 1 else min(SOON * doubled, LATE)
            case Later():
                span = min(error.after * doubled, max(error.after, LATEST))
            case LcmError():
                span = min(LATE * doubled, LATEST)
            case _:
                span = LATEST
        return span * (1 + self._chance() / 2)

    def _tell(self, ref: Ref[R], trouble: _Trouble, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, Conflict | Relist) or said == trouble.said:
            return
        trouble.said = said
        tell = _log.warning if isinstance(error, Later) else _log.error
        trace = {} if isinstance(error, LcmError) else {"exc_info": error}
        tell("cannot go on", controller=self._name, object=str(ref), error=said, **trace)

    def _recovered(self, ref: Ref[R]) -> None:
        trouble = self._troubles.pop(ref, None)
        if trouble is not None and trouble.said:
            _log.info("goes on again", controller=self._name, object=str(ref), failures=trouble.failures)
