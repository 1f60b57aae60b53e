"""The real machine's clock, randomness, ids and limits. `compose` passes them to whatever needs them."""

import gc
import resource
import secrets
import time
import uuid
from datetime import UTC, datetime
from typing import Final

_COLLECTION_THRESHOLDS: Final = (10_000, 2, 10)
"""How many objects are made between collections of the youngest, and how many of those between larger ones."""
_RANDOM: Final = secrets.SystemRandom()


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present moment in UTC."""
        return datetime.now(UTC)


class SystemStopwatch:
    """Seconds since the machine booted, including time asleep where the system counts it."""

    def seconds(self) -> float:
        """Return the seconds that have passed."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


def random_fraction() -> float:
    """Return a random number from 0 up to 1; used as jitter, so that waiting callers do not retry all at once."""
    return _RANDOM.random()


def new_epoch() -> str:
    """Return a name for a new history of revisions."""
    return secrets.token_hex(4)


def new_id() -> str:
    """Return a unique id."""
    return str(uuid.uuid4())


def new_token() -> str:
    """Return a bearer token that cannot be guessed; its prefix lets secret scanners recognise it."""
    return f"lcm_{secrets.token_urlsafe(32)}"


def new_seal_key() -> bytes:
    """Return a key for sealing secrets."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Return a nonce for one use with a sealing key."""
    return secrets.token_bytes(12)


def raise_file_limit() -> None:
    """Raise this process's limit of open files to the hard limit.

    Each worker's connection is a file, and 1,024 is a usual soft limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def calm_collection() -> None:
    """Search for cyclic garbage seldom, and not in what is loaded already: everything stands still meanwhile."""
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
    gc.collect()
    gc.freeze()


def spare_from_collection() -> None:
    """Leave what is there now out of the search for cycles: of what is kept for long, each would take seconds."""
    gc.freeze()


def open_file_limit() -> int:
    """Return how many files this process may open."""
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if now == resource.RLIM_INFINITY else now
