"""One `lcm serve` in the simulation: an API and every controller on one store. It can die, pause and be cut off."""

import asyncio
import itertools
from collections.abc import AsyncIterable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, NoReturn, TypeVar
from weakref import WeakValueDictionary

from lcm.control.delivery.feed import Feed, Position
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.upkeep.housekeeping import ARCHIVE_INTERVAL, INTERVAL, Housekeeping
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.runtime.election import ControllerParts
from lcm.controllers.runtime.settings import owner_limits_of, terms_of
from lcm.controllers.runtime.terms import TermKeeper
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import LcmError, Relist, Unreachable, WentBack
from lcm.model.base.event import Event
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.settings.load import Settings
from lcm.sim.time.chance import Ids
from lcm.sim.time.host import Host
from lcm.sim.time.loop import VirtualStopwatch
from lcm.sim.world.environment import Environment, WatchedStore
from lcm.sim.world.newer_version import write_as_newer
from lcm.store.base import (
    EVENTS_KEY,
    Cursor,
    Entry,
    EventReader,
    Fence,
    Lease,
    Op,
    Page,
    Put,
    StoreUsage,
    went_back_error,
)
from lcm.store.hub import QueueWatch
from lcm.system.tasks import first_error, run_until_first_ends

T = TypeVar("T")


