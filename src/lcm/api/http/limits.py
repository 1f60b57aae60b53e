"""How much one caller may ask: sizes, waits, and a token bucket per caller or address. Held by `app` and `auth`."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import structlog

from lcm.api.http.problems import RATE_LIMITED, Declined, Reason


@dataclass(frozen=True, slots=True)
class Limits:
    """Every limit of the API. Services are held by the sizes only."""

    body_bytes: int = 1_000_000
    apply_bytes: int = 32_000_000
    body_seconds: float = 30.0
    """How long a body may take to arrive."""
    send_seconds: float = 30.0
    """How long a stream waits for a reader that does not read."""
    requests_per_second: float = 100.0
    burst: int = 200
    remembered: int = 10_000
    """Callers and addresses whose buckets are kept; the longest silent is forgotten first."""
    failures_per_minute: float = 10.0
    failure_burst: int = 20
    """Sign-ins that may fail at once from one address."""
    streams: int = 20
    """Streams that one caller may have open."""


class Buckets:
    """A token bucket for each of the most recent callers."""

    def __init__(self, limits: Limits, *, rate: float | None = None, burst: int | None = None) -> None:
        """Fill each bucket as fast as the limits say for requests, unless told otherwise."""
        self._rate = limits.requests_per_second if rate is None else rate
        self._burst = float(limits.burst if burst is None else burst)
        self._most = limits.remembered
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """Take one request's worth; 0 says that it was there, else the seconds until it will be."""
        levels = self._levels
        level = self._level(name, now)
        allowed = level >= 1
        levels[name] = (level - 1 if allowed else level, now)
        levels.move_to_end(name)
        if len(levels) > self._most:
            levels.popitem(last=False)
        return 0.0 if allowed else (1 - level) / self._rate

    def wait(self, name: str, now: float) -> float:
        """Take nothing; 0 says that one request's worth is there, else the seconds until it will be."""
        level = self._level(name, now)
        return 0.0 if level >= 1 else (1 - level) / self._rate

    def _level(self, name: str, now: float) -> float:
        kept = self._levels.get(name)
        return self._burst if kept is None else min(self._burst, kept[0] + (now - kept[1]) * self._rate)

    def __len__(self) -> int:
        return len(self._levels)


class Streams:
    """Counts the streams that each caller has open."""

    def __init__(self, limits: Limits) -> None:
        self._most = limits.streams
        self._open: dict[str, int] = {}

    @property
    def total(self) -> int:
        """How many are open."""
        return sum(self._open.values())

    def enter(self, name: str, *, limited: bool) -> bool:
        """Open one more; False when this caller has too many."""
        count = self._open.get(name, 0)
        if limited and count >= self._most:
            return False
        self._open[name] = count + 1
        return True

    def leave(self, name: str) -> None:
        """Close one."""
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


_MINUTE: Final = 60.0
_HOME_BITS: Final = 64
"""What one subscriber has of an IPv6 address; the rest they choose at will."""
_TOO_OFTEN: Final = "too many sign-ins failed from your address; wait"
_log: Final = structlog.get_logger()


class Failures:
    """Counts the failed sign-ins of each address."""

    def __init__(self, limits: Limits) -> None:
        self._buckets = Buckets(limits, rate=limits.failures_per_minute / _MINUTE, burst=limits.failure_burst)

    def check(self, address: str) -> None:
        """Raise Declined while an address has failed too often."""
        if wait := self._buckets.wait(_household(address), _now()):
            raise Declined(RATE_LIMITED, _TOO_OFTEN, wait=wait)

    def count(self, address: str, reason: Reason, detail: str) -> Declined:
        """Count one more, and give what to raise for it."""
        if wait := self._buckets.take(_household(address), _now()):
            return Declined(RATE_LIMITED, _TOO_OFTEN, wait=wait)
        _log.warning("sign-in failed", address=address, reason=reason.name)
        return Declined(reason, detail)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _household(address: str) -> str:
    if ":" not in address:
        return address
    try:
        number = int(ip_address(address.partition("%")[0]))
    except ValueError:
        return address
    return f"{number >> (128 - _HOME_BITS):x}"
