"""Serves a large fleet that never rests, for `soak.web`: `python -m soak.web_server FOLDER CHANGES_PER_SECOND`.

Prints its port and an administrator's token. 1,000 workers and 10,000 sessions are in its store; sessions walk through
their lives, are removed and made anew, workers are measured, warned and drained: every change is a commit of the
writer, with its events. Each line on standard input is answered with how many changes were made so far, and how many
seconds of a core that and the serving took.
"""

import asyncio
import itertools
import random
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from harness import given
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.control.access.tokens import Tokens
from lcm.control.objects.records import CODEC, Record, creation_ops, find_record, telemetry_key
from lcm.control.objects.writer import Edit, Writer
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Ref, ref_of
from lcm.control.telemetry.report_commits import ReportCommits
from lcm.control.telemetry.reports import record_telemetry
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.identity import Caller, Role
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, Progress, SessionPhase
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry
from lcm.store.base import Op, Put
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import log, serving
from lcm.system.clock import SystemClock

WORKERS: Final = 1_000
SESSIONS: Final = 10_000
HOT_WORKERS: Final = 40
OWNERS: Final = 400
LABS: Final = tuple(f"lab-{number:02}:1.0.0" for number in range(40))
TRACKS: Final = ("ccna", "ccnp", "devnet", "security")
REGIONS: Final = ("us-east-1", "us-west-2", "eu-central-1")
SESSION_SHARE: Final = 0.8
"""Of the changes; of the others, half are measurements."""
AT_ONCE: Final = 16
LIMITS: Final = ApiLimits(requests_per_second=1e9, burst=10**9)
_P: Final = SessionPhase
LIFE: Final = (
    (_P.SCHEDULED, None),
    *((_P.INSTANTIATING, percent) for percent in (5, 40, 80)),
    (_P.RUNNING, None),
    (_P.COLLECTING, None),
    (_P.STOPPING, None),
    (_P.COMPLETED, None),
)


def make_worker(number: int) -> LabWorker:
    made = given.worker(phase=WorkerPhase.READY, capacity=given.machine(), lab_track=TRACKS[number % len(TRACKS)])
    aws = msgspec.structs.replace(made.spec.aws, region=REGIONS[number % len(REGIONS)])
    spec = msgspec.structs.replace(made.spec, aws=aws)
    return msgspec.structs.replace(made, metadata=Metadata(name=f"worker-{number:04}", uid=f"w-{number:04}"), spec=spec)


def make_session(number: int, stage: int, now: datetime) -> LabletSession:
    start = now + timedelta(minutes=number % 2880 - 600)
    made = given.session(
        definition=LABS[number % len(LABS)],
        owner=f"learner-{number % OWNERS}@example.org",
        timeslot_start=start,
        timeslot_end=start + timedelta(hours=2),
    )
    metadata = Metadata(name=f"session-{number:06}", uid=f"s-{number:06}", created_at=now)
    return at_stage(msgspec.structs.replace(made, metadata=metadata), stage, now)


def at_stage(session: LabletSession, stage: int, now: datetime) -> LabletSession:
    """Return a session at a stage of its life."""
    phase, percent = LIFE[stage]
    worker = int(session.metadata.uid[2:]) % WORKERS
    step = Progress(step="start", percent=percent, message=f"step {percent}", at=now) if percent else None
    status = msgspec.structs.replace(
        session.status,
        phase=phase,
        progress=step,
        worker_id=f"w-{worker:04}",
        worker_name=f"worker-{worker:04}",
        claim=given.claim(),
        ends_at=session.spec.timeslot_end,
    )
    return msgspec.structs.replace(session, status=status)


def measured(chance: random.Random, now: datetime, *, hot: bool = False) -> WorkerTelemetry:
    """Return a measurement. Only hot workers raise alerts: their number must not grow, or memory would with it."""

    def percent() -> float:
        return round(chance.triangular(0, 85, 35), 1)

    return WorkerTelemetry(
        collected_at=now,
        cml_at=now,
        cml_cpu_utilization=97.0 if hot else percent(),
        cml_memory_utilization=percent(),
        cml_storage_utilization=30.0,
        active_labs_count=3,
    )


def first_entries(now: datetime) -> Iterator[Op]:
    chance = random.Random(7)
    for lab in LABS:
        yield from creation_ops(given.definition(name=lab, uid=f"d-{lab}"))
    for number in range(WORKERS):
        worker = make_worker(number)
        yield from creation_ops(worker)
        telemetry = msgspec.structs.replace(measured(chance, now), cpu_utilization=40.0, memory_utilization=50.0)
        yield Put(telemetry_key(ref_of(worker)), CODEC.encode(telemetry))
    for number in range(SESSIONS):
        yield from creation_ops(make_session(number, number % len(LIFE), now))


