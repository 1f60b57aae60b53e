"""Of all processes that could act, the holder of a lease does; `compose` runs one election for each controller.

The store refuses the writes of a leader whose term is over, for they are fenced. The outside world cannot: so each
effect asks the term's own deadline first (`providers.permit`), which ends before another leader can be elected. It is
counted from the moment a renewal was asked for, on a clock that also counts a machine's sleep. Without a store there is
no leader.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from lcm.control.plane.protocol import Plane, Tenure
from lcm.model.base.clock import Stopwatch
from lcm.model.base.errors import Deposed, Later, LcmError, Relist, Stuck
from lcm.providers.protocols.permit import under
from lcm.system.tasks import ended

Lead = Callable[[Plane], Coroutine[Any, Any, None]]
"""What a leader does, with a plane whose writes are fenced; it is cancelled when the term ends."""

_MARGIN: Final = 1 / 5
"""The part of a term at its end in which nothing is begun any more: an effect takes time to get out."""
_RENEWAL: Final = 1 / 3
_RETRY: Final = 1 / 15
_POLL: Final = 1 / 5
"""How long, in terms, after an outage the lease is asked for again."""
_DOUBT: Final = 4
"""How many terms who waits for the lease to be free goes without asking for it."""
_PAUSE_SECONDS: Final = 1.0
_HAND_OVER_SECONDS: Final = 5.0
_INTERRUPTIONS: Final = (Deposed, Later, Relist, Stuck)
_log: Final = structlog.get_logger()


class Election:
    """One process's candidacy."""

    def __init__(
        self,
        plane: Plane,
        name: str,
        holder: str,
        *,
        ttl_seconds: int,
        stopwatch: Stopwatch,
        chance: Callable[[], float],
    ) -> None:
        """Stand for the lease `name`. `holder` tells people who leads; `ttl_seconds` is how long the dead block it."""
        self._plane = plane
        self._name = name
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._stopwatch = stopwatch
        self._chance = chance
        self._term: _Term | None = None
        self._trouble = ""

    @property
    def leading(self) -> bool:
        """Whether this process may act now."""
        return self._term is not None and self._term.lasts()

    async def run(self, lead: Lead) -> None:
        """Lead whenever elected, until cancelled, and then hand over at once; or until `lead` ends by itself."""
        _log.info("election entered", lease=self._name, holder=self._holder)
        try:
            while True:
                if await self._led(await self._elected(), lead):
                    return
                await asyncio.sleep(_PAUSE_SECONDS * (1 + self._chance()))
        finally:
            _log.info("election left", lease=self._name, holder=self._holder)

    async def _elected(self) -> "_Term":
        while True:
            asked_at = self._stopwatch.seconds()
            try:
                lease = await self._plane.acquire(self._name, self._holder, ttl_seconds=self._ttl_seconds)
                self._trouble = ""
                if lease is not None:
                    return _Term(lease, asked_at, self._stopwatch)
                await self._until_free()
            except (Later, Relist, Stuck) as error:
                self._complain(error)
                await asyncio.sleep(self._ttl_seconds * _POLL * (0.5 + self._chance()))

    async def _until_free(self) -> None:
        """Wait until the lease is free, or for long: had nobody been told so, there would be no leader ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._ttl_seconds * _DOUBT * (0.5 + self._chance())):
                await self._plane.vacated(self._name)

    def _complain(self, error: LcmError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            _log.warning("no election without a store", lease=self._name, holder=self._holder, error=self._trouble)

    async def _led(self, term: "_Term", lead: Lead) -> bool:
        """Lead for a term, and tell whether the work is done for good."""
        self._term = term
        _log.info("elected", lease=self._name, holder=self._holder, term=term.lease.term)
        with under(term.check):
            leading = asyncio.create_task(lead(self._plane.under(term.lease.fence())))
        keeping = asyncio.create_task(self._renew(term)), asyncio.create_task(self._listen(term))
        try:
            await asyncio.wait({leading, *keeping}, return_when=asyncio.FIRST_COMPLETED)
            lost = next(filter(None, map(_failure, keeping)), None)
        finally:
            # In this order, so that nobody else leads before the last of ours has ended.
            await self._wound_up(term, leading, keeping)
        failed = _failure(leading)
        error = lost or failed
        if error is None:
            assert not leading.cancelled(), "the work has cancelled itself"
            _log.info("handed over", lease=self._name, holder=self._holder, term=term.lease.term)
            return True
        event = "deposed" if isinstance(error, Deposed) else "leading interrupted"
        _log.warning(event, lease=self._name, holder=self._holder, term=term.lease.term, error=str(error))
        return False

    async def _wound_up(
        self, term: "_Term", leading: asyncio.Task[None], keeping: Sequence[asyncio.Task[None]]
    ) -> None:
        try:
            await ended([leading])
        finally:
            self._term = None
            try:
                await ended(keeping)
            finally:
                await self._release(term)

    async def _renew(self, term: "_Term") -> None:
        while True:
            await asyncio.sleep(term.until_renewal())
            asked_at = self._stopwatch.seconds()
            with suppress(Later, Stuck, TimeoutError):  # another attempt may come through, while the term lasts
                async with asyncio.timeout(term.left()):
                    await self._plane.renew(term.lease)
                term.begin(asked_at)
            term.check()

    async def _listen(self, term: "_Term") -> None:
        """End a term whose lease the store has lost: until the next renewal nobody else would tell."""
        while True:
            with suppress(Later, Relist, Stuck):  # what happened meanwhile, the next look shows
                held = await self._plane.lease(self._name)
                if held is not None and held.term == term.lease.term:
                    await self._plane.vacated(self._name)
                term.lose()
                term.check()
            await asyncio.sleep(self._ttl_seconds * _RETRY)

    async def _release(self, term: "_Term") -> None:
        with suppress(LcmError, TimeoutError):
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._plane.release(term.lease)


class _Term:
    """A lease that we hold, and until when we may believe so."""

    def __init__(self, lease: Tenure, asked_at: float, stopwatch: Stopwatch) -> None:
        self.lease = lease
        self._stopwatch = stopwatch
        self._began = asked_at

    def begin(self, asked_at: float) -> None:
        """Count anew from when a renewal was asked for, not from when its answer came; what is lost stays lost."""
        if self._began > -math.inf:
            self._began = asked_at

    def lose(self) -> None:
        """Believe in it no longer."""
        self._began = -math.inf

    def left(self) -> float:
        """Give the seconds in which something may still be begun."""
        return self._began + self.lease.ttl_seconds * (1 - _MARGIN) - self._stopwatch.seconds()

    def until_renewal(self) -> float:
        """Give the seconds until the next renewal should be asked for; after one that failed, soon."""
        due = self._began + self.lease.ttl_seconds * _RENEWAL - self._stopwatch.seconds()
        return max(due, self.lease.ttl_seconds * _RETRY)

    def lasts(self) -> bool:
        """Tell whether something may be begun."""
        return self.left() > 0

    def check(self) -> None:
        """Raise Deposed unless something may be begun."""
        if not self.lasts():
            raise Deposed(f"term {self.lease.term} of {self.lease.holder} as {self.lease.name} is over, or nearly so")


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    """Give the reason for which a term came to its end; what is no such reason is raised."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if isinstance(error, BaseExceptionGroup):
        reasons, others = error.split(_INTERRUPTIONS)
        if others is not None:
            raise others
        return reasons
    if error is not None and not isinstance(error, _INTERRUPTIONS):
        raise error
    return error
