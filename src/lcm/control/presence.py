"""Says in the store that a process runs on it, so that nobody restores a backup beneath it.

Started by `compose` for every process. A lease says it: that of a process that died ends by itself.
"""

import asyncio
from typing import Final

import structlog

from lcm.model.errors import Deposed, Later
from lcm.store.base import LEASES_PREFIX, Lease, Store, everything

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
