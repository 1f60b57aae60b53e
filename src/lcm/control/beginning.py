"""Whether a store is new, and whether what a new one begins with is in it yet. Asked by `lcm up --first`.

That something is begun is written before anything else is, and that it is done after all of it: a process that dies in
between is followed by one that goes on. Once it is done it is not done again, whatever was deleted since.
"""

from datetime import datetime
from typing import Final

from lcm.model.kinds import KINDS
from lcm.model.resource import Moment, Part
from lcm.store.base import ABSENT, Put, Store
from lcm.store.codec import Codec

KEY: Final = "beginning"
_CODEC: Final = Codec()


class Beginning(Part):
    """What is known of a store's beginning."""

    begun_at: Moment
    done_at: Moment | None = None


async def beginning(store: Store) -> Beginning | None:
    """Say what is known of a store's beginning; None when nobody began anything."""
    entry = await store.get(KEY)
    return _CODEC.decode(entry.value, Beginning) if entry else None


async def is_empty(store: Store) -> bool:
    """Tell whether a store holds no object of any kind."""
    for kind in KINDS.values():
        if (await store.scan(f"{kind.plural}/", limit=1)).entries:
            return False
    return True


async def begin(store: Store, now: datetime) -> Beginning:
    """Write down that something is begun; Conflict if somebody else did."""
    made = Beginning(begun_at=now)
    await store.commit(Put(KEY, _CODEC.encode(made), at=ABSENT))
    return made


async def finish(store: Store, begun: Beginning, now: datetime) -> None:
    """Write down that it is done."""
    await store.commit(Put(KEY, _CODEC.encode(Beginning(begun_at=begun.begun_at, done_at=now))))
