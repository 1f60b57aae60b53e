"""The SQLite engine against bare sqlite3, and how soon a watch tells of a commit."""

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.baseline.sqlite import commits_per_second
from bench.figures import Figure, ratio
from lcm.store.base import CommitChanges, Put
from lcm.store.sqlite.engine import SqliteStore

WRITERS = 64
ROUNDS = 100
VALUE = bytes(range(256)) * 8
FLOOR_COMMITS_PER_SECOND = 2_000
PUTS = 300
FOREIGN_PUTS = 150
PAUSE = 0.0073
"""Between two foreign commits. No multiple of the watcher's polling, lest all meet it at the same phase."""


async def bench_commits() -> list[Figure]:
    keys = [f"sessions/default/s{n:04}" for n in range(WRITERS)]
    serial = itertools.count()
    with tempfile.TemporaryDirectory() as folder:

        async def ours() -> float:
            return await _commits_per_second(Path(folder, f"{next(serial)}.db"), keys)

        async def bare() -> float:
            path = Path(folder, f"{next(serial)}.db")
            return await asyncio.to_thread(commits_per_second, path, keys, VALUE, ROUNDS)

        measured = await ratio(ours, bare, pairs=9, floor=FLOOR_COMMITS_PER_SECOND)
    note = f"of {measured.bare:.0f} bare commits/s"
    return [Figure("store_sqlite", measured.ratio, 0.8, floor_ok=measured.valid, note=note)]


async def bench_watch_in_process() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.open(Path(folder, "store.db"))
        puts, deliveries = await _put_and_watch(store)
        await store.close()
    put = statistics.median(puts)
    note = f"of a put's {put * 1000:.2f} ms"
    return [Figure("watch_in_process", statistics.median(deliveries) / put, 1.5, at_least=False, note=note)]


async def bench_watch_between_processes() -> list[Figure]:
    script = Path(__file__).with_name("outside_writer.py")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        store = await SqliteStore.open(path)
        writer = await asyncio.create_subprocess_exec(sys.executable, script, path, str(FOREIGN_PUTS), str(PAUSE))
        async with asyncio.timeout(60), store.watch("k/", after=1) as watch:
            delays = [_age(await anext(watch)) for _ in range(FOREIGN_PUTS)]
        await writer.wait()
        await store.close()
    return [Figure("watch_between_processes_ms", statistics.median(delays) * 1000, 50, at_least=False)]


def _age(changed: CommitChanges) -> float:
    entry = changed.changes[0].entry
    assert entry is not None
    return time.time() - float(entry.value)


async def _commits_per_second(path: Path, keys: list[str]) -> float:
    store = await SqliteStore.open(path)

    async def write(key: str) -> None:
        revision = 0
        for _ in range(ROUNDS):
            revision = await store.commit(Put(key, VALUE, at=revision))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(write(key))
    seconds = time.perf_counter() - started
    await store.close()
    return ROUNDS * len(keys) / seconds


async def _put_and_watch(store: SqliteStore) -> tuple[list[float], list[float]]:
    puts: list[float] = []
    deliveries: list[float] = []

    async def read() -> None:
        async with store.watch("k/", after=1) as watch:
            while len(deliveries) < PUTS:
                await anext(watch)
                deliveries.append(time.perf_counter() - started)

    started = time.perf_counter()
    reading = asyncio.create_task(read())
    for n in range(PUTS):
        started = time.perf_counter()
        await store.commit(Put(f"k/{n}", VALUE))
        puts.append(time.perf_counter() - started)
        while len(deliveries) <= n:
            await asyncio.sleep(0)
    await reading
    return puts, deliveries
