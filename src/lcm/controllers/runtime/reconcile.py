"""The reconcile loop of a controller, and the work queue behind it.

A controller is a function that receives the name of an object, takes one action and returns when to look again.
`Runtime` calls it for every object of a kind: when the object changed, when asked to, and at least once per resync
interval. The function has no `try`. What an error means for the next attempt is decided here, once.

| error | next attempt |
| --- | --- |
| Conflict, Relist | at once; if it repeats, after a short backoff |
| Gone | none |
| Later | after the delay that it names, doubled with each failure |
| Stuck, Refused | after seconds, later minutes: a person has to help first |
| any other exception, which is a bug of ours | after minutes, for this object only; other objects go on |
| Deposed | none here: it is raised and ends the leader's term |

`WorkQueue` holds each key at most once, however often it was added. A key that is added while it is being worked on
comes again afterwards, and is never worked on twice at the same time.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange, R, Ref, ref_of
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Deposed, Gone, Later, LcmError, Refused, Relist, Stuck
from lcm.model.kinds.registry import Resource
from lcm.system.tasks import TimeSlice, run_until_first_ends

K = TypeVar("K", bound=Hashable)

NO_DELAY: Final = timedelta(0)


class WorkQueue(Generic[K]):
    """Keys with one due time each, the earliest that was asked for. Due keys are taken first in, first out."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()
        """Those who wait for a key, the longest first."""
        self._queued: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._in_progress: dict[K, float] = {}
        """Keys that are being worked on, with the time at which each is due again."""

    def add(self, key: K, after: timedelta = NO_DELAY) -> None:
        """Make a key due after a delay. If it is already due earlier, the earlier time stays."""
        if key in self._queued:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() if after is NO_DELAY else loop.time() + max(0.0, after.total_seconds())
        if key in self._in_progress:
            self._in_progress[key] = min(self._in_progress[key], due)
        else:
            self._schedule(key, due, loop)

    async def take(self) -> K:
        """Wait for the next due key. Nobody else gets it before `finish` is called."""
        while not self._ready:
            await self._wait_for_key()
        key = self._ready.popleft()
        self._queued.discard(key)
        self._in_progress[key] = math.inf
        return key

    def finish(self, key: K) -> None:
        """Return a key that was taken; it is queued again if it was added meanwhile."""
        due = self._in_progress.pop(key)
        if due < math.inf:
            self._schedule(key, due, asyncio.get_running_loop())

    def clear(self) -> None:
        """Remove every key that is not being worked on."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queued.clear()
        self._ready.clear()

    def __len__(self) -> int:
        """Return the number of keys that are due and not taken."""
        return len(self._queued)

    def _schedule(self, key: K, due: float, loop: asyncio.AbstractEventLoop) -> None:
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        if due <= loop.time():
            self._make_due(key)
        else:
            self._timers[key] = loop.call_at(due, self._make_due, key)

    def _make_due(self, key: K) -> None:
        self._timers.pop(key, None)
        self._queued.add(key)
        self._ready.append(key)
        self._wake_taker()

    async def _wait_for_key(self) -> None:
        taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        try:
            await taker
        except asyncio.CancelledError:
            if taker.cancelled():
                with suppress(ValueError):  # whoever woke the next taker meanwhile has removed it
                    self._takers.remove(taker)
            elif self._ready:
                self._wake_taker()  # another one gets the key for which this one was woken
            raise

    def _wake_taker(self) -> None:
        while self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return


class Rests(Generic[K]):
    """Until when keys rest, by the moment: those that are not due soon cost nothing."""

    def __init__(self) -> None:
        self._order: list[tuple[datetime, int, K]] = []
        self._due: dict[K, datetime] = {}
        self._numbers = count()

    def add(self, key: K, due: datetime) -> None:
        """Set until when a key rests; it replaces what was set before."""
        if self._due.get(key) != due:
            self._due[key] = due
            heapq.heappush(self._order, (due, next(self._numbers), key))

    def take(self, until: datetime) -> Sequence[K]:
        """Remove the keys that are due until a moment, and return them, the first first."""
        taken = []
        while self._order and self._order[0][0] <= until:
            due, _, key = heapq.heappop(self._order)
            if self._due.get(key) == due:
                del self._due[key]
                taken.append(key)
        return taken


CONCURRENCY: Final = 16
RESYNC: Final = timedelta(seconds=30)
CONFLICT_BACKOFF: Final = timedelta(seconds=0.1)
FAILURE_BACKOFF: Final = timedelta(seconds=5)
MAX_BACKOFF: Final = timedelta(minutes=5)
"""The longest backoff after a failure, unless the other side asked for a longer one."""

_DOUBLINGS: Final = 16
_MAX_TIMER: Final = timedelta(hours=1)
"""The longest timer, unless the resync interval is longer: clocks are adjusted, and machines sleep.