async def puts(now: datetime) -> AsyncIterator[Put]:
    for op in first_entries(now):
        assert isinstance(op, Put), op
        yield op


class Generator:
    """Makes changes, so many a second."""

    def __init__(self, writer: Writer, rate: float) -> None:
        self.made = 0
        self._writer = writer
        self._commits = ReportCommits()
        self._rate = rate
        self._chance = random.Random(11)
        self._next_session = itertools.count(SESSIONS)
        self._sessions = {number: number % len(LIFE) for number in range(SESSIONS)}
        self._order = itertools.cycle(range(SESSIONS))
        self._turns = itertools.count()
        self._alive = list(range(SESSIONS))

    async def run(self) -> None:
        """Change something at the given rate; whoever is late does not try to catch up with more than a second."""
        loop, places = asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)
        due = loop.time()
        async with asyncio.TaskGroup() as group:
            while True:
                await places.acquire()
                group.create_task(self._change()).add_done_callback(lambda _: places.release())
                due = max(due + 1 / self._rate, loop.time() - 1)
                await asyncio.sleep(max(0.0, due - loop.time()))

    async def _change(self) -> None:
        if self._chance.random() < SESSION_SHARE:
            await self._move_session(next(self._order))
        else:
            await self._change_worker(next(self._turns))
        self.made += 1

    async def _move_session(self, place: int) -> None:
        number = self._alive[place]
        stage, now = self._sessions.get(number), self._writer.clock.now()
        record = await self._find(Ref(LabletSession, f"session-{number:06}"))
        if stage is None or record is None:
            return
        if stage + 1 < len(LIFE):
            self._sessions[number] = stage + 1
            await self._write(Edit(record, at_stage(record.resource, stage + 1, now)))
            return
        del self._sessions[number]
        await self._write(Edit(record, record.resource, removed=True))
        self._alive[place] = fresh = next(self._next_session)
        self._sessions[fresh] = 0
        await self._write(Edit(None, make_session(fresh, 0, now)))

    async def _change_worker(self, turn: int) -> None:
        number, now = turn * 7 % WORKERS, self._writer.clock.now()
        ref = Ref(LabWorker, f"worker-{number:04}")
        if turn % 2:
            await record_telemetry(
                self._writer, self._commits, ref, measured(self._chance, now, hot=number < HOT_WORKERS)
            )
            return
        record = await self._find(ref)
        assert record is not None
        idle = IdleVerdict(idle=turn % 4 == 0, reason="nothing runs", judged_at=now, pause_at=now if turn % 4 else None)
        phase = self._chance.choice((WorkerPhase.READY, WorkerPhase.ACTIVE, WorkerPhase.DRAINING))
        status = msgspec.structs.replace(record.resource.status, idle=idle, phase=phase)
        await self._write(Edit(record, msgspec.structs.replace(record.resource, status=status)))

    async def _find(self, ref: Ref[Any]) -> Record[Any] | None:
        return await find_record(self._writer.store, ref)

    async def _write(self, edit: Edit[Any]) -> None:
        await self._writer.write(edit, reported=True)


async def answer(generator: Generator) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(generator.made, used.ru_utime + used.ru_stime, flush=True)


async def main(folder: Path, rate: float) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(folder / "web.db", alone=True)
    await store.load(puts(clock.now()), epoch="soak")
    tokens = Tokens(store, clock=clock)
    await tokens.start()
    token, _ = await tokens.make("local-admin", Role.ADMIN)
    app = Api(ControlPlane(store, clock=clock), tokens, clock=clock, limits=LIMITS)
    listening, stop = serving.listen("127.0.0.1", 0), asyncio.Event()
    generator = Generator(Writer(store, clock, Caller(name="soak", role=Role.SERVICE)), rate)
    tidy = Housekeeping(store, clock=clock, every=timedelta(minutes=1), history=timedelta(minutes=1))
    tasks = [asyncio.create_task(one) for one in (app.run(), generator.run(), tidy.run())]
    print(listening.getsockname()[1], token.reveal(), flush=True)
    serving_it = asyncio.create_task(serving.serve(app, listening, None, stop))
    await answer(generator)
    for task in (*tasks, serving_it):
        task.cancel()


if __name__ == "__main__":
    log.configure_logging("ERROR")
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
