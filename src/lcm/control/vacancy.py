"""Waiting for a lease that somebody else holds, without asking for it again and again. Used by `local`."""

from lcm.store.base import LEASES_PREFIX, Store, everything


async def until_vacated(store: Store, name: str) -> None:
    """Wait until whoever holds a lease does no longer; Relist when what happens to it can be followed no longer."""
    key = LEASES_PREFIX + name
    found = await everything(store, key)
    if all(entry.key != key for entry in found.entries):
        return
    async with store.watch(key, after=found.revision) as watch:
        async for changed in watch:
            if any(change.key == key and change.entry is None for change in changed.changes):
                return
