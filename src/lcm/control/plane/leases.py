"""Leases as a store itself keeps them. Used by `control.plane.local`, and by `compose` for those kept in a thread."""

from lcm.control.plane.protocol import LeaseLine
from lcm.store.base import LEASES_PREFIX, Lease, Store, scan_all


async def wait_until_vacant(store: Store, name: str) -> None:
    """Wait until a lease's holder no longer has it. Raise Relist when its history can no longer be followed."""
    key = LEASES_PREFIX + name
    found = await scan_all(store, key)
    if all(entry.key != key for entry in found.entries):
        return
    async with store.watch(key, after=found.revision) as watch:
        async for changed in watch:
            if any(change.key == key and change.entry is None for change in changed.changes):
                return


class StoreLeases(LeaseLine):
    """Keeps leases by a store itself, for who keeps them beside the loop with a connection of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def renew(self, *leases: Lease) -> None:
        await self._store.renew(*leases)

    async def lease(self, name: str) -> Lease | None:
        return await self._store.lease(name)

    async def wait_until_vacant(self, name: str) -> None:
        await wait_until_vacant(self._store, name)
