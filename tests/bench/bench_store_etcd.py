"""The etcd engine against bare gRPC stubs, at 64 concurrent writers on one server."""

import asyncio
import itertools
import tempfile
import time
from pathlib import Path

from bench.baseline.etcd import Load, commits_per_second
from bench.figures import Figure, ratio
from harness.servers import EtcdServer
from lcm.store.base import EVENTS_KEY, Put, pack_events
from lcm.store.etcd.engine import EtcdStore
from lcm.store.etcd.keys import LOADING_KEY, pack_value

WRITERS = 64
ROUNDS = 25
VALUE = bytes(range(256)) * 8
LABELS = {"track": "ccnp", "owner": "someone"}
EVENTS = [b"e" * 300]
PAIRS = 15
FLOOR_COMMITS_PER_SECOND = 500


async def bench_commits() -> list[Figure]:
    keys = [f"sessions/default/s{n:04}" for n in range(WRITERS)]
    roots = (f"/bench-{n}/" for n in itertools.count())
    sealed, events = pack_value(Put(keys[0], VALUE, LABELS)), pack_value(Put(EVENTS_KEY, pack_events(EVENTS)))
    with tempfile.TemporaryDirectory() as folder, EtcdServer(Path(folder)) as server:

        async def ours() -> float:
            return await _commits_per_second(server.endpoint, next(roots), keys)

        async def bare() -> float:
            root = next(roots)
            names = [(root + key).encode() for key in keys]
            load = Load((root + LOADING_KEY).encode(), sealed, (root + EVENTS_KEY).encode(), events)
            return await commits_per_second(server.endpoint, names, load, rounds=ROUNDS)

        await bare()
        measured = await ratio(ours, bare, pairs=PAIRS, floor=FLOOR_COMMITS_PER_SECOND)
    note = f"of {measured.bare:.0f} bare commits/s"
    return [Figure("store_etcd", measured.ratio, 0.85, floor_ok=measured.valid, note=note)]


async def _commits_per_second(endpoint: str, root: str, keys: list[str]) -> float:
    store = await EtcdStore.open([endpoint], root=root)

    async def write(key: str) -> None:
        revision = 0
        for _ in range(ROUNDS):
            revision = await store.commit(Put(key, VALUE, LABELS, at=revision), events=EVENTS)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for key in keys:
            group.create_task(write(key))
    seconds = time.perf_counter() - started
    await store.close()
    return ROUNDS * len(keys) / seconds
