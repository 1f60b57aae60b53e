"""The store is put back to an earlier state: by a backup, or by a copy of its files under running processes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from lcm.sim.world.mishaps.trouble import Trouble
from lcm.store.base import Entry, Put, scan_all

_SOON_SECONDS: Final = 1.0
_AFTER_SECONDS: Final = (600, 5_400)
"""How old what is put back may be."""


async def backup_is_restored(trouble: Trouble, *, after: tuple[float, float] = _AFTER_SECONDS) -> None:
    """Take a backup; later stop all processes, restore it under another epoch, and start them again."""
    store, taken_at = trouble.stage.store, trouble.world.clock.now()
    saved = await scan_all(store, "")
    trouble.tell("a backup is taken")
    if not await _may_restore(trouble, after):
        return
    trouble.is_shut_down = True
    for process in trouble.world.alive:
        await process.stop()
    while store.has_leases:  # noqa: ASYNC110 - a store tells nobody when a lease runs out
        await asyncio.sleep(_SOON_SECONDS)
    await store.load(_puts_of(saved.entries), epoch=f"restored {trouble.world.clock.now()}")
    trouble.tell(f"the backup of {taken_at:%H:%M:%S} is restored")
    entries = (await scan_all(store, "")).entries
    trouble.world.witness.record_restore(entries, saved.revision, taken_at)
    trouble.is_shut_down = False
    trouble.restart()


async def store_is_put_back(trouble: Trouble, *, after: tuple[float, float] = _AFTER_SECONDS) -> None:
    """Copy the files of the store; later put them back while processes run, which must notice and end."""
    store, taken_at = trouble.stage.store, trouble.world.clock.now()
    copy = store.copy_state()
    trouble.tell("the store is copied")
    if not await _may_restore(trouble, after):
        return
    store.put_back(copy)
    trouble.tell(f"the copy of {taken_at:%H:%M:%S} is put back")
    entries = (await scan_all(store, "")).entries
    trouble.world.witness.record_restore(entries, copy.revision, taken_at)
    await trouble.stay(60, 300)
    trouble.restart()


async def _may_restore(trouble: Trouble, after: tuple[float, float]) -> bool:
    """Wait, and return whether the state that was saved before may be put back: nothing else was meanwhile."""
    before = trouble.restores
    await trouble.stay(*after)
    if trouble.is_over or trouble.is_shut_down or trouble.restores != before:
        return False
    trouble.restores += 1
    return True


async def _puts_of(entries: Sequence[Entry]) -> AsyncIterator[Put]:
    for entry in entries:
        yield Put(entry.key, entry.value, entry.labels)
