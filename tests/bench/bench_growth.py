"""The product at growing sizes: `lcm up` on SQLite and `lcm serve all` on etcd, with controllers and a simulated cloud.

Each size is filled (`growth_world`), started as a process, left alone until it rests, and then used by a few clients.
A figure per request may grow to 1.5 times that of the smallest size, and what is kept or read per object likewise; the
largest has limits of its own. Time in which the process could not run because others had the processors is taken from
holds (`system.loop_watch`); a run in which it waited for longer than it ran says nothing.
LCM_GROWTH='sqlite 1000/10000 10000/100000' runs less.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure
from bench.growth_client import GrowthClient, Reading
from bench.growth_process import GrowthProcess
from bench.growth_world import Pattern, Size, fill, record_pattern
from harness.servers import EtcdServer
from lcm.store.base import Store
from lcm.store.etcd.engine import EtcdStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.data_folder import STORE_FILE

SIZES = (Size(1_000, 10_000), Size(1_000, 100_000), Size(10_000, 10_000), Size(10_000, 100_000))
ENGINES = ("sqlite", "etcd")
MOST_GROWTH = 1.5
SETTLED_SECONDS, REST_SECONDS = 130, 60
"""After a start every worker is measured and judged anew: that is no rest."""


class Measured(NamedTuple):
    """What was measured at one size."""

    size: Size
    start_seconds: float
    rest_share: float
    """Of a core, while nobody asks anything."""
    memory_mb: float
    hold_seconds: float
    culprit: str
    deposed: int
    is_quiet: bool
    readings: Mapping[str, Reading]


@asynccontextmanager
async def filled(engine: str, folder: Path, pattern: Pattern, size: Size) -> AsyncIterator[str]:
    """Make an installation of a size in a folder; yield where etcd is, if that holds it."""
    if engine == "sqlite":
        data = folder / "data"
        data.mkdir(mode=0o700)
        await _fill(await SqliteStore.open(data / STORE_FILE), data, pattern, size)
        yield ""
        return
    (folder / "etcd").mkdir()
    with EtcdServer(folder / "etcd", "--quota-backend-bytes=8000000000") as server:
        await _fill(await EtcdStore.open([server.endpoint]), folder / "data", pattern, size)
        yield server.endpoint


async def _fill(store: Store, data: Path, pattern: Pattern, size: Size) -> None:
    try:
        await fill(store, data, pattern, size)
    finally:
        await store.close()


async def measure(engine: str, pattern: Pattern, size: Size) -> Measured:
    """Start one size, wait until it rests, and use it."""
    with tempfile.TemporaryDirectory(prefix="lcm-growth-") as name:
        async with filled(engine, Path(name), pattern, size) as etcd:
            with GrowthProcess(Path(name), etcd) as process:
                started = await process.wait_for_rest()
                await asyncio.sleep(SETTLED_SECONDS)
                before = process.used()
                await asyncio.sleep(REST_SECONDS)
                after = process.used()
                async with GrowthClient(process.url, pattern.token, size) as client:
                    readings = await client.measure_all(process.used)
                    hold, culprit = await client.longest_hold()
                return Measured(
                    size,
                    started,
                    (after.ran - before.ran) / REST_SECONDS,
                    process.memory_mb(),
                    hold,
                    culprit,
                    process.count_deposed(),
                    process.used().waited <= process.used().ran,
                    readings,
                )


def figures(engine: str, several: Sequence[Measured]) -> Iterator[Figure]:
    """Yield a line per figure and size; ratios are to the smallest size."""
    first = several[0]
    for one in several:
        at = f"{engine}_{one.size.workers}_{one.size.sessions}"
        largest = one.size == SIZES[-1]
        yield _figure(one, f"growth_{at}_start", one.start_seconds, 60, "s from the start to rest")
        yield _figure(one, f"growth_{at}_hold", one.hold_seconds * 1000, 100, f"ms the loop was held by {one.culprit}")
        yield _figure(one, f"growth_{at}_memory", one.memory_mb, 2_000, f"MB; {_per_object(one):.1f} KB an object")
        yield _figure(one, f"growth_{at}_rest", one.rest_share * 100, 10, "% of a core at rest")
        yield _figure(one, f"growth_{at}_deposed", one.deposed, 0, "leaders deposed")
        for name, reading in one.readings.items():
            growth = reading.median / first.readings[name].median
            goal = {"booking": 150, "asap": 500}.get(name) if largest else None
            if goal is not None:
                yield _figure(one, f"growth_{at}_{name}_p99", reading.p99, goal, f"ms; median {reading.median:.1f}")
            told = f"times the smallest size; median {reading.median:.2f}, p99 {reading.p99:.2f} {reading.unit}"
            yield _figure(one, f"growth_{at}_{name}", growth, MOST_GROWTH, told)
        yield _figure(
            one, f"growth_{at}_memory_each", _per_object(one) / _per_object(first), MOST_GROWTH, "times, an object"
        )
        each = (one.start_seconds / _objects(one)) / (first.start_seconds / _objects(first))
        yield _figure(one, f"growth_{at}_start_each", each, MOST_GROWTH, "times, an object")


def _figure(one: Measured, name: str, value: float, goal: float, note: str) -> Figure:
    return Figure(name, value, goal, at_least=False, floor_ok=one.is_quiet, note=note)


def _objects(one: Measured) -> int:
    return one.size.workers + one.size.sessions


BARE_MB = 110
"""What a process takes that holds nothing."""


def _per_object(one: Measured) -> float:
    return max(0.0, one.memory_mb - BARE_MB) * 1000 / _objects(one)


def _chosen() -> tuple[Sequence[str], Sequence[Size]]:
    words = os.environ.get("LCM_GROWTH", "").split()
    sizes = [Size(*map(int, word.split("/"))) for word in words if "/" in word]
    return [word for word in words if "/" not in word] or ENGINES, sizes or SIZES


async def bench_growth() -> list[Figure]:
    engines, sizes = _chosen()
    with tempfile.TemporaryDirectory() as home:
        pattern = await record_pattern(Path(home))
    found: list[Figure] = []
    for engine in engines:
        several = [await measure(engine, pattern, size) for size in sizes]
        found += figures(engine, several)
    return found
