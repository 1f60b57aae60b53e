"""When something that is done once per interval is due: evenly spread, and at the same moments after a failover."""

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Final

_BYTES: Final = 8
_MANY: Final = 1_000_000


def fraction(name: str) -> float:
    """Place a name in an interval, always at the same point of it: from 0 up to 1."""
    return int.from_bytes(blake2b(name.encode(), digest_size=_BYTES).digest()) / float(2 ** (8 * _BYTES))


def next_slot(name: str, every: timedelta, *, after: datetime) -> datetime:
    """Tell the first moment of a name after a moment."""
    seconds = every.total_seconds()
    offset = fraction(name) * seconds
    number = (after.timestamp() - offset) // seconds + 1
    slot = datetime.fromtimestamp(number * seconds + offset, UTC)
    return slot if slot > after else slot + every


def turn(name: str, every: timedelta, at: datetime) -> int:
    """Say which number a slot of a name has; names count from different numbers."""
    share = fraction(name)
    return round(at.timestamp() / every.total_seconds() - share) + int(share * _MANY)
