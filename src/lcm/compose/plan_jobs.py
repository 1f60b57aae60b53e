"""Plans as jobs: each is one process of its own, which this one starts, listens to, and ends.

Made by `compose_api` for the API, which knows it as `lcm.api.plans.Plans`. What a process says comes line by line:
how far it is, and at the end a result or a problem.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Self

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from lcm.api.routes.plan_shapes import PlanJob, PlanResult, PlanState, PlanWish, Standing
from lcm.control.plane.problems import problem_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Gone, IllegalStep, Invalid, LcmError, Stuck, Throttled, TooLarge

_COMMAND: Final = (sys.executable, "-P", "-m", "lcm.sim.plan")
_INHERITED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TMPDIR", "TZ", "TZDIR", "LANG", "LC_ALL")
"""All that a plan needs of our surroundings; the rest holds secrets, which it does not."""
_TAIL_BYTES: Final = 4_000
_PIECE_BYTES: Final = 65_536
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How much planning there may be."""

    at_once: int = 2
    time: timedelta = timedelta(minutes=15)
    kept: timedelta = timedelta(hours=1)
    """How long a result can be read."""
    most_kept: int = 16
    """Ended ones; the oldest is forgotten first."""
    reading: timedelta = timedelta(seconds=3)
    """How long whoever asks waits to hear whether the timetable can be read; clients do not wait for long."""
    line_bytes: int = 32_000_000


class _Progress(msgspec.Struct, frozen=True):
    """How far a process is."""

    share: float = 0.0
    seconds_left: float | None = None


