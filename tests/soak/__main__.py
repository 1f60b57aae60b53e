"""`make soak ONLY=sessions`: sends sessions through `lcm up` and fails if memory, open files or the store grow.

Each session is booked, placed, started, ended and archived, on the simulated cloud, at a pace at which housekeeping has
many turns. Then the retention of the archive is let pass, step by step, on the store that was left.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx

from harness.commands import Running
from lcm.control.objects.archive import archived_prefix
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.kinds.session import LabletSession
from lcm.store.base import scan_all
from lcm.store.sqlite.engine import SqliteStore
from soak.readings import file_bytes, read_alive, read_processes, read_revisions, rewritten_bytes
from soak.verdicts import Compacted, Sample, bytes_per_session, judge_samples, judge_stores

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples" / "first"
SESSIONS: Final = 2_000
AT_ONCE: Final = 30
FIRST_SESSIONS: Final = 400
FIRST_SECONDS_APART: Final = 0.1
"""Between two of the first bookings: closer than later, and none waits for its end, so that caches and the allocator
have met their highest load when judging begins. The allocator's high-water mark would creep up for long otherwise."""
SECONDS_APART: Final = 0.35
"""Between two later bookings: the archive takes about 170 with each turn, once a minute."""
SAMPLE_EVERY: Final = 25
PRINT_EVERY: Final = 4
POLL_SECONDS: Final = 0.7
TURN_SECONDS: Final = 65
"""A turn of housekeeping, with which it is over."""
LIMIT: Final = timedelta(minutes=25)
SETTINGS: Final = {"LCM_STORE_HISTORY_MINUTES": "1", "LCM_REQUESTS_PER_SECOND": "10000", "LOG_LEVEL": "WARNING"}
ENDED: Final = {"TERMINATED", "COMPLETED"}
FINAL: Final = ENDED | {"FAILED", "EXPIRED"}
_MB: Final = 1e6


