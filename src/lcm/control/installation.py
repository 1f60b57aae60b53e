"""What this installation is called for ever: a name that is made once, and that replicas, restarts and restores share.

Asked by `compose`, for the source of the events that leave.
"""

from collections.abc import Callable
from typing import Final

from lcm.model.errors import Conflict
from lcm.model.resource import Part
from lcm.store.base import ABSENT, Put, Store
from lcm.store.codec import Codec

KEY: Final = "installation"
_CODEC: Final = Codec()


class Installation(Part):
    """An installation."""

    id: str


async def installation(store: Store, ids: Callable[[], str]) -> str:
    """Give the installation's id; the first who asks makes it."""
    while True:
        entry = await store.get(KEY)
        if entry is not None:
            return _CODEC.decode(entry.value, Installation).id
        try:
            await store.commit(Put(KEY, _CODEC.encode(Installation(id=ids())), at=ABSENT))
        except Conflict:
            continue  # another process made it meanwhile
