"""Plans as jobs: each runs in a process of its own, which this one starts, reads from, and ends.

Made by `compose.api`; implements the `Plans` protocol of the API. A process writes one message a line: its progress,
and at the end a result or a problem.
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

from lcm.api.routes.plan_shapes import PlanBaseline, PlanJob, PlanResult, PlanState, PlanWish
from lcm.control.plane.problems import problem_of
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Gone, IllegalStep, Invalid, LcmError, Stuck, Throttled, TooLarge
from lcm.system.child_process import child_environment

_COMMAND: Final = (sys.executable, "-P", "-m", "lcm.sim.plan")
_TAIL_BYTES: Final = 4_000
_CHUNK_BYTES: Final = 65_536
_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How much planning is allowed."""

    at_once: int = 2
    time: timedelta = timedelta(minutes=15)
    kept: timedelta = timedelta(hours=1)
    """How long a result can be read."""
    most_kept: int = 16
    """The most ended plans that are kept; the oldest is dropped first."""
    reading: timedelta = timedelta(seconds=3)
    """How long `begin` waits to learn whether the timetable is valid; clients do not wait for long."""
    line_bytes: int = 32_000_000


class _PlanProgress(msgspec.Struct, frozen=True):
    """How far a process is."""

    share: float = 0.0
    seconds_left: float | None = None


class _PlanMessage(msgspec.Struct, frozen=True):
    """One line of a process: its progress, or the result of its request, or what is wrong with the request."""

    progress: _PlanProgress = _PlanProgress()
    result: PlanResult | UnsetType = UNSET
    html: str = ""
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class _PlanProcess:
    """A plan that is running, or has ended."""

    id: str
    by: str
    began_at: datetime
    process: asyncio.subprocess.Process
    following: asyncio.Task[None] | None = None
    first_message: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the process has said anything, or never will."""
    last: _PlanMessage = field(default_factory=_PlanMessage)
    error: LcmError | None = None
    ended_at: datetime | None = None

    @property
    def state(self) -> PlanState:
        if self.ended_at is None:
            return PlanState.RUNNING
        return PlanState.FAILED if self.error else PlanState.DONE

    def to_plan_job(self, kept: timedelta) -> PlanJob:
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
    """Starts plans, keeps their messages, and at exit ends those that still run."""

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
        self._environment = child_environment(environment)
        self._jobs: dict[str, _PlanProcess] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._starting = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs.values():
            _cancel_process(job)
        if self._following:
            await asyncio.wait(self._following)

    async def begin(self, request: PlanWish, by: str, standing: PlanBaseline | None = None) -> PlanJob:
        """Start a plan, and wait until its timetable was read."""
        self._forget_old()
        self._check_room()
        job = await self._start_process(_encode_request(request, standing), by)
        with suppress(TimeoutError):
            await asyncio.wait_for(job.first_message.wait(), self._limits.reading.total_seconds())
        if isinstance(job.error, Invalid):
            self._jobs.pop(job.id, None)
            raise job.error
        return job.to_plan_job(self._limits.kept)

    def find(self, name: str) -> PlanJob:
        """Return how far a plan is, or its result."""
        return self._find_job(name).to_plan_job(self._limits.kept)

    def report(self, name: str) -> str:
        """Return the HTML page about a plan that is done."""
        job = self._find_job(name)
        if job.state is not PlanState.DONE:
            raise IllegalStep(f"plan {name} is {job.state}, and only one that is done has a report")
        return job.last.html

    async def cancel(self, name: str) -> None:
        """End a plan if it still runs, and forget it."""
        job = self._find_job(name)
        del self._jobs[name]
        _cancel_process(job)
        if job.following is not None:
            await asyncio.wait([job.following])

    def _find_job(self, name: str) -> _PlanProcess:
        self._forget_old()
        job = self._jobs.get(name)
        if job is None:
            kept = int(self._limits.kept.total_seconds() // 60)
            raise Gone(f"there is no plan {name}; results are kept for {kept} minutes, by the process that made them")
        return job

    def _forget_old(self) -> None:
        """Forget plans that ended long ago, and the oldest ones above the limit."""
        now = self._clock.now()
        ended = sorted((job.ended_at, job.id) for job in self._jobs.values() if job.ended_at)
        late = [name for at, name in ended if at + self._limits.kept <= now]
        many = [name for _, name in ended[: max(0, len(ended) - self._limits.most_kept)]]
        for name in {*late, *many}:
            del self._jobs[name]

    def _check_room(self) -> None:
        running = [job.id for job in self._jobs.values() if job.ended_at is None]
        if len(running) + self._starting >= self._limits.at_once:
            problem = f"{self._limits.at_once} plans are being made; wait for one, or cancel one: {', '.join(running)}"
            raise Throttled(problem, after=timedelta(seconds=10))

    async def _start_process(self, request: bytes, by: str) -> _PlanProcess:
        self._starting += 1  # counts against the limit while the process starts
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                limit=self._limits.line_bytes,
                start_new_session=True,  # so that its own child processes are killed with its group
            )
        except OSError as error:
            raise Stuck("PlanProcess", f"no process for the plan could be started: {error}") from error
        finally:
            self._starting -= 1
        job = _PlanProcess(self._ids(), by, self._clock.now(), process)
        self._jobs[job.id] = job
        job.following = asyncio.create_task(self._follow(job, request), name=f"plan {job.id}")
        self._following.add(job.following)
        job.following.add_done_callback(self._following.discard)
        _log.info("plan begun", plan=job.id, by=by, pid=process.pid)
        return job

    async def _follow(self, job: _PlanProcess, request: bytes) -> None:
        """Read the messages of a process until the last one, then end it."""
        errors = asyncio.create_task(_read_tail(job.process.stderr))
        try:
            async with asyncio.timeout(self._limits.time.total_seconds()):
                await _send_request(job.process, request)
                await _read_messages(job)
        except TimeoutError:
            minutes = int(self._limits.time.total_seconds() // 60)
            job.error = TooLarge(f"it took more than {minutes} minutes: compare less, or plan fewer sessions at once")
        except LcmError as error:
            job.error = error
        finally:
            _kill_process(job.process)
            job.ended_at = self._clock.now()
            job.first_message.set()
            await _read_tail(job.process.stdout)  # `wait` does not return before the pipes are read
            left = await errors
            await job.process.wait()
            _log.info("plan ended", plan=job.id, state=str(job.state), errors=left if job.error else "")


def _encode_request(request: PlanWish, standing: PlanBaseline | None) -> bytes:
    """Encode a request; half of the machine's cores are left to others."""
    cores = max(1, (os.cpu_count() or 1) // 2)
    asked = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}
    del asked["from_now"]
    return msgspec.json.encode({**asked, "html": True, "cores": cores, "live": standing})


