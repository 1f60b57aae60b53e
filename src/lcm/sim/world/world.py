"""Everything there is in one run: processes in an environment, and a way for people to call them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, TypeVar

import structlog

from lcm.control.plane.local import LocalPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Later, Taken, Unreachable
from lcm.model.kinds.registry import Resource
from lcm.sim.cloud.effects import Effect
from lcm.sim.world.environment import Environment
from lcm.sim.world.process import Process
from lcm.sim.world.scenario import Scenario
from lcm.store.base import Change, Entry


@dataclass(frozen=True, slots=True)
class Violation:
    """Something happened that must never happen."""

    rule: str
    """The line of "what must never happen" that is broken."""
    text: str
    about: tuple[str, ...] = ()
    """The names of the objects whose stories explain it."""


class Witness:
    """Keeps the violations of a run. Subclasses override what they want to see."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.violated = asyncio.Event()
        self.commits = 0

    def record_commit(self, revision: int, changes: Sequence[Change]) -> None:
        """Record a commit, on the host that made it."""

    def record_effect(self, effect: Effect) -> None:
        """Record an effect on the outside, on the host that has it."""

    def record_robbed_lease(self, name: str, holder: str) -> None:
        """Record that the store ended a lease whose holder still believes in it."""

    def record_restore(self, entries: Sequence[Entry], revision: int, taken_at: datetime) -> None:
        """Record that the store holds again what it held at an earlier moment, as of a revision."""

    def tell(self, text: str) -> None:
        """Record something that no commit shows."""

    async def watch(self) -> None:
        """Check again and again, as long as the world lasts."""

    def add_violations(self, wrong: Sequence[Violation]) -> None:
        """Keep violations, and wake whoever runs the world."""
        if wrong:
            self.violations += wrong
            self.violated.set()


T = TypeVar("T")
OnLogLine = Callable[[MutableMapping[str, Any]], None]
PlaneCall = Callable[[LocalPlane], Coroutine[Any, Any, T]]
OPERATOR: Final = Caller(name="otto", role=Role.ADMIN)
BUG: Final = "an error nobody expects"
_TRIES: Final = 60


class World:
    """Everything there is in one run: our processes, their environment, and the witness."""

    process_type: ClassVar[type[Process]] = Process
    stage_type: ClassVar[type[Environment]] = Environment

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.stage = self.stage_type(scenario, self._on_commit, self._on_effect)
        self.clock = self.stage.clock
        self.witness = self._make_witness()
        self.processes: list[Process] = []
        self.mishaps = 0
        """How often something went wrong."""
        self.is_upgraded = False
        """Whether processes that start now are of a newer version."""
        self.failure: BaseException | None = None
        """The error that ended the world itself, if there was one."""
        self._dice = self.stage.chance.stream("world")
        self._tasks: dict[asyncio.Task[None], None] = {}

    def _make_witness(self) -> Witness:
        """Return what this world reports to."""
        return Witness()

    def boot(self) -> Process:
        """Start another process."""
        process = self.process_type(
            f"process-{len(self.processes)}", self.stage, self.scenario.settings, self._on_error
        )
        process.link.is_newer = self.is_upgraded
        self.processes.append(process)
        process.start()
        return process

    @property
    def alive(self) -> list[Process]:
        """The processes that were not killed."""
        return [one for one in self.processes if one.host.alive]

    async def ask(self, caller: Caller, question: PlaneCall[T]) -> T:
        """Call any API that is reachable, once, as a person would."""
        able = [one for one in self.alive if one.is_reachable]
        if not able:
            raise Unreachable("no API answers")
        return await self._dice.choice(able).ask(caller, question)

    async def insist(self, caller: Caller, question: PlaneCall[T]) -> T:
        """Call until there is an answer, as an operator's script would; the call must be safe to repeat."""
        for _ in range(_TRIES):
            try:
                return await self.ask(caller, question)
            except Later as error:
                await asyncio.sleep(error.after.total_seconds())
        raise AssertionError("no API has answered for long")

    def begin(self, doing: Coroutine[Any, Any, None]) -> None:
        """Run something in the background, on no host, as long as the world lasts."""
        task = asyncio.get_running_loop().create_task(doing, context=Context())
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)

    def set_up(self) -> None:
        """Start the processes."""
        self.begin(self.witness.watch())
        for _ in range(self.scenario.processes):
            self.boot()

    async def pass_time(self, span: timedelta) -> None:
        """Wait for a span of virtual time, or until a violation. Raises the error that ended the world itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(span.total_seconds()):
                await self.witness.violated.wait()
        if self.failure is not None:
            raise self.failure

    async def apply(self, resource: Resource) -> None:
        """Create an object, as an operator's script would."""
        with suppress(Taken):  # a retry after a lost answer finds it created already
            await self.insist(OPERATOR, lambda plane: plane.create(resource))

    def _on_error(self, where: str, error: BaseException) -> None:
        self.witness.add_violations([Violation(BUG, f"{where}: {error!r}")])

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error
            self.witness.violated.set()

    def _on_commit(self, revision: int, changes: Sequence[Change]) -> None:
        self.witness.record_commit(revision, changes)

    def _on_effect(self, effect: Effect) -> None:
        self.witness.record_effect(effect)


@contextmanager
def capture_logs(heard: OnLogLine) -> Iterator[None]:
    """Keep logs silent while a world runs; each line is passed to `heard`."""

    def hear(_logger: object, _level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        heard(line)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO), processors=[hear])
    try:
        yield
    finally:
        structlog.configure(**before)
