"""Another process that commits to a SQLite store; each value is the moment its commit began. For bench_store_sqlite."""

import asyncio
import sys
import time
from pathlib import Path

from lcm.store.base import Put
from lcm.store.sqlite.engine import SqliteStore


async def write(path: Path, count: int) -> None:
    store = await SqliteStore.open(path)
    for n in range(count):
        # No multiple of the watcher's polling, lest all commits meet it at the same phase.
        await asyncio.sleep(0.0073)
        await store.commit(Put(f"k/{n}", str(time.time()).encode()))
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2])))
