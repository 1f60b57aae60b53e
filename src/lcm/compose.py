"""The one place that names implementations and puts the parts together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from lcm.config import Settings
from lcm.control.allocator import ResourceAllocator
from lcm.store.base import Store
from lcm.store.sqlite import SqliteStore
from lcm.system import SystemClock


@dataclass(frozen=True, slots=True)
class Running:
    """Everything that one process runs."""

    file: Path
    store: Store
    allocator: ResourceAllocator


@asynccontextmanager
async def embedded(settings: Settings) -> AsyncIterator[Running]:
    """Run everything in one process, on a file."""
    clock = SystemClock()
    file = settings.data_dir / "lcm.db"
    store = await SqliteStore.open(file)
    try:
        allocator = await ResourceAllocator.open(
            settings.total_cpu_cores, settings.total_memory_gb, store=store, clock=clock
        )
        yield Running(file, store, allocator)
    finally:
        await store.close()
