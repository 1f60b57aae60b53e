"""Leader election: of all processes that run a controller, only the holder of its lease acts.

`compose` runs one `ElectedController` of each kind.

A term is kept beside the loop in which its leader works, so that one who is merely busy is not deposed (`compose` gives
the thread). One whose loop does not react any more is not renewed: it cannot act, so another must.

The store rejects writes of a leader whose term is over, because they carry a fencing token. The outside world cannot do
that. So each effect first checks the term's own deadline (`providers.protocols.permit`), which passes before another
leader can be elected. The deadline counts from the moment a renewal was requested, on a clock that also counts while a
machine sleeps. Without a store there is no leader.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, NotRequired, TypedDict

import structlog

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import LeaseLine, Plane
from lcm.controllers.runtime.counts import ControllerCounts
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.controllers.runtime.terms import LeaderTerm, TermKeeper
from lcm.model.base.clock import Clock, Stopwatch
from lcm.model.base.errors import Deposed, Later, LcmError, Relist, Stuck, WentBack
from lcm.model.kinds.registry import Resource
from lcm.providers.protocols.permit import permit_scope
from lcm.settings.load import Settings
from lcm.system.tasks import cancel_and_wait, first_error, run_until_first_ends

Lead = Callable[[Plane], Coroutine[Any, Any, None]]
"""The work of a leader. It gets a plane whose writes are fenced, and is cancelled when the term ends."""
Keep = Callable[[LeaseLine], Coroutine[Any, Any, None]]
Beside = Callable[[Keep], Coroutine[Any, Any, None]]
"""Runs what keeps a term where the leader's work cannot hold it up, with a connection that belongs there."""

_RETRY: Final = 1 / 15
_OUTAGE_RETRY: Final = 1 / 5
"""After an outage of the store the lease is requested again after this part of a term."""
_WAIT_TERMS: Final = 8
"""A candidate that waits for the lease to become free requests it anyway after this many terms."""
_PAUSE_SECONDS: Final = 1.0
_HAND_OVER_SECONDS: Final = 5.0
_INTERRUPTIONS: Final = (Deposed, Later, Relist, Stuck)
_log: Final = structlog.get_logger()


class Election:
    """The candidacy of one process for one lease."""

    def __init__(
        self,
        plane: Plane,
        name: str,
        holder: str,
        *,
        ttl_seconds: int,
        stopwatch: Stopwatch,
        chance: Callable[[], float],
        beside: Beside | None = None,
        keeper: TermKeeper | None = None,
        counts: ControllerCounts | None = None,
    ) -> None:
        """Compete for the lease `name`. `holder` identifies this process to people.

        `ttl_seconds` is the length of a term: that long a dead leader blocks the lease. Terms are kept `beside` the
        loop; None means in it, by the plane. `keeper` keeps those of all elections of a process, and `counts` counts
        them.
        """
        self._plane = plane
        self._name = name
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._stopwatch = stopwatch
        self._chance = chance
        self._beside: Beside = beside or (lambda keep: keep(plane))
        self._keeper = keeper or TermKeeper(stopwatch)
        self._term: LeaderTerm | None = None
        self._logged_error = ""
        self._count = (counts or ControllerCounts()).terms_of(name)
        self._count.measure_left = self.seconds_left

    @property
    def is_leading(self) -> bool:
        """Whether this process is the leader now and may act."""
        return self._term is not None and self._term.is_valid()

    def seconds_left(self) -> float:
        """Return for how many seconds this process may still start effects; 0 if it does not lead."""
        return max(0.0, self._term.seconds_left()) if self._term is not None else 0.0

    async def run(self, lead: Lead) -> None:
        """Run `lead` whenever elected, until cancelled or until `lead` returns; then release the lease at once."""
        _log.info("election entered", lease=self._name, holder=self._holder)
        try:
            while True:
                if await self._lead_term(await self._acquire_term(), lead):
                    return
                await asyncio.sleep(_PAUSE_SECONDS * (1 + self._chance()))
        finally:
            _log.info("election left", lease=self._name, holder=self._holder)

    async def _acquire_term(self) -> LeaderTerm:
        waiting = _Vacancy(self._plane, self._name)
        try:
            return await self._request_until_elected(waiting)
        finally:
            await waiting.close()

    async def _request_until_elected(self, waiting: "_Vacancy") -> LeaderTerm:
        while True:
            asked_at = self._stopwatch.seconds()
            try:
                lease = await self._plane.acquire(self._name, self._holder, ttl_seconds=self._ttl_seconds)
                self._logged_error = ""
                if lease is not None:
                    return LeaderTerm(lease, asked_at, self._stopwatch)
                # a missed notification must not block the lease for ever
                await waiting.wait(self._ttl_seconds * _WAIT_TERMS * (0.5 + self._chance()))
            except WentBack:
                raise
            except (Later, Relist, Stuck) as error:
                if str(error) != self._logged_error:
                    self._logged_error = told = str(error)
                    _log.warning("no election without a store", lease=self._name, holder=self._holder, error=told)
                await asyncio.sleep(self._ttl_seconds * _OUTAGE_RETRY * (0.5 + self._chance()))

    async def _lead_term(self, term: LeaderTerm, lead: Lead) -> bool:
        """Lead for one term. Return whether the work has ended for good."""
        self._term = term
        self._count.elected += 1
        _log.info("elected", lease=self._name, holder=self._holder, term=term.lease.term)
        with permit_scope(term.check):
            leading = asyncio.create_task(lead(self._plane.under(term.lease.fence())))
        keeping = asyncio.create_task(self._beside(partial(self._keep, term)))
        try:
            await asyncio.wait({leading, keeping}, return_when=asyncio.FIRST_COMPLETED)
            lost = _interruption(keeping)
        finally:
            # The work ends first, then the lease is released: nobody else may lead while ours still runs.
            await self._end_term(term, leading, keeping)
        failed = _interruption(leading)
        error = lost or failed
        if error is None:
            assert not leading.cancelled(), "the work has cancelled itself"
            return True
        self._count.interrupted += 1
        event = "deposed" if isinstance(error, Deposed) else "leading interrupted"
        _log.warning(event, lease=self._name, holder=self._holder, term=term.lease.term, error=str(error))
        return False

    async def _end_term(self, term: LeaderTerm, leading: asyncio.Task[None], keeping: asyncio.Task[None]) -> None:
        try:
            await cancel_and_wait([leading])
        finally:
            self._term = None
            try:
                await cancel_and_wait([keeping])
            finally:
                await self._hand_over(term)

    async def _hand_over(self, term: LeaderTerm) -> None:
        """Release the lease. A lease that cannot be released runs out by itself."""
        leaving, key = term.is_valid(), {"lease": self._name, "holder": self._holder, "term": term.lease.term}
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._plane.release(term.lease)
        except (LcmError, TimeoutError) as error:
            if leaving:
                _log.warning("not handed over", **key, error=str(error) or "no answer in time")
        else:
            if leaving:  # otherwise it is lost already, and told as such
                _log.info("handed over", **key)

    async def _keep(self, term: LeaderTerm, line: LeaseLine) -> None:
        """Keep a term until it is lost; raises Deposed then. Nothing of the leader's loop may be touched here."""
        await run_until_first_ends(self._keeper.keep(term, line), self._watch_lease(term, line))

    async def _watch_lease(self, term: LeaderTerm, line: LeaseLine) -> None:
        """End the term when the store has lost its lease. Otherwise only the next renewal would show it."""
        while True:
            with suppress(Later, Relist, Stuck):  # the next read shows what happened meanwhile
                held = await line.lease(self._name)
                if held is not None and held.term == term.lease.term:
                    await line.wait_until_vacant(self._name)
                term.mark_lost()
                term.check()
            await asyncio.sleep(self._ttl_seconds * _RETRY)