What rests for longer has none until it is due within that time.
"""
_LOOKS_AT_ONCE: Final = 100
"""So many objects take less time together than a turn of the loop may."""
_log: Final = structlog.get_logger()


class Requeue(msgspec.Struct, frozen=True):
    """When to look at an object again. `after` None means: when it changes."""

    after: timedelta | None


DONE: Final = Requeue(None)


def requeue_at(moment: datetime, now: datetime) -> Requeue:
    """Look again at a moment, or earlier if the object changes."""
    return Requeue(max(moment - now, NO_DELAY))


@dataclass(slots=True)
class _FailureState:
    """The failures of one key: how many in a row, and the error that was logged last."""

    failures: int = 0
    logged_error: str = ""
    bug: bool = False


class Runtime(Generic[R]):
    """One controller: its reconcile function, the kind that it handles, and how often it looks."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[Ref[R]], Awaitable[Requeue]],
        cache: Cache,
        kind: type[R],
        *,
        clock: Clock,
        chance: Callable[[], float],
        concurrency: int = CONCURRENCY,
        resync: Callable[[], timedelta] = lambda: RESYNC,
        resting: Callable[[R], Requeue | None] = lambda _: None,
        concerns: Callable[[ObjectChange], bool] = lambda _: True,
        report_bug: Callable[[Ref[R], Exception], Awaitable[object]] | None = None,
        counts: ControllerCounts | None = None,
    ) -> None:
        """Reconcile up to `concurrency` objects at once, and each at least every `resync`, which may vary.

        Nothing follows from the passing of time for an object for which `resting` returns something, or only from then
        on: it is reconciled then, when it changes, and when asked to. `concerns` tells whether anything can follow from
        a change. `report_bug` is called with every unexpected exception, which is a bug of ours. Looks are counted in
        `counts`, by the controller's name.
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
        self._concerns = concerns
        self._on_bug = report_bug
        self._queue: WorkQueue[Ref[R]] = WorkQueue()
        self._rests: Rests[Ref[R]] = Rests()
        self._failures: dict[Ref[R], _FailureState] = {}
        self._turns, self._time_slice = asyncio.Lock(), TimeSlice()
        self._looks = (counts or ControllerCounts()).looks_of(name)
        self._looks.measure_queue = self._queue.__len__

    async def run(self) -> None:
        """Reconcile all objects, then those that change, until cancelled or until an error is raised."""
        await self._cache.ready()
        _log.info("controller started", controller=self._name)
        try:
            await run_until_first_ends(self._follow_cache(), *(self._work_loop() for _ in range(self._concurrency)))
        finally:
            self._queue.clear()
            _log.info("controller stopped", controller=self._name)

    def enqueue(self, ref: Ref[R]) -> None:
        """Queue an object to be reconciled now."""
        self._queue.add(ref)

    async def enqueue_all_on(self, kind: type[Resource]) -> None:
        """Queue every object, in turns, each time that something of another kind changed; until cancelled."""
        changed = asyncio.Event()
        end = self._cache.subscribe(lambda seen: changed.set() if seen.ref.kind is kind else None)
        try:
            while True:
                await changed.wait()
                changed.clear()
                for resource in self._cache.all(self._kind):
                    self.enqueue(ref_of(resource))
                    await self._time_slice.yield_if_over()
        finally:
            end()

    async def _follow_cache(self) -> None:
        end = self._cache.subscribe(self._on_change)
        try:
            await self._queue_known()
            while True:
                await asyncio.sleep(_MAX_TIMER.total_seconds() / 2)
                await self._queue_due_soon()
        finally:
            end()

    async def _queue_known(self) -> None:
        """Queue all objects, in turns: those that rest till a time for then."""
        for place, resource in enumerate(self._cache.all(self._kind)):
            rest = self._resting(resource) or DONE
            if rest.after is None:
                self.enqueue(ref_of(resource))
            else:
                self._rest(ref_of(resource), rest.after)
            if place % _LOOKS_AT_ONCE == 0:
                await self._time_slice.yield_if_over()

    async def _queue_due_soon(self) -> None:
        """Queue the objects whose rest ends soon, in turns; again, if a clock was adjusted since."""
        for place, ref in enumerate(self._rests.take(until=self._clock.now() + _MAX_TIMER)):
            resource = self._cache.get(ref)
            rest = self._resting(resource) if resource is not None else None
            if rest is not None and rest.after is not None:
                self._rest(ref, rest.after)
            if place % _LOOKS_AT_ONCE == 0:
                await self._time_slice.yield_if_over()

    def _rest(self, ref: Ref[R], after: timedelta) -> None:
        """Remember till when an object rests, and queue it for then if that is soon."""
        self._rests.add(ref, self._clock.now() + after)
        if after <= _MAX_TIMER:
            self._queue.add(ref, after)

    def _on_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is self._kind and (self._concerns(seen) or seen.ref in self._failures):
            self.enqueue(seen.ref)

    async def _work_loop(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            ref = await self._queue.take()
            try:
                if self._queue and self._time_slice.is_over():  # neither taking nor a quick look suspends
                    async with self._turns:  # one of us a turn
                        await self._time_slice.yield_if_over()
                began = loop.time()
                self._schedule_next(ref, await self._reconcile_once(ref))
                self._looks.add(loop.time() - began)
            finally:
                self._queue.finish(ref)

    async def _reconcile_once(self, ref: Ref[R]) -> Requeue:
        try:
            again = await self._reconcile(ref)
        except Gone:
            again = DONE
        except (Conflict, Relist, Later, Stuck, Refused) as error:
            return Requeue(self._backoff(ref, error))
        except Deposed:
            raise
        except Exception as error:  # noqa: BLE001 - one object's bug must not take the others' controller away
            again = Requeue(self._backoff(ref, error))
            await self._report_bug(ref, error)
            return again
        trouble = self._failures.pop(ref, None)
        if trouble is not None and trouble.logged_error:
            _log.info("goes on again", controller=self._name, object=str(ref), failures=trouble.failures)
        return again

    async def _report_bug(self, ref: Ref[R], error: Exception) -> None:
        if self._on_bug is None:
            return
        try:
            await self._on_bug(ref, error)
        except Deposed:
            raise
        except LcmError as refused:
            _log.warning("cannot raise the alert", controller=self._name, object=str(ref), error=str(refused))

    def _schedule_next(self, ref: Ref[R], again: Requeue) -> None:
        trouble, resource, after = self._failures.get(ref), self._cache.get(ref), again.after
        rest = self._resting(resource) if resource is not None else DONE
        if rest is not None and rest.after is not None:
            self._rest(ref, rest.after)
        if rest is not None and rest.after is not None and rest.after > _MAX_TIMER:
            after = None
        elif after is not None and after > _MAX_TIMER:
            after = min(after, max(_MAX_TIMER, self._resync()))
        if rest is None and not (trouble and trouble.bug):
            # jitter: objects that were queued together drift apart
            usual = self._resync() * (0.9 + self._chance() / 5)
            after = usual if after is None else min(after, usual)
        if after is not None:
            self._queue.add(ref, after)

    def _backoff(self, ref: Ref[R], error: Exception) -> timedelta:
        trouble = self._failures.setdefault(ref, _FailureState())
        trouble.failures += 1
        self._looks.errors[type(error).__name__] += 1
        trouble.bug = not isinstance(error, LcmError)
        self._log_failure(ref, trouble, error)
        doubled = 2 ** min(trouble.failures - 1, _DOUBLINGS)
        match error:
            case Conflict() | Relist():
                span = NO_DELAY if trouble.failures == 1 else min(CONFLICT_BACKOFF * doubled, FAILURE_BACKOFF)
            case Later():
                span = min(error.after * doubled, max(error.after, MAX_BACKOFF))
            case LcmError():
                span = min(FAILURE_BACKOFF * doubled, MAX_BACKOFF)
            case _:
                span = MAX_BACKOFF
        return span * (1 + self._chance() / 2)

    def _log_failure(self, ref: Ref[R], trouble: _FailureState, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, Conflict | Relist) or said == trouble.logged_error:
            return
        trouble.logged_error = said
        tell = _log.warning if isinstance(error, Later) else _log.error
        trace = {} if isinstance(error, LcmError) else {"exc_info": error}
        tell("cannot go on", controller=self._name, object=str(ref), error=said, **trace)
