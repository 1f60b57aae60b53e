"""Another process that commits to a SQLite store: `python outside_writer.py FILE COUNT PAUSE`.

Each value is the moment its commit began. For the benches of the store, and of reads from a shared file.
"""

import asyncio
import sys
import time
from pathlib import Path

from lcm.store.base import Put
from lcm.store.sqlite.engine import SqliteStore


async def write(path: Path, count: int, pause: float) -> None:
    store = await SqliteStore.open(path)
    for n in range(count):
        await asyncio.sleep(pause)
        await store.commit(Put(f"k/{n}", str(time.time()).encode()))
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