class _Line(msgspec.Struct, frozen=True):
    """A line of a process: how far it is, or what came of its request, or what is wrong with that."""

    progress: _Progress = _Progress()
    result: PlanResult | UnsetType = UNSET
    html: str = ""
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class _Job:
    """A plan that is being made, or was."""

    id: str
    by: str
    began_at: datetime
    process: asyncio.subprocess.Process
    following: asyncio.Task[None] | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has said anything, or will not."""
    last: _Line = field(default_factory=_Line)
    error: LcmError | None = None
    ended_at: datetime | None = None

    @property
    def state(self) -> PlanState:
        if self.ended_at is None:
            return PlanState.RUNNING
        return PlanState.FAILED if self.error else PlanState.DONE

    def shown(self, kept: timedelta) -> PlanJob:
        done = self.state is PlanState.DONE
        return PlanJob(
            id=self.id,
            state=self.state,
            by=self.by,
            began_at=self.began_at,
            progress=1.0 if done else min(max(self.last.progress.share, 0.0), 1.0),
            left_seconds=None if self.ended_at else self.last.progress.seconds_left,
            kept_until=self.ended_at + kept if self.ended_at else None,
            result=self.last.result if done and self.last.result else None,
            problem=problem_of(self.error) if self.error else None,
        )


class PlanJobs:
    """Starts plans, keeps what they said, and ends what still runs when it is left."""

    def __init__(
        self,
        *,
        clock: Clock,
        ids: Callable[[], str],
        limits: PlanLimits | None = None,
        command: Sequence[str] = _COMMAND,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._limits = limits or PlanLimits()
        self._command = command
        self._environment = {name: environment[name] for name in _INHERITED if name in environment}
        self._jobs: dict[str, _Job] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._starting = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs.values():
            _stop(job)
        if self._following:
            await asyncio.wait(self._following)

    async def begin(self, wish: PlanWish, by: str, standing: Standing | None = None) -> PlanJob:
        """Start a plan, and wait until its timetable was read."""
        self._forget()
        self._check_room()
        job = await self._started(_request(wish, standing), by)
        with suppress(TimeoutError):
            await asyncio.wait_for(job.heard.wait(), self._limits.reading.total_seconds())
        if isinstance(job.error, Invalid):
            self._jobs.pop(job.id, None)
            raise job.error
        return job.shown(self._limits.kept)

    def find(self, name: str) -> PlanJob:
        """Tell how far a plan is, or what came of it."""
        return self._found(name).shown(self._limits.kept)

    def report(self, name: str) -> str:
        """Give the page about a plan that is done."""
        job = self._found(name)
        if job.state is not PlanState.DONE:
            raise IllegalStep(f"plan {name} is {job.state}, and only one that is done has a report")
        return job.last.html

    async def cancel(self, name: str) -> None:
        """End a plan if it still runs, and forget it."""
        job = self._found(name)
        del self._jobs[name]
        _stop(job)
        if job.following is not None:
            await asyncio.wait([job.following])

    def _found(self, name: str) -> _Job:
        self._forget()
        job = self._jobs.get(name)
        if job is None:
            kept = int(self._limits.kept.total_seconds() // 60)
            raise Gone(f"there is no plan {name}; results are kept for {kept} minutes, by the process that made them")
        return job

    def _forget(self) -> None:
        """Forget what ended long ago, and the oldest of what is too many."""
        now = self._clock.now()
        ended = sorted((job.ended_at, job.id) for job in self._jobs.values() if job.ended_at)
        late = [name for at, name in ended if at + self._limits.kept <= now]
        many = [name for _, name in ended[: max(0, len(ended) - self._limits.most_kept)]]
        for name in {*late, *many}:
            del self._jobs[name]

    def _check_room(self) -> None:
        running = [job.id for job in self._jobs.values() if job.ended_at is None]
        if len(running) + self._starting >= self._limits.at_once:
            told = f"{self._limits.at_once} plans are being made; wait for one, or cancel one: {', '.join(running)}"
            raise Throttled(told, after=timedelta(seconds=10))

    async def _started(self, request: bytes, by: str) -> _Job:
        self._starting += 1  # nobody else may take the room while this one's process comes up
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=self._limits.line_bytes,
                start_new_session=True,  # it has processes of its own, which end with its group
            )
        except OSError as error:
            raise Stuck("PlanProcess", f"no process for the plan could be started: {error}") from error
        finally:
            self._starting -= 1
        job = _Job(self._ids(), by, self._clock.now(), process)
        self._jobs[job.id] = job
        job.following = asyncio.create_task(self._follow(job, request), name=f"plan {job.id}")
        self._following.add(job.following)
        job.following.add_done_callback(self._following.discard)
        _log.info("plan begun", plan=job.id, by=by, pid=process.pid)
        return job

    async def _follow(self, job: _Job, request: bytes) -> None:
        """Listen to a process until it has said all, and end it."""
        errors = asyncio.create_task(_tail(job.process.stderr))
        try:
            async with asyncio.timeout(self._limits.time.total_seconds()):
                await _send(job.process, request)
                await _listen(job)
        except TimeoutError:
            minutes = int(self._limits.time.total_seconds() // 60)
            job.error = TooLarge(f"it took more than {minutes} minutes: compare less, or plan fewer sessions at once")
        except LcmError as error:
            job.error = error
        finally:
            _end(job.process)
            job.ended_at = self._clock.now()
            job.heard.set()
            await _tail(job.process.stdout)  # a process is waited for until its pipes are read
            left = await errors
            await job.process.wait()
            _log.info("plan ended", plan=job.id, state=str(job.state), errors=left if job.error else "")


def _request(wish: PlanWish, standing: Standing | None) -> bytes:
    """Write a request; half of the machine is left to whoever else is on it."""
    cores = max(1, (os.cpu_count() or 1) // 2)
    asked = msgspec.structs.asdict(wish)
    del asked["from_now"]
    return msgspec.json.encode({**asked, "html": True, "cores": cores, "live": standing})


async def _listen(job: _Job) -> None:
    """Take lines until the last; raises what the process says is wrong, or what is wrong with it."""
    assert job.process.stdout is not None
    while True:
        try:
            text = await job.process.stdout.readline()
        except ValueError as error:
            raise TooLarge("its result is too large: compare less, or plan fewer sessions at once") from error
        if not text:
            raise Stuck("PlanProcess", "the process that made the plan ended early; the log says more")
        try:
            job.last = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError as error:
            raise Stuck("PlanProcess", "the process that made the plan was not understood") from error
        job.heard.set()
        if job.last.faults:
            raise Invalid(*job.last.faults)
        if job.last.result:
            return


async def _send(process: asyncio.subprocess.Process, request: bytes) -> None:
    """Give a process its request; one that has ended does not take it, and its silence will say so."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()


async def _tail(pipe: asyncio.StreamReader | None) -> str:
    """Read what a process says to its end, and keep the end of it."""
    assert pipe is not None
    kept = b""
    while piece := await pipe.read(_PIECE_BYTES):
        kept = (kept + piece)[-_TAIL_BYTES:]
    return kept.decode(errors="replace")


def _stop(job: _Job) -> None:
    """Have a plan ended that still runs; `following` is over when its process is."""
    if job.ended_at is None and job.following is not None:
        job.following.cancel()


def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that this one started, and those that it started; both may have ended by themselves."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
