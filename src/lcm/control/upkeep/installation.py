"""The identity of an installation, the first setup of its store, and the processes that run on it.

The installation's id is created once and shared by replicas, restarts and restores; `compose` uses it as the source of
outgoing events. `lcm up --first` records that its setup was begun before it writes anything, and that it is done after
everything: a process that dies in between is followed by one that continues, and what is done is never done again,
whatever was deleted since. `Presence` holds a lease for each process, so that nobody restores a backup while one runs;
the lease of a process that died expires by itself.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog

from lcm.control.objects.writer import commit_ops
from lcm.model.base.errors import Conflict, Deposed, Later, Stuck
from lcm.model.base.resource import Count, Moment, Part
from lcm.model.kinds.registry import KINDS
from lcm.store.base import ABSENT, LEASES_PREFIX, Lease, Put, Store, scan_all
from lcm.store.codec import Codec

INSTALLATION_KEY: Final = "installation"
_CODEC: Final = Codec()


class Installation(Part):
    """The identity of an installation; and, in answers, the build that serves it."""

    id: str
    version: str = ""
    schema: Count = 1


async def read_installation_id(store: Store, ids: Callable[[], str]) -> str:
    """Return the installation's id. The first caller creates it."""
    while True:
        entry = await store.get(INSTALLATION_KEY)
        if entry is not None:
            return _CODEC.decode(entry.value, Installation).id
        try:
            await commit_ops(store, Put(INSTALLATION_KEY, _CODEC.encode(Installation(id=ids())), at=ABSENT))
        except Conflict:
            continue  # another process created it meanwhile


SETUP_KEY: Final = "beginning"


class StoreSetup(Part):
    """When the first setup of a store was begun, and when it was done."""

    begun_at: Moment
    done_at: Moment | None = None


async def read_setup(store: Store) -> StoreSetup | None:
    """Read the state of a store's first setup; None when nobody has begun it."""
    entry = await store.get(SETUP_KEY)
    return _CODEC.decode(entry.value, StoreSetup) if entry else None


async def is_empty(store: Store) -> bool:
    """Return whether a store holds no object of any kind."""
    for kind in KINDS.values():
        if (await store.scan(kind.prefix, limit=1)).entries:
            return False
    return True


async def begin_setup(store: Store, now: datetime) -> StoreSetup:
    """Record that the first setup was begun. Raise Conflict if another process did."""
    made = StoreSetup(begun_at=now)
    await commit_ops(store, Put(SETUP_KEY, _CODEC.encode(made), at=ABSENT))
    return made


async def finish_setup(store: Store, begun: StoreSetup, now: datetime) -> None:
    """Record that the first setup is done."""
    await commit_ops(store, Put(SETUP_KEY, _CODEC.encode(StoreSetup(begun_at=begun.begun_at, done_at=now))))


PROCESSES_PREFIX: Final = "processes/"
PRESENCE_TTL_SECONDS: Final = 15
_RENEW_SECONDS: Final = 5.0
_RELEASE_SECONDS: Final = 2.0
_log: Final = structlog.get_logger()


class Presence:
    """The lease by which one process shows that it runs."""

    def __init__(self, store: Store, process: str) -> None:
        self._store = store
        self._process = process
        self._lease: Lease | None = None

    async def begin(self) -> None:
        """Take the lease. Store errors are raised: a process that cannot show that it runs must not run."""
        await self._take(self._store)
        assert self._lease is not None, "no two processes have one name"

    async def keep(self, store: Store) -> None:
        """Renew the lease without end, by a store that is this loop's own.

        Take it again when it expired while the machine slept or the store was away.
        """
        away = False
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await (store.renew(self._lease) if self._lease else self._take(store))
                away = False
            except Deposed:
                _log.warning("presence ran out", process=self._process)
                self._lease = None
            except Later as error:
                if not away:
                    _log.warning("presence not renewed", process=self._process, error=str(error))
                away = True

    async def end(self) -> None:
        """Release the lease, if the store answers soon; otherwise it expires by itself."""
        if self._lease is not None:
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._store.release(self._lease)
            except (Later, Stuck, TimeoutError) as error:
                _log.warning("presence not released", process=self._process, error=str(error))

    async def _take(self, store: Store) -> None:
        self._lease = await store.acquire(
            f"{PROCESSES_PREFIX}{self._process}", self._process, ttl_seconds=PRESENCE_TTL_SECONDS
        )


async def find_machines(store: Store) -> set[str]:
    """Return the names of the machines whose processes run on a store."""
    found = await scan_all(store, LEASES_PREFIX + PROCESSES_PREFIX)
    names = (entry.key.rpartition("/")[2] for entry in found.entries)
    return {name.rsplit("-", 2)[0] for name in names}
