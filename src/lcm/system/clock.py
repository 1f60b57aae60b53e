"""The real machine's time and chance. `compose` hands these to whatever needs them."""

import resource
import secrets
import time
import uuid
from datetime import UTC, datetime
from typing import Final

_CHANCE: Final = secrets.SystemRandom()


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present moment in UTC."""
        return datetime.now(UTC)


class SystemStopwatch:
    """The machine's seconds since it booted, sleep included where the system counts it."""

    def seconds(self) -> float:
        """Return the seconds that have passed."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


def chance() -> float:
    """Draw a number from 0 up to 1, so that those who wait for the same do not come back at the same moment."""
    return _CHANCE.random()


def new_epoch() -> str:
    """Make a name for a new history of revisions."""
    return secrets.token_hex(4)


def new_id() -> str:
    """Make a unique id."""
    return str(uuid.uuid4())


def new_token() -> str:
    """Make a bearer token that nobody can guess; its beginning tells secret scanners what it is."""
    return f"lcm_{secrets.token_urlsafe(32)}"


def new_seal_key() -> bytes:
    """Make a key that secrets are sealed with."""
    return secrets.token_bytes(32)


def new_nonce() -> bytes:
    """Make a number that is used once with a seal's key."""
    return secrets.token_bytes(12)


def allow_many_files() -> None:
    """Let this process open as many files as it may: each worker's connection is one, and 1,024 is a usual limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def files_allowed() -> int:
    """Say how many files this process may open."""
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if now == resource.RLIM_INFINITY else now
