"""Writers killed at any moment lose no commit they had an answer for; a watch elsewhere misses and repeats nothing."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from harness import suite
from lcm.store.base import CommitChanges, CommitEvents, Put, scan_all
from lcm.store.sqlite.engine import SqliteStore

WRITER = Path(__file__).with_name("sqlite_writer.py")
LINES = 2
KILLS_PER_LINE = 25 * suite.TIMES
MIN_SECONDS, MAX_SECONDS = 0.02, 0.25
LAST = "w/z"

Told = list[tuple[str, int]]


async def keys_told(watch: AsyncIterator[CommitChanges]) -> Told:
    told: Told = []
    async for changed in watch:
        told += [(change.key, changed.revision) for change in changed.changes]
        if told[-1][0] == LAST:
            return told
    raise AssertionError("a watch has no end")


async def events_told(reader: AsyncIterator[CommitEvents]) -> Told:
    told: Told = []
    async for happened in reader:
        told += [(event.decode(), happened.revision) for event in happened.events]
        if told[-1][0] == LAST:
            return told
    raise AssertionError("events have no end")


async def start(path: Path, name: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, WRITER, path, name, stdin=pipe, stdout=pipe)


async def kill_in_line(path: Path, line: int) -> Told:
    """Kill one writer after the other, the next one waiting ready; return what they had answers for."""
    chance = random.Random(line)
    acknowledged: Told = []
    coming = await start(path, f"w/{line}/0")
    for serial in range(KILLS_PER_LINE):
        writer, coming = coming, await start(path, f"w/{line}/{serial + 1}")
        assert writer.stdin is not None
        assert writer.stdout is not None
        await writer.stdout.readline()
        writer.stdin.write(b"go\n")
        await asyncio.sleep(chance.uniform(MIN_SECONDS, MAX_SECONDS))
        writer.kill()
        said = (await writer.stdout.read()).decode().splitlines()
        await writer.wait()
        acknowledged += [(key, int(revision)) for key, revision in map(str.split, said)]
    coming.kill()
    await coming.communicate()
    return acknowledged


async def test_a_killed_writer_loses_nothing_it_had_an_answer_for(tmp_path: Path, tell: Callable[[str], None]) -> None:
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    async with asyncio.timeout(300 * suite.TIMES):
        watching = asyncio.create_task(keys_told(store.watch("w/", after=1)))
        reading = asyncio.create_task(events_told(store.events(after=1)))
        lines = await asyncio.gather(*(kill_in_line(path, line) for line in range(LINES)))
        await store.commit(Put(LAST, b""), events=[LAST.encode()])
        told, events = await watching, await reading
    await store.close()

    store = await SqliteStore.open(path)
    there = [(entry.key, entry.revision) for entry in (await scan_all(store, "w/")).entries]
    await store.close()
    acknowledged = [pair for line in lines for pair in line]
    lost = set(acknowledged) - set(there)
    missed = set(there) - set(told)
    doubled = [pair for pair, count in Counter(told).items() if count > 1]
    tell(
        f"sqlite under load: {LINES * KILLS_PER_LINE} kills; {len(acknowledged)} commits acknowledged, "
        f"{len(told)} events; {len(lost)} writes lost, {len(missed)} events lost, {len(doubled)} doubled"
    )
    assert (lost, missed, doubled) == (set(), set(), [])
    assert len(acknowledged) > LINES * KILLS_PER_LINE, "the writers hardly wrote: nothing was tested"
    assert sorted(told, key=lambda pair: pair[1]) == told
    assert events == [pair for pair in told if not pair[0].endswith("/twin")]
    assert {key for key, _ in there if key.endswith("/twin")} == {f"{key}/twin" for key, _ in events if key != LAST}