class Soak:
    """One `lcm up`, the sessions that go through it, and what was seen meanwhile."""

    def __init__(self, running: Running, client: httpx.AsyncClient, data: Path) -> None:
        self.store = data / "lcm.db"
        self.samples: list[Sample] = []
        self.ends: Counter[str] = Counter()
        self._running = running
        self._client = client
        self._begun = time.monotonic()

    async def send(self, sessions: int) -> None:
        """Send sessions through it; of the later ones one in ten runs until its time is over, others are terminated."""
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(sessions):
                await places.acquire()
                later = number >= FIRST_SESSIONS
                task = group.create_task(self._live(f"soak-{number}", until_its_end=later and number % 10 == 0))
                task.add_done_callback(lambda _: places.release())
                await asyncio.sleep(SECONDS_APART if later else FIRST_SECONDS_APART)

    async def _live(self, name: str, *, until_its_end: bool) -> None:
        spec = {"definition": "ccna-basics", "duration_minutes": 1 if until_its_end else 60}
        document = {"api_version": "lcm/v1", "kind": "LabletSession", "metadata": {"name": name}, "spec": spec}
        await self.call("POST", "/api/lablet-sessions", json=document)
        path = f"/api/lablet-sessions/{name}"
        asked = until_its_end
        while (phase := (await self.call("GET", path))["status"]["phase"]) not in FINAL:
            if phase == "RUNNING" and not asked:
                await self.call("POST", f"{path}/terminate", json={})
                asked = True
            await asyncio.sleep(POLL_SECONDS)
        self.ends[phase] += 1
        if self.ends.total() % SAMPLE_EVERY == 0:
            self.look()

    async def compacted(self) -> None:
        """Wait until what ended is in the archive, and nothing older than that in the history."""
        await asyncio.sleep(TURN_SECONDS)
        wanted = read_revisions(self.store)[1]
        while read_revisions(self.store)[0] < wanted:
            await asyncio.sleep(1)
        await asyncio.sleep(TURN_SECONDS / 4)
        self.look()
        print(sample_line(self.samples[-1]))

    async def call(self, method: str, path: str, **request: Any) -> Any:
        """Send a request that must succeed, and return its JSON."""
        answer = await self._client.request(method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer.json()

    def look(self) -> None:
        """Take a sample, and print it if it is one of a few."""
        taken, alive = read_processes(self._running.process.pid), read_alive(self.store)
        log = file_bytes(Path(f"{self.store}-wal"))
        sample = Sample(self.ends.total(), time.monotonic() - self._begun, *taken, file_bytes(self.store), log, *alive)
        if len(self.samples) % PRINT_EVERY == 0:
            print(sample_line(sample), flush=True)
        self.samples.append(sample)


SAMPLE_HEAD: Final = "sessions  seconds  memory MB  files  store MB  log MB  alive entries  alive MB"


def sample_line(one: Sample) -> str:
    return (
        f"{one.ended:8}  {one.seconds:7.0f}  {one.memory_bytes / _MB:9.1f}  {one.files:5}  {one.store_bytes / _MB:8.2f}"
        f"  {one.log_bytes / _MB:6.2f}  {one.alive:13}  {one.alive_bytes / _MB:8.2f}"
    )


def store_line(one: Compacted) -> str:
    return (
        f"{one.sessions:8}  {one.alive:13}  {one.alive_bytes / _MB:8.2f}  {one.store_bytes / _MB:8.2f}"
        f"  {one.store_bytes / max(one.alive, 1):9.0f}  {one.store_bytes / one.rewritten_bytes:9.2f}  {one.where}"
    )


STORE_HEAD: Final = "sessions  alive entries  alive MB  store MB  B / entry  times new  after compaction"


class Later:
    """A clock that stands in the future."""

    def __init__(self, **ahead: int) -> None:
        self._now = datetime.now(UTC) + timedelta(**ahead)

    def now(self) -> datetime:
        return self._now


async def read_compacted(where: str, path: Path, sessions: int) -> Compacted:
    return Compacted(where, sessions, *read_alive(path), file_bytes(path), await rewritten_bytes(path))


async def keep_newest(path: Path, sessions: int) -> Compacted:
    """Pass time until so many sessions are left, in turns of housekeeping that are two hours apart.

    The first finds all of them ended a day ago, the second deletes, the third notes how far, and the fourth compacts.
    """
    store = await SqliteStore.open(path, alone=True)
    try:
        await Housekeeping(store, clock=Later(days=2)).tidy()
        ends = await archived_ends(store)
        oldest = ends[-sessions] if sessions else datetime.now(UTC)
        for hours in (2, 4, 6):
            later = Later(days=2, hours=hours)
            kept = later.now() - oldest
            await Housekeeping(store, clock=later, archived=kept, audit_kept=kept).tidy()
        assert len(await archived_ends(store)) == sessions
    finally:
        await store.close()
    return await read_compacted(f"the newest {sessions} kept", path, sessions)


async def archived_ends(store: SqliteStore) -> Sequence[datetime]:
    """Return when the sessions in the archive ended, oldest first; their keys begin with it."""
    prefix = archived_prefix(LabletSession)
    moments = [one.key.removeprefix(prefix).split("Z")[0] for one in (await scan_all(store, prefix)).entries]
    return [datetime.strptime(moment, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC) for moment in moments]


async def soak(home: Path, sessions: int) -> Sequence[str]:
    """Run the soak in a folder; return what is wrong."""
    data = home / "data"
    with Running(
        home, "up", "--port=0", f"--data={data}", "--speed=2000", f"--first={EXAMPLES}", **SETTINGS
    ) as running:
        async with running.ready().client() as client:
            it = Soak(running, client, data)
            alive_before = read_alive(it.store).entries
            pool = {"spec": {"min_workers": 3, "policy": "HYBRID", "budget": None}}
            headers = {"content-type": "application/merge-patch+json"}
            await it.call("PATCH", "/api/worker-pools/ccna", json=pool, headers=headers)
            print(SAMPLE_HEAD)
            it.look()
            await it.send(sessions)
            await it.compacted()
            stores = [await read_compacted("running", it.store, sessions)]
        running.stop()
    stores += [await keep_newest(it.store, number) for number in (sessions // 5, sessions // 20, 0)]
    print(f"\n{STORE_HEAD}", *map(store_line, stores), sep="\n")
    print("KB of each session that went:", *(f"{share / 1_000:.1f}" for share in bytes_per_session(stores)))
    unwell = {phase: count for phase, count in it.ends.items() if phase not in ENDED}
    return [
        *([f"sessions ended otherwise than they should: {unwell}"] if unwell else []),
        *judge_samples(it.samples),
        *judge_stores(stores, alive_before),
    ]


async def main(sessions: int) -> int:
    with tempfile.TemporaryDirectory(prefix="lcm-soak-") as home:
        try:
            async with asyncio.timeout(LIMIT.total_seconds()):
                faults = await soak(Path(home), sessions)
        except TimeoutError:
            faults = [f"it did not end within {LIMIT}"]
    for fault in faults:
        print("FAULT:", fault)
    print("soak:", "failed" if faults else "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    sys.exit(asyncio.run(main(parser.parse_args().sessions)))