class _Vacancy:
    """Waits for a lease to become free. One watch lasts for several waits."""

    def __init__(self, plane: Plane, name: str) -> None:
        self._plane = plane
        self._name = name
        self._watching: asyncio.Task[None] | None = None

    async def wait(self, seconds: float) -> None:
        """Wait until the lease is free, but not for longer than that. Raises what the watch raises."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._plane.wait_until_vacant(self._name))
        await asyncio.wait({self._watching}, timeout=seconds)
        if self._watching.done():
            ended, self._watching = self._watching, None
            ended.result()

    async def close(self) -> None:
        """End the watch, if there is one."""
        if self._watching is not None:
            await cancel_and_wait([self._watching])


def _interruption(task: asyncio.Task[None]) -> BaseException | None:
    """Return the error that ended a term, or None. Errors that are no interruption are raised."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if isinstance(first := first_error(error), WentBack):
        raise first
    if isinstance(error, BaseExceptionGroup):
        reasons, others = error.split(_INTERRUPTIONS)
        if others is not None:
            raise others
        return reasons
    if error is not None and not isinstance(error, _INTERRUPTIONS):
        raise error
    return error


class ControllerParts(TypedDict):
    """What every controller takes by name, for those that make several at once."""

    clock: Clock
    stopwatch: Stopwatch
    chance: Callable[[], float]
    settings: Settings
    holder: str
    beside: NotRequired[Beside | None]
    keeper: NotRequired[TermKeeper | None]
    cache: NotRequired[Cache | None]
    counts: NotRequired[ControllerCounts]


@dataclass(frozen=True, slots=True)
class ElectedController(ABC):
    """A controller of one process, which works whenever it is elected.

    Everything it must remember is in the store, so the next leader continues from there.
    """

    lease: ClassVar[str]
    kinds: ClassVar[tuple[type[Resource], ...]]
    """The kinds that it watches, in the order in which they are listed."""

    plane: Plane
    _: KW_ONLY
    clock: Clock
    stopwatch: Stopwatch
    chance: Callable[[], float]
    settings: Settings
    holder: str
    beside: Beside | None = None
    keeper: TermKeeper | None = None
    cache: Cache | None = None
    """What all controllers of a process read, which somebody else runs; None makes one for each term."""
    counts: ControllerCounts = field(default_factory=ControllerCounts)

    async def run(self) -> None:
        """Lead whenever elected, until cancelled."""
        election = Election(
            self.plane,
            self.lease,
            self.holder,
            ttl_seconds=self.settings.worker_controller_leader_lease_ttl,
            stopwatch=self.stopwatch,
            chance=self.chance,
            beside=self.beside,
            keeper=self.keeper,
            counts=self.counts,
        )
        await election.run(self.lead)

    async def lead(self, plane: Plane) -> None:
        """Work until cancelled."""
        if self.cache is not None:
            await self._start_work(plane, self.cache)
            return
        cache = Cache(plane, *self.kinds, chance=self.chance)
        await run_until_first_ends(cache.run(), self._start_work(plane, cache))

    async def _start_work(self, plane: Plane, cache: Cache) -> None:
        await cache.ready()
        settings = CurrentSettings(self.settings, cache)
        try:
            await self._work(plane, cache, settings)
        finally:
            settings.stop()

    @abstractmethod
    async def _work(self, plane: Plane, cache: Cache, settings: CurrentSettings) -> None:
        """Do a leader's work, with all its kinds in the cache. What follows the cache must stop at the end."""
