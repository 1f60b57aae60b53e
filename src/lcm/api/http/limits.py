"""How much one caller may ask for: sizes, timeouts, and a token bucket per caller or address.

Used by `api.http.app` and `api.http.auth`. Failed sign-ins are logged, and limited by address far more tightly than
requests. A valid token is admitted whatever others at its address do.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from lcm.api.http.answers import CLOSE
from lcm.api.http.problems import BUSY, RATE_LIMITED, Declined, ProblemReason
from lcm.model.access.address import address_block


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Every limit of the API. Services are bound by the size limits only."""

    body_bytes: int = 1_000_000
    apply_bytes: int = 32_000_000
    bodies_bytes: int = 128_000_000
    """How many bytes of bodies are held at once; a quarter for one caller, or one body of the longest."""
    body_seconds: float = 30.0
    """How long a body may take to arrive."""
    send_seconds: float = 30.0
    """How long a stream waits for a client that does not read."""
    requests_per_second: float = 100.0
    burst: int = 200
    writes_per_hour: float = 1_800.0
    write_burst: int = 500
    """Writes of one user or author: each is kept for long, in the audit and often as an object or its history."""
    remembered: int = 10_000
    """Callers and addresses whose buckets are kept; the longest inactive is forgotten first."""
    failures_per_minute: float = 10.0
    failure_burst: int = 20
    """Sign-ins that may fail in quick succession from one address."""
    exchanges_per_second: float = 1.0
    exchange_burst: int = 200
    """Sign-ins that come back from the provider to one address, behind which a whole class may be."""
    feeds_per_minute: float = 6.0
    feed_burst: int = 60
    """Readings of one calendar feed: whoever has its address may have shared it with many."""
    streams: int = 20
    """Streams that one caller may have open."""
    consoles: int = 20
    """Consoles that one caller may have open."""
    session_consoles: int = 40
    """Consoles of one session that may be open, whoever opened them."""
    all_consoles: int = 1_000
    """Consoles that may be open in this process; each has a connection to its client and one to its worker."""
    at_once: int = 10
    """Requests of one user or author that are worked on at the same time; the others wait for their turn."""


class TokenBuckets:
    """A token bucket for each of the most recent callers."""

    def __init__(self, limits: ApiLimits, *, rate: float | None = None, burst: int | None = None) -> None:
        """Fill each bucket at the request rate of the limits, unless `rate` and `burst` say otherwise."""
        self._rate = limits.requests_per_second if rate is None else rate
        self._burst = float(limits.burst if burst is None else burst)
        self._most = limits.remembered
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """Take one token. Return 0 if there was one, else the seconds until there will be."""
        levels = self._levels
        kept = levels.get(name)
        level = self._burst if kept is None else min(self._burst, kept[0] + (now - kept[1]) * self._rate)
        allowed = level >= 1
        levels[name] = (level - 1 if allowed else level, now)
        levels.move_to_end(name)
        if len(levels) > self._most:
            levels.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self._rate

    def charge(self, name: str, count: int) -> None:
        """Take more tokens for what was admitted already; who owes some waits until they have come."""
        if name in self._levels and count > 0:
            level, at = self._levels[name]
            self._levels[name] = level - count, at

    def __len__(self) -> int:
        return len(self._levels)


class OpenStreams:
    """Counts the open streams of each caller."""

    def __init__(self, limits: ApiLimits) -> None:
        self._most = limits.streams
        self._open: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Number of open streams."""
        return sum(self._open.values())

    def enter(self, name: str, *, limited: bool) -> bool:
        """Count one more stream. Return False when this caller has too many."""
        count = self._open.get(name, 0)
        if limited and count >= self._most:
            return False
        self._open[name] = count + 1
        return True

    def leave(self, name: str) -> None:
        """Count one stream less."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


class CallerTurns:
    """Lets some requests of each caller be worked on at a time, so that a burst of long ones delays its sender most."""

    def __init__(self, limits: ApiLimits) -> None:
        self._most = limits.at_once
        self._longest = limits.burst
        self._turns: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        """Wait for a caller's turn. Raise Declined when as many as a burst allows wait already."""
        turns, count = self._turns.get(name) or (asyncio.Semaphore(self._most), 0)
        if count - self._most >= self._longest:
            raise Declined(RATE_LIMITED, "too many of your requests wait; slow down", wait=1)
        self._turns[name] = turns, count + 1
        try:
            async with turns:
                yield
        finally:
            count = self._turns[name][1] - 1
            self._turns[name] = turns, count
            if not count:
                del self._turns[name]


class HeldBodies:
    """Counts the bytes of bodies that requests hold, from their arrival to the answer: in all, and of each caller."""

    def __init__(self, limits: ApiLimits) -> None:
        self._most = max(limits.bodies_bytes, limits.apply_bytes)
        self._share = max(self._most // 4, limits.apply_bytes)
        self._held: dict[str, int] = {}
        self.total = 0

    def hold(self, name: str, size: int) -> None:
        """Count more bytes. Raise Declined when there are too many, of this caller or in all."""
        mine = self._held.get(name, 0) + size
        if mine > self._share:
            raise Declined(RATE_LIMITED, "your other requests hold too many bytes", headers=(CLOSE,), wait=1)
        if self.total + size > self._most:
            raise Declined(BUSY, "all requests together hold too many bytes", headers=(CLOSE,), wait=1)
        self._held[name] = mine
        self.total += size

    def release(self, name: str, size: int) -> None:
        """Count bytes less that were held."""
        self.total -= size
        self._held[name] -= size
        if not self._held[name]:
            del self._held[name]


_TOO_OFTEN: Final = "too many sign-ins failed from your address; wait"
_log: Final = structlog.get_logger()


class SignInFailures:
    """Counts the failed sign-ins of each address."""

    def __init__(self, limits: ApiLimits) -> None:
        self._buckets = TokenBuckets(limits, rate=limits.failures_per_minute / 60, burst=limits.failure_burst)

    def count(self, address: str, reason: ProblemReason, detail: str) -> Declined:
        """Count one more failure, and return the error to raise for it."""
        if wait := self._buckets.take(address_block(address), asyncio.get_running_loop().time()):
            return Declined(RATE_LIMITED, _TOO_OFTEN, wait=wait)
        _log.warning("sign-in failed", address=address, reason=reason.name)
        return Declined(reason, detail)
