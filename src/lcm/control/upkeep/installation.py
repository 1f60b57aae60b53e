"""What this installation is called for ever: a name that is made once, and that replicas, restarts and restores share.

Asked by `compose`, for the source of the events that leave.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from lcm.model.base.errors import Conflict, Deposed, Later
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import KINDS
from lcm.store.base import ABSENT, LEASES_PREFIX, Lease, Put, Store, everything
from lcm.store.codec import Codec

INSTALLATION_KEY: Final = "installation"
_CODEC: Final = Codec()


class Installation(Part):
    """An installation."""

    id: str


async def installation(store: Store, ids: Callable[[], str]) -> str:
    """Give the installation's id; the first who asks makes it."""
    while True:
        entry = await store.get(INSTALLATION_KEY)
        if entry is not None:
            return _CODEC.decode(entry.value, Installation).id
        try:
            await store.commit(Put(INSTALLATION_KEY, _CODEC.encode(Installation(id=ids())), at=ABSENT))
        except Conflict:
            continue  # another process made it meanwhile


BEGINNING_KEY: Final = "beginning"


class Beginning(Part):
    """What is known of a store's beginning."""

    begun_at: Moment
    done_at: Moment | None = None


async def beginning(store: Store) -> Beginning | None:
    """Say what is known of a store's beginning; None when nobody began anything."""
    entry = await store.get(BEGINNING_KEY)
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
    await store.commit(Put(BEGINNING_KEY, _CODEC.encode(made), at=ABSENT))
    return made


async def finish(store: Store, begun: Beginning, now: datetime) -> None:
    """Write down that it is done."""
    await store.commit(Put(BEGINNING_KEY, _CODEC.encode(Beginning(begun_at=begun.begun_at, done_at=now))))


PREFIX: Final = "processes/"
TTL_SECONDS: Final = 15
_RENEW_SECONDS: Final = 5.0
_RELEASE_SECONDS: Final = 2.0
_log: Final = structlog.get_logger()


class Presence:
    """One process's lease."""

    def __init__(self, store: Store, process: str) -> None:
        self._store = store
        self._process = process
        self._lease: Lease | None = None

    async def begin(self) -> None:
        """Take the lease. Raises what the store raises: a process that cannot say that it runs must not run."""
        await self._take()
        assert self._lease is not None, "no two processes have one name"

    async def keep(self) -> None:
        """Renew the lease for ever; take it anew when it ran out while the machine slept or the store was away."""
        away = False
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await (self._store.renew(self._lease) if self._lease else self._take())
                away = False
            except Deposed:
                _log.warning("presence ran out", process=self._process)
                self._lease = None
            except Later as error:
                if not away:
                    _log.warning("presence not renewed", process=self._process, error=str(error))
                away = True

    async def end(self) -> None:
        """Give the lease back, if the store answers soon; else it ends by itself."""
        if self._lease is not None:
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._store.release(self._lease)
            except (Later, TimeoutError) as error:
                _log.warning("presence not released", process=self._process, error=str(error))

    async def _take(self) -> None:
        self._lease = await self._store.acquire(f"{PREFIX}{self._process}", self._process, ttl_seconds=TTL_SECONDS)


async def machines(store: Store) -> set[str]:
    """Name the machines whose processes run on a store."""
    found = await everything(store, LEASES_PREFIX + PREFIX)
    names = (entry.key.rpartition("/")[2] for entry in found.entries)
    return {name.rsplit("-", 2)[0] for name in names}
