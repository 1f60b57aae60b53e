"""A store in memory that a test can make unreachable or slow, and whose watches it can cut."""

import asyncio

from lcm.model.base.errors import LcmError, Relist
from lcm.store.base import Lease
from lcm.store.hub import BACKLOG
from lcm.store.memory import MemoryStore


class FallibleStore(MemoryStore):
    """While `down` is set, every verb raises it and has no effect; each takes `latency_seconds` before its effect."""

    def __init__(self, *, backlog: int = BACKLOG) -> None:
        super().__init__(backlog=backlog)
        self.down: LcmError | None = None
        self.latency_seconds = 0.0
        self.renewal_seconds = 0.0
        """How long the answer to a renewal is under way."""
        self.asked = 0

    def cut(self) -> None:
        """End every watch, as a reader that was too slow is told."""
        self._hub.end(Relist("cut by a test"))

    def holder(self, lease: str) -> str | None:
        """Tell who holds a lease at this very moment."""
        held = self._leases.get(lease)
        return held.lease.holder if held else None

    async def renew(self, lease: Lease) -> None:
        await super().renew(lease)
        await asyncio.sleep(self.renewal_seconds)

    async def _suspend(self) -> None:
        await super()._suspend()
        self.asked += 1
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        if self.down is not None:
            raise self.down
