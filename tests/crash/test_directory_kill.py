"""Processes killed while they store artifacts leave no half ones, and lose none that they had an answer for."""

import asyncio
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from harness import suite
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.system.clock import SystemClock

WRITER = Path(__file__).with_name("directory_writer.py")
LINES = 2
KILLS_PER_LINE = 6 * suite.TIMES
MAX_SECONDS = 0.15
SIZE = 200_000


def text(serial: int, writer: str) -> bytes:
    """Repeat what the writer writes."""
    return (f"{serial:08}/{writer}\n".encode() * (SIZE // 10))[:SIZE]


async def start(root: Path, name: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, WRITER, root, name, stdin=pipe, stdout=pipe)


async def kill_in_line(root: Path, line: int) -> list[tuple[int, str, str]]:
    """Kill one writer after the other, the next one waiting ready; return what they had answers for."""
    chance = random.Random(line)
    acknowledged = []
    coming = await start(root, f"{line}/0")
    for serial in range(KILLS_PER_LINE):
        writer, coming = coming, await start(root, f"{line}/{serial + 1}")
        assert writer.stdin is not None
        assert writer.stdout is not None
        await writer.stdout.readline()
        writer.stdin.write(b"go\n")
        first = await writer.stdout.readline()
        await asyncio.sleep(chance.uniform(0, MAX_SECONDS))
        writer.kill()
        said = (first + await writer.stdout.read()).decode().splitlines()
        await writer.wait()
        acknowledged += [(int(number), shared, own) for number, shared, own in map(str.split, said)]
    coming.kill()
    await coming.communicate()
    return acknowledged


async def test_a_killed_writer_leaves_no_half_artifact(tmp_path: Path, tell: Callable[[str], None]) -> None:
    root = tmp_path / "root"
    async with asyncio.timeout(300 * suite.TIMES):
        lines = await asyncio.gather(*(kill_in_line(root, line) for line in range(LINES)))
    acknowledged = [one for line in lines for one in line]
    drafts = len(list((root / "incoming").iterdir()))
    store = await DirectoryArtifacts.open(root, clock=SystemClock(), leftover_age=timedelta(0))

    for serial, shared, _ in acknowledged:
        assert await store.get(shared) == text(serial, "anybody")
    latest = {own: serial for serial, _, own in sorted(acknowledged)}
    for own, serial in latest.items():
        data = await store.get(own)
        found = int(data[:8])
        assert data == text(found, own.removeprefix("artifact://tmp/"))
        assert found >= serial, "an older one came back"
    listed = [*await store.list_temporary(), *await store.list_stored(before=SystemClock().now() + timedelta(hours=1))]
    for one in listed:
        assert len(await store.get(one.uri)) == one.size_bytes == SIZE
    assert not list((root / "incoming").iterdir())
    tell(
        f"artifacts in a folder: {LINES * KILLS_PER_LINE} kills; {2 * len(acknowledged)} acknowledged, 0 lost; "
        f"{len(listed)} readable, 0 half; {drafts} drafts swept"
    )
    assert len(acknowledged) >= LINES * KILLS_PER_LINE, "the writers hardly wrote: nothing was tested"
