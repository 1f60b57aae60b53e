"""ResourceAllocator: CPU and memory of one machine, reserved and released.

What is allocated is the sum of the allocations in the store; no counter is kept. Every allocation touches one guard
key, so that two that would over-commit together cannot both succeed; a release needs no guard.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final, Self

import structlog

from lcm.control.objects.writer import commit_ops
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Conflict, Invalid
from lcm.model.base.quantity import Quantity, parse_limits
from lcm.model.base.resource import Moment, Part
from lcm.settings import load
from lcm.store.base import ABSENT, Delete, Put, Store, scan_all
from lcm.store.codec import Codec
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock, new_id


class Allocation(Part):
    """CPU and memory reserved for one caller."""

    allocation_id: str
    quantity: Quantity
    allocated_at: Moment

    def to_dict(self) -> dict[str, str]:
        """Return it in the form that callers keep."""
        return {
            "allocation_id": self.allocation_id,
            **self.quantity.limits(),
            "allocated_at": self.allocated_at.isoformat(),
        }


def sum_allocations(allocations: Iterable[Allocation]) -> Quantity:
    """Return the sum of all allocations."""
    return sum((one.quantity for one in allocations), Quantity())


def usage(total: Quantity, allocations: Mapping[str, Allocation]) -> dict[str, float]:
    """Return totals, sums, rest and percentages."""
    used = sum_allocations(allocations.values())
    rest = total - used
    return {
        "total_cpu": total.cpu_millis / 1000,
        "allocated_cpu": used.cpu_millis / 1000,
        "available_cpu": rest.cpu_millis / 1000,
        "cpu_utilization": 100 * used.cpu_millis / total.cpu_millis,
        "total_memory_mb": total.memory_mb,
        "allocated_memory_mb": used.memory_mb,
        "available_memory_mb": rest.memory_mb,
        "memory_utilization": 100 * used.memory_mb / total.memory_mb,
        "active_allocations": len(allocations),
    }


_MB_PER_GB: Final = 1024
_MIN_CPU: Final = 0.001
_log: Final = structlog.get_logger()


class ResourceAllocator:
    """Allocates CPU and memory up to a total, which defaults to TOTAL_CPU_CORES and TOTAL_MEMORY_GB, else 32 and 128.

    Without a store, allocations last as long as the object. With one, use `await ResourceAllocator.open(...)`: what was
    allocated before is then known from the start, and several allocators may share the store.
    """

    def __init__(
        self,
        total_cpu: float | None = None,
        total_memory_gb: int | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        ids: Callable[[], str] = new_id,
        name: str = "default",
    ) -> None:
        self._total = _total(total_cpu, total_memory_gb)
        self._store: Store = store or MemoryStore()
        self._clock = clock or SystemClock()
        self._ids = ids
        self._prefix = f"allocations/{name}/"
        self._guard = f"allocation-guards/{name}"
        self._codec = Codec()
        self._lock = asyncio.Lock()
        self._allocations: dict[str, Allocation] | None = None if store else {}

    @classmethod
    async def open(
        cls, total_cpu: float | None = None, total_memory_gb: int | None = None, *, store: Store, clock: Clock
    ) -> Self:
        """Make an allocator that has read what the store already holds."""
        allocator = cls(total_cpu, total_memory_gb, store=store, clock=clock)
        await allocator._read()
        return allocator

    async def check_availability(self, resource_limits: Mapping[str, str]) -> bool:
        """Return whether an allocation of this size would succeed now; False for limits that cannot be parsed."""
        try:
            wanted = parse_limits(resource_limits)
        except Invalid:
            return False
        return self._fits(wanted, await self._read())

    async def allocate_resources(self, resource_limits: Mapping[str, str]) -> dict[str, str]:
        """Reserve resources and return the data that `release_resources` takes.

        Raises ValueError when the limits are invalid or do not fit.
        """
        try:
            wanted = parse_limits(resource_limits)
        except Invalid as error:
            raise ValueError(str(error)) from error
        async with self._lock:
            while (allocation := await self._try_allocate(wanted)) is None:
                pass
        _log.info("resources allocated", allocation_id=allocation.allocation_id, **wanted.limits())
        return allocation.to_dict()

    async def release_resources(self, allocation_data: Mapping[str, str] | None) -> None:
        """Release an allocation. One that is unknown or already released is logged and does no harm."""
        allocation_id = str((allocation_data or {}).get("allocation_id", ""))
        async with self._lock:
            released = await self._remove(allocation_id)
        if not released:
            _log.warning("nothing to release: unknown or already released", allocation_id=allocation_id)

    def get_resource_usage(self) -> dict[str, float]:
        """Return totals, sums, rest and percentages as of this allocator's last operation."""
        return usage(self._total, self._known_allocations())

    def get_active_allocations(self) -> dict[str, dict[str, str]]:
        """Return all allocations by id as of this allocator's last operation."""
        return {allocation_id: one.to_dict() for allocation_id, one in self._known_allocations().items()}

    async def cleanup_expired_allocations(self, max_age_hours: float = 24) -> int:
        """Release the allocations that are older than `max_age_hours` and return how many there were."""
        async with self._lock:
            found = await self._read()
            now, most = self._clock.now(), timedelta(hours=max_age_hours)
            return sum([await self._remove(name) for name, one in found.items() if now - one.allocated_at > most])

    async def _try_allocate(self, wanted: Quantity) -> Allocation | None:
        """Commit the allocation if it fits; None means that another writer was faster and it must be decided anew."""
        guard = await self._store.get(self._guard)
        found = await self._read()
        if not self._fits(wanted, found):
            want, left = wanted.limits(), (self._total - sum_allocations(found.values())).limits()
            raise ValueError(
                f"insufficient resources: {want['cpu']} CPU and {want['memory']} wanted,"
                f" {left['cpu']} CPU and {left['memory']} available; release some or ask for less"
            )
        allocation = Allocation(allocation_id=self._ids(), quantity=wanted, allocated_at=self._clock.now())
        try:
            await commit_ops(
                self._store,
                Put(self._guard, b"", at=guard.revision if guard else ABSENT),
                Put(self._prefix + allocation.allocation_id, self._codec.encode(allocation), at=ABSENT),
            )
        except Conflict:
            return None
        self._allocations = {**found, allocation.allocation_id: allocation}
        return allocation

    async def _remove(self, allocation_id: str) -> bool:
        found = await self._read()
        if allocation_id not in found:
            return False
        entry = await self._store.get(self._prefix + allocation_id)
        if entry is None:
            return False
        try:
            await commit_ops(self._store, Delete(entry.key, at=entry.revision))
        except Conflict:
            return False
        self._allocations = {known: one for known, one in found.items() if known != allocation_id}
        return True

    async def _read(self) -> dict[str, Allocation]:
        page = await scan_all(self._store, self._prefix)
        found = (self._codec.decode(entry.value, Allocation) for entry in page.entries)
        self._allocations = {one.allocation_id: one for one in found}
        return self._allocations

    def _known_allocations(self) -> dict[str, Allocation]:
        if self._allocations is None:
            raise RuntimeError("the store was not read yet: begin with `await ResourceAllocator.open(...)`")
        return self._allocations

    def _fits(self, wanted: Quantity, found: Mapping[str, Allocation]) -> bool:
        return wanted.within(self._total - sum_allocations(found.values()))


def _total(cpu: float | None, memory_gb: float | None) -> Quantity:
    if cpu is None or memory_gb is None:
        settings = load.load_settings()
        cpu = settings.total_cpu_cores if cpu is None else cpu
        memory_gb = settings.total_memory_gb if memory_gb is None else memory_gb
    if not (_MIN_CPU <= cpu < float("inf") and 0 < memory_gb < float("inf")):
        raise ValueError(f"a total of {cpu} CPU and {memory_gb} GB is not possible; use values above zero")
    return Quantity(round(cpu * 1000), math.ceil(memory_gb * _MB_PER_GB))
