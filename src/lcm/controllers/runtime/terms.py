"""Terms of leaders: until when one may rely on a lease, and how all those of a process are kept. Used by `election`."""

import asyncio
import math
from collections.abc import Sequence
from typing import Final

from lcm.control.plane.protocol import LeaseLine, Tenure
from lcm.model.base.clock import Stopwatch
from lcm.model.base.errors import Deposed, Later, Stuck
from lcm.system.tasks import LimitTimer, TimeLimit

_MARGIN: Final = 1 / 5
"""The last part of a term, in which no effect is started any more: an effect takes time to arrive."""
_RENEWAL: Final = 1 / 3
_RETRY: Final = 1 / 15
_RENEWAL_LIMIT: Final = 0.95 * (1 - _MARGIN - _RENEWAL)
"""What is left of a term at least when its renewal is requested in time."""


class LeaderTerm:
    """A lease that this process holds, and until when it may rely on it."""

    def __init__(self, lease: Tenure, asked_at: float, stopwatch: Stopwatch) -> None:
        self.lease = lease
        self._stopwatch = stopwatch
        self._began = asked_at
        self._loss = f"term {lease.term} of {lease.holder} as {lease.name} is over, or nearly so"

    def extend(self, asked_at: float) -> None:
        """Restart the term at the time a renewal was requested, not when it was answered. A lost term stays lost."""
        if self._began > -math.inf:
            self._began = asked_at

    def mark_lost(self, why: str | None = None) -> None:
        """Treat the term as over from now on."""
        self._began = -math.inf
        self._loss = why or self._loss

    def seconds_left(self) -> float:
        """Return the seconds during which an effect may still be started."""
        return self._began + self.lease.ttl_seconds * (1 - _MARGIN) - self._stopwatch.seconds()

    def seconds_until_renewal(self) -> float:
        """Return the seconds until the next renewal is due, or until the term is over.

        After a failed renewal that is a short retry.
        """
        due = self._began + self.lease.ttl_seconds * _RENEWAL - self._stopwatch.seconds()
        return max(min(max(due, self.lease.ttl_seconds * _RETRY), self.seconds_left()), 0.0)

    def is_valid(self) -> bool:
        """Return whether an effect may be started now."""
        return self.seconds_left() > 0

    def check(self) -> None:
        """Raise Deposed unless an effect may be started now."""
        if not self.is_valid():
            raise Deposed(self._loss)


class TermKeeper:
    """Keeps the terms of all elections of a process, which are equally long: one timer and one request renew them all.

    Everybody who has a term kept does so in the same loop.
    """

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._held: dict[LeaderTerm, tuple[LeaseLine, asyncio.Future[None]]] = {}
        """The terms that are kept, each with what is done when it is over."""
        self._renewing: asyncio.Task[None] | None = None
        self._timer: LimitTimer | None = None

    async def keep(self, term: LeaderTerm, line: LeaseLine) -> None:
        """Keep a term until it is over, whatever hangs meanwhile; raises Deposed then."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held[term] = line, over
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew_terms())
        renewing = self._renewing
        try:
            await asyncio.wait({over, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if renewing.done():
                renewing.result()
            term.check()
        finally:
            del self._held[term]
            if not self._held:
                renewing.cancel()
                self._renewing = None

    async def _renew_terms(self) -> None:
        """Renew all terms again and again, until none is left."""
        while terms := self._end_terms():
            await asyncio.sleep(min(term.seconds_until_renewal() for term in terms))
            if terms := self._end_terms():
                await self._renew(terms)

    def _end_terms(self) -> Sequence[LeaderTerm]:
        """End the terms whose time is over, and return the others."""
        for term, (_, over) in self._held.items():
            if not over.done() and not term.is_valid():
                over.set_result(None)
        return [term for term, (_, over) in self._held.items() if not over.done()]

    async def _renew(self, terms: Sequence[LeaderTerm]) -> None:
        asked_at, (line, _) = self._stopwatch.seconds(), self._held[terms[0]]
        try:
            with self._limit_renewal(terms):
                await line.renew(*(term.lease for term in terms))
        except Deposed as error:
            if len(terms) == 1:
                terms[0].mark_lost(str(error))
                return
            for term in terms:
                if term in self._held:
                    await self._renew([term])
        except (Later, Stuck, TimeoutError):
            pass  # while a term lasts, another attempt may succeed
        else:
            for term in terms:
                term.extend(asked_at)

    def _limit_renewal(self, terms: Sequence[LeaderTerm]) -> TimeLimit:
        """Limit a renewal to what is left of the terms: nearly always the same time, for which one timer is kept."""
        usual, left = terms[0].lease.ttl_seconds * _RENEWAL_LIMIT, min(term.seconds_left() for term in terms)
        if self._timer is None:
            self._timer = LimitTimer(usual, is_kept=True)
        return TimeLimit(left) if left < usual else TimeLimit(usual, self._timer)
