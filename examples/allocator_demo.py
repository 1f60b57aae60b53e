"""ResourceAllocator on a file: allocate, run out, release, and find everything again after a restart.

Run it with `python examples/allocator_demo.py`.
"""

import asyncio
import tempfile
from pathlib import Path

from lcm.control.accounts.allocator import ResourceAllocator
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock


def show(title: str, allocator: ResourceAllocator) -> None:
    """Print an allocator's usage on one line."""
    usage = allocator.get_resource_usage()
    print(
        f"{title:<22} CPU {usage['cpu_utilization']:5.1f}%   memory {usage['memory_utilization']:5.1f}%"
        f"   {usage['active_allocations']} allocations"
    )


async def first_day(path: Path) -> dict[str, str]:
    """Allocate until it is full, then give one back."""
    store = await SqliteStore.open(path)
    allocator = await ResourceAllocator.open(4.0, 8, store=store, clock=SystemClock())
    show("empty", allocator)
    small = await allocator.allocate_resources({"cpu": "0.5", "memory": "512Mi"})
    large = await allocator.allocate_resources({"cpu": "2.5", "memory": "4Gi"})
    show("two allocations", allocator)
    try:
        await allocator.allocate_resources({"cpu": "2", "memory": "4G"})
    except ValueError as error:
        print(error)
    await allocator.release_resources(small)
    show("one released", allocator)
    await store.close()
    return large


async def second_day(path: Path, large: dict[str, str]) -> None:
    """Find what was allocated the day before, and release it twice."""
    store = await SqliteStore.open(path)
    allocator = await ResourceAllocator.open(4.0, 8, store=store, clock=SystemClock())
    show("after a restart", allocator)
    await allocator.release_resources(large)
    await allocator.release_resources(large)
    show("all released", allocator)
    await store.close()


async def main() -> None:
    """Run both days on a temporary file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "demo.db"
        await second_day(path, await first_day(path))


if __name__ == "__main__":
    asyncio.run(main())
