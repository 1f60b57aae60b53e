"""One `lcm serve` in the simulation: an API and every controller on one store, which can die, sleep and be cut off."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from lcm.control.delivery.feed import Feed, Position
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.upkeep.housekeeping import EVERY, Housekeeping
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.runtime.settings import terms_of
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import LcmError, Unreachable
from lcm.model.base.event import Event
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.settings.load import Settings
from lcm.sim.time.chance import Ids
from lcm.sim.time.host import Host
from lcm.sim.time.loop import VirtualStopwatch
from lcm.sim.world.link import Link
from lcm.sim.world.stage import Stage
from lcm.system.tasks import together

T = TypeVar("T")
PATIENCE_SECONDS: Final = 30.0
"""How long people wait for an answer."""


Noticed = Callable[[str, BaseException], None]
"""Hears where an error has risen that nobody expects."""


class Process:
    """A life of a process; a restart is another one, of another name."""

    pace: ClassVar[float] = 1.0
    """How often it looks at labs that come up or go; less often is cheaper, and later by as much."""
    tidied: ClassVar[timedelta] = EVERY
    """How often it tidies up the store."""

    def __init__(self, name: str, stage: Stage, settings: Settings, noticed: Noticed) -> None:
        self.host = Host(name)
        self.link = Link(stage.store)
        self.feed = Feed(self.link, _frame)
        self._noticed = noticed
        self._stage = stage
        self._settings = settings
        self._draws = stage.chance.stream(name)
        self.control = ControlPlane(
            self.link,
            clock=stage.clock,
            ids=Ids(self._draws.stream("ids")),
            record_ids=Ids(self._draws.stream("records")),
            terms=terms_of(settings),
            chance=self._draws.random,
            artifacts=stage.artifacts,
        )

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def answers(self) -> bool:
        """Whether somebody who asks it may hear something."""
        return self.host.running and not self.link.is_cut

    def start(self) -> None:
        """Begin to live."""
        life = self.host.spawn(self._live())
        life.add_done_callback(self._ended, context=Context())
        self._hanging_up = asyncio.get_running_loop().create_task(self._hang_up(), context=Context())

    async def _hang_up(self) -> None:
        """Break the connections of the dead, as its kernel would; else all of them were told of everything for ever."""
        await self.host.until_dead()
        self.link.cut()

    async def ask(self, caller: Caller, question: Callable[[LocalPlane], Coroutine[Any, Any, T]]) -> T:
        """Ask its API, from outside; Unreachable when it dies over it or takes too long, whatever came of it."""
        if not self.host.alive:
            raise Unreachable(f"{self.name} is not there")
        asked = self.host.spawn(_answer(question(self.control.acting(caller))))
        dying = asyncio.ensure_future(self.host.until_dead())
        try:
            await asyncio.wait({asked, dying}, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dying.cancel()
        if asked.done():
            bug = asked.exception()
            if bug is not None:
                self._noticed(f"{self.name}, asked by {caller.name}", bug)
                raise Unreachable(f"{self.name} is out of order")
            answer = asked.result()
            if isinstance(answer, _No):
                raise answer.error
            return answer
        asked.cancel()
        raise Unreachable(f"{self.name} did not answer")

    async def _live(self) -> None:
        desk = self.control.desk
        assert desk is not None, "it was made with terms"
        stage, holder, hosts = self._stage, self.name, self._stage.hosts_of(self.name)
        common: dict[str, Any] = {
            "clock": stage.clock,
            "stopwatch": VirtualStopwatch(),
            "chance": self._draws.random,
            "settings": self._settings,
            "holder": holder,
        }
        workers = WorkerController(self._acting(WORKER_CONTROLLER), stage.cloud, hosts, stage.secrets, **common)
        labs = LabletController(self._acting(LABLET_CONTROLLER), hosts, stage.artifacts, speed=self.pace, **common)
        await together(
            desk.calendar.run(),
            self.feed.run(),
            Housekeeping(self.link, clock=stage.clock, every=self.tidied).run(),
            workers.run(),
            SchedulerController(self._acting(SCHEDULER), **common).run(),
            PoolController(self._acting(POOL_CONTROLLER), **common).run(),
            labs.run(),
        )

    def _ended(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (error := life.exception()) is not None:
            self._noticed(self.name, error)

    def _acting(self, actor: str) -> LocalPlane:
        return self.control.acting(Caller(name="service", role=Role.SERVICE, actor=actor))


@dataclass(frozen=True, slots=True)
class _No:
    """An answer that is an error of ours: as a value, for a world may end before anybody has heard it."""

    error: LcmError


async def _answer(question: Coroutine[Any, Any, T]) -> T | _No:
    try:
        return await question
    except LcmError as error:
        return _No(error)


def _frame(event: Event, at: Position, epoch: str) -> bytes:  # noqa: ARG001  as feeds call it
    """Tell the position alone: those who listen compare it with what the witness saw."""
    return b"%d.%d " % at
