"""A process that commits to a SQLite file until it is killed, and says so only after each commit has returned.

It imports first and then waits for a line, so that whoever starts it can have the next one ready.
"""

import asyncio
import os
import sys
from pathlib import Path

from lcm.store.base import ABSENT, Put
from lcm.store.sqlite.engine import SqliteStore

WRITERS = 8
PADDING = b"x" * 500


async def write(path: Path, name: str) -> None:
    store = await SqliteStore.open(path)
    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(write_on(store, f"{name}/{number}"))


async def write_on(store: SqliteStore, prefix: str) -> None:
    serial = 0
    while True:
        key = f"{prefix}/{serial:06}"
        revision = await store.commit(Put(key, PADDING, at=ABSENT), Put(f"{key}/twin", PADDING), events=[key.encode()])
        os.write(1, f"{key} {revision}\n".encode())
        serial += 1


if __name__ == "__main__":
    os.write(1, b"ready\n")
    sys.stdin.readline()
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2]))