class StoreLink:
    """The store as one process sees it."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store
        self._known = store.revision
        self._numbers = itertools.count()
        self._watches: WeakValueDictionary[int, QueueWatch] = WeakValueDictionary()
        self.is_cut = False
        self.lost_answers = 0
        """How many of the next commits take effect without an answer to their caller."""
        self.is_newer = False
        """Whether the process is of a newer version, which writes what ours does not know."""

    @property
    def epoch(self) -> str:
        return self._store.epoch

    @property
    def went_back(self) -> bool:
        """Whether the store is at an earlier revision than this process has seen it."""
        return self._store.revision < self._known

    def cut(self) -> None:
        """Cut the connection: nothing gets through."""
        self.is_cut = True
        self.cut_watches()

    def cut_watches(self) -> None:
        """Break the connections of open watches; the next request gets through."""
        for watch in list(self._watches.values()):
            watch.end(Relist("the connection broke"))

    def mend(self) -> None:
        """Restore the connection."""
        self.is_cut = False

    def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> Coroutine[Any, Any, int]:
        return self._if_connected(self._commit(ops, events, fence))

    def get(self, key: str) -> Coroutine[Any, Any, Entry | None]:
        return self._if_connected(self._store.get(key))

    def get_all(self, *keys: str) -> Coroutine[Any, Any, Sequence[Entry | None]]:
        return self._if_connected(self._store.get_all(*keys))

    def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Coroutine[Any, Any, Page]:
        return self._if_connected(self._store.scan(prefix, labels=labels, limit=limit, cursor=cursor))

    def watch(self, *prefixes: str, after: int) -> QueueWatch:
        watch = self._store.watch(*prefixes, after=after)
        if self.is_cut:
            watch.end(Relist("no connection"))
        elif self.went_back:
            watch.end(went_back_error(self._known, self._store.revision))
        self._watches[next(self._numbers)] = watch
        return watch

    def events(self, *, after: int) -> EventReader:
        return EventReader(self.watch(EVENTS_KEY, after=after))

    def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Coroutine[Any, Any, Lease | None]:
        return self._if_connected(self._store.acquire(name, holder, ttl_seconds=ttl_seconds))

    def renew(self, *leases: Lease) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.renew(*leases))

    def release(self, lease: Lease) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.release(lease))

    def lease(self, name: str) -> Coroutine[Any, Any, Lease | None]:
        return self._if_connected(self._store.lease(name))

    def probe(self) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.probe())

    def usage(self) -> Coroutine[Any, Any, StoreUsage | None]:
        return self._if_connected(self._store.usage())

    def compact(self, revision: int) -> Coroutine[Any, Any, None]:
        return self._if_connected(self._store.compact(revision))

    def load(self, entries: AsyncIterable[Put], *, epoch: str) -> Coroutine[Any, Any, int]:
        return self._if_connected(self._store.load(entries, epoch=epoch))

    async def close(self) -> None:
        """Leave the store open: others use it."""
        await asyncio.sleep(0)

    def _if_connected(self, asked: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        revision = self._store.revision
        if self.is_cut or revision < self._known:
            asked.close()
            cut = Unreachable("the store cannot be reached")
            return _raise_error(cut if self.is_cut else went_back_error(self._known, revision))
        self._known = revision
        return asked

    async def _commit(self, ops: Sequence[Op], events: Sequence[bytes], fence: Fence | None) -> int:
        if self.is_newer:
            ops = [write_as_newer(one) for one in ops]
        revision = await self._store.commit(*ops, events=events, fence=fence)
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unreachable("no answer came")
        return revision


async def _raise_error(error: LcmError) -> NoReturn:
    await asyncio.sleep(0)
    raise error


ASK_TIMEOUT_SECONDS: Final = 30.0
"""How long people wait for an answer."""
STOP_SECONDS: Final = 20.0
"""How long a process may take to stop."""


OnError = Callable[[str, BaseException], None]
"""Called with the place and the error, for an error that nobody expects."""


class Process:
    """One life of a process; a restart is another one, with another name."""

    poll_rate: ClassVar[float] = 1.0
    """How often it polls labs that start or stop; less often is cheaper, and later by as much."""
    housekeeping_every: ClassVar[timedelta] = INTERVAL
    """How often it runs the housekeeping of the store."""
    archive_every: ClassVar[timedelta] = ARCHIVE_INTERVAL
    """How often it archives what has ended."""
    watches_store: ClassVar[bool] = True
    """Whether it probes the store, which may be full or put back."""

    def __init__(self, name: str, stage: Environment, settings: Settings, noticed: OnError) -> None:
        self.host = Host(name)
        self.link = StoreLink(stage.store)
        self.feed = Feed(self.link, _position_frame)
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
            limits=owner_limits_of(settings),
            chance=self._draws.random,
            artifacts=stage.artifacts,
        )

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def is_reachable(self) -> bool:
        """Whether its API may answer a request."""
        return self.host.running and not self.link.is_cut

    def start(self) -> None:
        """Start all of its tasks."""
        self._life = self.host.spawn(self._run())
        self._life.add_done_callback(self._on_end, context=Context())
        self._hanging_up = asyncio.get_running_loop().create_task(self._disconnect_when_dead(), context=Context())

    async def stop(self) -> None:
        """End it as SIGTERM does: its leases are handed over. One that takes too long is killed."""
        self._life.cancel()
        await asyncio.wait({self._life}, timeout=STOP_SECONDS)
        self.host.kill()

    async def _disconnect_when_dead(self) -> None:
        """Break the connections of a dead process, as its kernel would; else they would get all changes for ever."""
        await self.host.until_dead()
        self.link.cut()

    async def ask(self, caller: Caller, question: Callable[[LocalPlane], Coroutine[Any, Any, T]]) -> T:
        """Call its API from outside.

        Raises Unreachable when the process dies meanwhile or takes too long, whether or not the call took effect.
        """
        if not self.host.alive:
            raise Unreachable(f"{self.name} is not there")
        asked = self.host.spawn(_catch_error(question(self.control.plane_for(caller))))
        ends = {asked, self._hanging_up}
        await asyncio.wait(ends, timeout=ASK_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            bug = asked.exception()
            if bug is not None:
                self._noticed(f"{self.name}, asked by {caller.name}", bug)
                raise Unreachable(f"{self.name} is out of order")
            answer = asked.result()
            if isinstance(answer, _ErrorAnswer):
                raise answer.error
            return answer
        asked.cancel()
        raise Unreachable(f"{self.name} did not answer")

    async def _run(self) -> None:
        promises = self.control.promises
        assert promises is not None, "it was made with terms"
        stage, holder, hosts = self._stage, self.name, self._stage.hosts_of(self.name)
        common = ControllerParts(
            clock=stage.clock,
            stopwatch=VirtualStopwatch(),
            chance=self._draws.random,
            settings=self._settings,
            holder=holder,
            keeper=TermKeeper(VirtualStopwatch()),
            cache=self.control.cache,
        )
        workers = WorkerController(self._plane_of(WORKER_CONTROLLER), stage.cloud, hosts, stage.secrets, **common)
        labs = LabletController(
            self._plane_of(LABLET_CONTROLLER), hosts, stage.artifacts, speed=self.poll_rate, **common
        )
        keeping = Housekeeping(
            self.link,
            clock=stage.clock,
            every=self.housekeeping_every,
            archive_every=self.archive_every,
            cache=promises.calendar.cache,
        )
        await run_until_first_ends(
            promises.calendar.run(),
            self.feed.run(),
            *([self.control.health.run()] if self.watches_store else []),
            keeping.run(),
            workers.run(),
            SchedulerController(self._plane_of(SCHEDULER), **common).run(),
            PoolController(self._plane_of(POOL_CONTROLLER), **common).run(),
            labs.run(),
        )

    def _on_end(self, life: asyncio.Task[None]) -> None:
        error = None if life.cancelled() else first_error(life.exception())
        if isinstance(error, WentBack):
            self.host.kill()
        elif error is not None:
            self._noticed(self.name, error)

    def _plane_of(self, actor: str) -> LocalPlane:
        return self.control.plane_for(Caller(name="service", role=Role.SERVICE, actor=actor))


@dataclass(frozen=True, slots=True)
class _ErrorAnswer:
    """An expected error as a value: the world may end before anybody has received it."""

    error: LcmError


async def _catch_error(question: Coroutine[Any, Any, T]) -> T | _ErrorAnswer:
    try:
        return await question
    except LcmError as error:
        return _ErrorAnswer(error)


def _position_frame(event: Event, at: Position, epoch: str, rows: bool) -> bytes:  # noqa: ARG001, FBT001  as feeds call it
    """Return the position alone: listeners compare it with what the witness saw."""
    return b"%d.%d " % at
