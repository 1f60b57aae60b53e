"""A process that stores artifacts in a folder until it is killed, and says so only after each one is stored.

It imports first and then waits for a line, so that whoever starts it can have the next one ready.
"""

import asyncio
import os
import sys
from pathlib import Path

from lcm.providers.local.directory import DirectoryArtifacts
from lcm.system.clock import SystemClock

WRITERS = 4
SIZE = 200_000


def text(serial: int, writer: str) -> bytes:
    """Make an artifact that says who wrote it; every process of one serial writes the same by digest."""
    return (f"{serial:08}/{writer}\n".encode() * (SIZE // 10))[:SIZE]


async def write(root: Path, name: str) -> None:
    store = await DirectoryArtifacts.open(root, clock=SystemClock())
    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(write_on(store, name, number))


async def write_on(store: DirectoryArtifacts, name: str, number: int) -> None:
    serial = number
    while True:
        shared = await store.put(text(serial, "anybody"))
        own = await store.put_temporary(f"{name}/{number}", text(serial, f"{name}/{number}"))
        os.write(1, f"{serial} {shared.uri} {own.uri}\n".encode())
        serial += WRITERS


if __name__ == "__main__":
    os.write(1, b"ready\n")
    sys.stdin.readline()
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2]))