async def _read_messages(job: _PlanProcess) -> None:
    """Read messages until the last.

    Raises what the process says is wrong with the request, or what is wrong with the process.
    """
    assert job.process.stdout is not None
    while True:
        try:
            text = await job.process.stdout.readline()
        except ValueError as error:
            raise TooLarge("its result is too large: compare less, or plan fewer sessions at once") from error
        if not text:
            raise Stuck("PlanProcess", "the process that made the plan ended early; see the log")
        try:
            job.last = msgspec.json.decode(text, type=_PlanMessage)
        except msgspec.DecodeError as error:
            raise Stuck("PlanProcess", "the answer of the process that made the plan was not understood") from error
        job.first_message.set()
        if job.last.faults:
            raise Invalid(*job.last.faults)
        if job.last.result:
            return


async def _send_request(process: asyncio.subprocess.Process, request: bytes) -> None:
    """Send a process its request; if it has ended, the write fails silently and the missing answer is reported."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()


async def _read_tail(pipe: asyncio.StreamReader | None) -> str:
    """Read a pipe to its end, and return its last part."""
    assert pipe is not None
    kept = b""
    while piece := await pipe.read(_CHUNK_BYTES):
        kept = (kept + piece)[-_TAIL_BYTES:]
    return kept.decode(errors="replace")


def _cancel_process(job: _PlanProcess) -> None:
    """Cancel a plan that still runs; its `following` task is done when its process has ended."""
    if job.ended_at is None and job.following is not None:
        job.following.cancel()


def _kill_process(process: asyncio.subprocess.Process) -> None:
    """Kill a process and those that it started; both may have ended by themselves."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
