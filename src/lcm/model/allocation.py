"""The arithmetic of ResourceAllocator: a sum of allocations against a fixed total."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from lcm.model.quantity import Quantity
from lcm.model.resource import Moment, Part


class Allocation(Part):
    """CPU and memory set aside for somebody."""

    allocation_id: str
    quantity: Quantity
    allocated_at: Moment

    def data(self) -> dict[str, str]:
        """Write it as callers keep it."""
        return {
            "allocation_id": self.allocation_id,
            **self.quantity.limits(),
            "allocated_at": self.allocated_at.isoformat(),
        }


def allocated(allocations: Iterable[Allocation]) -> Quantity:
    """Add allocations up."""
    return sum((one.quantity for one in allocations), Quantity())


def usage(total: Quantity, allocations: Mapping[str, Allocation]) -> dict[str, float]:
    """Give totals, sums, rest and percentages."""
    used = allocated(allocations.values())
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


def expired(allocations: Iterable[Allocation], *, now: datetime, max_age: timedelta) -> list[Allocation]:
    """List the allocations older than that."""
    return [one for one in allocations if now - one.allocated_at > max_age]
