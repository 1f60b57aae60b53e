"""Sign-ins that failed: told to the log, and limited by address far more tightly than requests. Used by the door.

A valid token is let in whatever others at its address do; what costs work to find out is not looked at once an address
has failed too often.
"""

import asyncio
from ipaddress import ip_address
from typing import Final

import structlog

from lcm.api.limits import Buckets, Limits
from lcm.api.problems import RATE_LIMITED, Declined, Reason

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
