"""Everything there is in one run: processes on a stage, and a way for people to ask them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from lcm.control.plane.local import LocalPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Later, Taken, Unreachable
from lcm.model.kinds.registry import Resource
from lcm.sim.cloud.effects import Effect
from lcm.sim.world import scenario as ground
from lcm.sim.world.checks.violation import Violation
from lcm.sim.world.process import Process
from lcm.sim.world.scenario import Scenario
from lcm.sim.world.stage import Stage
from lcm.sim.world.witness import Line, Witness
from lcm.store.base import Change

T = TypeVar("T")
Question = Callable[[LocalPlane], Coroutine[Any, Any, T]]
OPERATOR: Final = Caller(name="otto", role=Role.ADMIN)
BUG: Final = "an error nobody expects"
_TRIES: Final = 60


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    scenario: Scenario
    trace: str
    commits: int
    violations: tuple[Violation, ...]
    log: tuple[Line, ...]
    story: tuple[Line, ...] = ()
    """Everything that happened, kept of a run that went wrong."""


class World:
    """Everything there is in one run."""

    made_of: ClassVar[type[Process]] = Process

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.stage = Stage(scenario, self._noted, self._done)
        self.clock = self.stage.clock
        self.witness = Witness(self.stage, calm=not scenario.mishaps_an_hour)
        self.processes: list[Process] = []
        self.mishaps = 0
        """How often something went wrong."""
        self.failure: BaseException | None = None
        """What went wrong in the world itself."""
        self._dice = self.stage.chance.stream("world")
        self._doings: dict[asyncio.Task[None], None] = {}

    def boot(self) -> Process:
        """Start another process."""
        process = self.made_of(f"process-{len(self.processes)}", self.stage, self.scenario.settings, self._notice)
        self.processes.append(process)
        process.start()
        return process

    @property
    def alive(self) -> list[Process]:
        """The processes that were not killed."""
        return [one for one in self.processes if one.host.alive]

    async def ask(self, caller: Caller, question: Question[T]) -> T:
        """Ask any API that is there, once, as a person would."""
        able = [one for one in self.alive if one.answers]
        if not able:
            raise Unreachable("no API answers")
        return await self._dice.choice(able).ask(caller, question)

    async def insist(self, caller: Caller, question: Question[T]) -> T:
        """Ask until there is an answer, as an operator's script would; the question must bear to be repeated."""
        for _ in range(_TRIES):
            try:
                return await self.ask(caller, question)
            except Later as error:
                await asyncio.sleep(error.after.total_seconds())
        raise AssertionError("no API has answered for long")

    def begin(self, doing: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside, on no host, as long as the world lasts."""
        task = asyncio.get_running_loop().create_task(doing, context=Context())
        self._doings[task] = None
        task.add_done_callback(self._ended)

    async def found(self) -> None:
        """Start the processes, and have what the scenario wants, as an operator's script would."""
        self.begin(self.witness.watch())
        for _ in range(self.scenario.processes):
            self.boot()
        for lab in self.scenario.labs:
            stored = await self.stage.artifacts.put(ground.topology(lab))
            await self._apply(ground.definition(lab, stored))
        for pool in self.scenario.pools:
            for resource in ground.pool(pool):
                await self._apply(resource)

    async def pass_time(self, span: timedelta) -> None:
        """Let time go by, until something is wrong."""
        with suppress(TimeoutError):
            async with asyncio.timeout(span.total_seconds()):
                await self.witness.violated.wait()
        if self.failure is not None:
            raise self.failure

    def outcome(self) -> Outcome:
        """Say how it ended."""
        witness = self.witness
        wrong, log = tuple(witness.violations), tuple(witness.log)
        story = tuple(witness.story) if wrong else ()
        return Outcome(self.scenario, witness.trace, witness.commits, wrong, log, story)

    async def _apply(self, resource: Resource) -> None:
        with suppress(Taken):  # whoever hears no answer asks again
            await self.insist(OPERATOR, lambda plane: plane.create(resource))

    def _notice(self, where: str, error: BaseException) -> None:
        self.witness.note([Violation(BUG, f"{where}: {error!r}")])

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._doings[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failure = error
            self.witness.violated.set()

    def _noted(self, revision: int, changes: Sequence[Change]) -> None:
        self.witness.commit(revision, changes)

    def _done(self, effect: Effect) -> None:
        self.witness.effect(effect)
