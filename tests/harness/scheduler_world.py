"""The real scheduler and pool controller in virtual time on a control plane that promises."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import msgspec

from harness import given
from harness.booking_world import lab, metal
from harness.credentials import given_keys
from harness.fleet_world import Fleet
from harness.plane_world import OTTO, service
from harness.workers import beside
from lcm.control.booking.step_records import NO_LIMITS, FleetSettings
from lcm.control.objects.cache import Cache
from lcm.control.objects.records import change_ops, creation_ops, find_record, removal_ops
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Plane, Ref, SessionRef, ref_of
from lcm.controllers.pool.controller import PoolController
from lcm.controllers.pool.view import is_small
from lcm.controllers.runtime.reconcile import DONE, Requeue, Runtime, requeue_at
from lcm.controllers.scheduler.controller import SchedulerController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.base.clock import Clock
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Metadata, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.kinds.pool import (
    FilledSeat,
    LabWorkerPool,
    LabWorkerPoolSpec,
    PoolPhase,
    WorkerTemplate,
    WorkerTemplateSpec,
)
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.settings.load import Settings
from lcm.sim.time.chance import Ids
from lcm.sim.time.loop import VirtualClock, VirtualStopwatch
from lcm.store.memory import MemoryStore
from lcm.system.tasks import run_until_first_ends

R = TypeVar("R", bound=Resource)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
POOL = Ref(LabWorkerPool, "ccna")
_P = SessionPhase


def half() -> float:
    return 0.5


@dataclass
class Lablets:
    """Takes sessions from SCHEDULED to COMPLETED; how long each step takes is asked for each session."""

    plane: Plane
    clock: Clock
    start: Callable[[LabletSession], timedelta] = lambda _: 4 * MINUTE
    clear: Callable[[LabletSession], timedelta] = lambda _: 2 * MINUTE

    async def run(self) -> None:
        cache = Cache(self.plane, LabletSession)
        runtime = Runtime(
            "lablets", lambda ref: self._look(cache, ref), cache, LabletSession, clock=self.clock, chance=half
        )
        await run_until_first_ends(cache.run(), runtime.run())

    async def _look(self, cache: Cache, ref: SessionRef) -> Requeue:
        session = cache.get(ref)
        if session is None:
            return DONE
        status, now = session.status, self.clock.now()
        since = status.history[-1].at
        match status.phase:
            case _P.SCHEDULED if status.worker_id is not None:
                await self._step(session, _P.INSTANTIATING)
            case _P.INSTANTIATING:
                if now < since + self.start(session):
                    return requeue_at(since + self.start(session), now)
                end = status.ends_at or now + timedelta(minutes=session.spec.duration_minutes or 0)
                await self._step(session, _P.RUNNING, cml_lab_id="lab", ends_at=end)
            case _P.RUNNING if status.ends_at is not None:
                if now < status.ends_at:
                    return requeue_at(status.ends_at, now)
                await self._step(session, _P.COLLECTING, outcome=_P.COMPLETED)
            case _P.COLLECTING:
                if now < since + self.clear(session):
                    return requeue_at(since + self.clear(session), now)
                await self._step(session, _P.STOPPING)
            case _P.STOPPING:
                await self._step(session, status.outcome or _P.COMPLETED)
        return DONE

    async def _step(self, session: LabletSession, phase: SessionPhase, **fields: Any) -> None:
        await self.plane.step(session, msgspec.structs.replace(session.status, phase=phase, **fields))


@dataclass
class Room:
    """A control plane, its scheduler, and a way behind them: workers and pools in any state."""

    settings: Settings = field(default_factory=Settings)
    fleet: FleetSettings = NO_LIMITS
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        numbers = count(1)
        self.core = ControlPlane(
            self.store, clock=self.clock, ids=lambda: f"uid-{next(numbers):05}", fleet=self.fleet, terms=Terms()
        )

    @property
    def otto(self) -> LocalPlane:
        return self.core.plane_for(OTTO)

    def by(self, actor: str) -> LocalPlane:
        return self.core.plane_for(service(actor))

    def scheduler(self, holder: str = "scheduler") -> SchedulerController:
        return SchedulerController(
            plane=self.by(SCHEDULER),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=half,
            settings=self.settings,
            holder=holder,
        )

    def lablets(self, **pace: Any) -> Lablets:
        return Lablets(self.by(LABLET_CONTROLLER), self.clock, **pace)

    @asynccontextmanager
    async def open(self, *, scheduled: bool = True, lablets: bool = False) -> AsyncIterator["Room"]:
        """Run the calendar, and the scheduler and sessions' lives if asked to."""
        assert self.core.promises is not None
        async with beside(self.core.promises.calendar.run()):
            await self.otto.create(lab())
            await self.otto.create(metal())
            if not scheduled:
                yield self
            elif lablets:
                async with beside(self.scheduler().run()), beside(self.lablets().run()):
                    yield self
            else:
                async with beside(self.scheduler().run()):
                    yield self

    async def put(self, resource: R) -> R:
        """Write an object as it is, whether it is there or not."""
        record = await find_record(self.store, ref_of(resource))
        ops = creation_ops(resource) if record is None else change_ops(record, resource)
        await self.store.commit(*ops)
        found = await find_record(self.store, ref_of(resource))
        assert found is not None
        return found.resource

    async def remove(self, resource: Resource) -> None:
        """Take an object away, if it is there."""
        record = await find_record(self.store, ref_of(resource))
        if record is not None:
            await self.store.commit(*removal_ops(record))

    async def change(self, resource: R, **fields: object) -> R:
        """Change fields of an object as it is now."""
        found = await find_record(self.store, ref_of(resource))
        assert found is not None
        return await self.put(given.with_fields(found.resource, fields))

    async def worker(self, name: str = "w1", **fields: object) -> LabWorker:
        return await self.put(serving(name, since=self.clock.now(), **fields))

    async def pool(self, *workers: LabWorker, **fields: object) -> LabWorkerPool:
        """Write a pool whose first seats have these workers."""
        return await self.put(a_pool(*workers, **fields))

    async def wants(self, name: str, *, minutes: int = 60, **fields: Any) -> LabletSession:
        """Ask for a session as soon as possible."""
        spec = LabletSessionSpec(definition="basics:1.0.0", duration_minutes=minutes, **fields)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def books(self, name: str, start: datetime, *, minutes: int = 60, **fields: Any) -> LabletSession:
        end = start + minutes * MINUTE
        spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end, **fields)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def session(self, name: str) -> LabletSession:
        found = await self.otto.get(Ref(LabletSession, name))
        assert found is not None, f"there is no session {name}"
        return found

    async def sessions(self) -> Sequence[LabletSession]:
        return (await self.otto.list(LabletSession, limit=1000)).items

    async def reaches(self, name: str, phase: SessionPhase, within: timedelta = timedelta(minutes=1)) -> LabletSession:
        return await self.until(name, lambda one: one.status.phase is phase, within)

    async def until(
        self, name: str, so: Callable[[LabletSession], bool], within: timedelta = timedelta(minutes=1)
    ) -> LabletSession:
        """Wait until something is so of a session."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while not so(await self.session(name)):
                    await asyncio.sleep(0.01 if within <= MINUTE else within.total_seconds() / 600)
        except TimeoutError:
            raise AssertionError(f"{name} did not get there: {(await self.session(name)).status}") from None
        return await self.session(name)

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision


def serving(name: str = "w1", *, since: datetime = given.MONDAY, **fields: object) -> LabWorker:
    """Return a licensed metal worker that takes sessions."""
    accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=since)
    capacity = declared_capacity(metal().spec.worker)
    ready = {"phase": WorkerPhase.READY, "conditions": (accepts,), "capacity": capacity, "lab_track": "ccna"}
    made = given.worker(**{"name": name, "uid": f"uid-{name}"} | ready | fields)
    return given.changed(made, {"status": {"cml": {"licensed": True}}})


def booting(name: str = "w1", *, since: datetime = given.MONDAY, **fields: object) -> LabWorker:
    """Return a metal worker whose machine was started at a moment."""
    story = tuple(msgspec.structs.replace(line, at=since) for line in given.history("PENDING", "STARTING"))
    up = {"phase": WorkerPhase.STARTING, "history": story, "conditions": (), "capacity": None}
    made = serving(name, since=since, **up | fields)
    cml = {"license_token": "env:CML_LICENSE_TOKEN"}
    return given.changed(made, {"status": {"cml": {"licensed": False}}, "spec": {"cml": cml}})


def a_pool(*workers: LabWorker, **fields: object) -> LabWorkerPool:
    seats = filled(workers)
    return given.pool(**{"seats": seats, "min_workers": 0, "max_workers": 3} | fields)


def filled(workers: Iterable[LabWorker]) -> tuple[FilledSeat, ...]:
    return tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )


CCNA = Ref(LabWorkerPool, "ccna")
PER_WORKER = 12
"""Labs of four cores that fit onto a machine of 48."""
UP = (
    WorkerPhase.PROVISIONING_EC2,
    WorkerPhase.EC2_READY,
    WorkerPhase.STARTING,
    WorkerPhase.READY_UNLICENSED,
    WorkerPhase.READY,
)


@dataclass
class Pools(Fleet):
    """A fleet with a pool of one track."""

    terms: Terms = field(default_factory=Terms)
    settings: Settings = field(default_factory=lambda: Settings(worker_controller_leader_lease_ttl=3600))
    """Nobody dies here unless a test says so: a lease that is renewed every few seconds would take most of the time."""

    def control(self) -> ControlPlane:
        return ControlPlane(
            self.store,
            clock=self.clock,
            ids=Ids(self.chance.stream("ids")),
            record_ids=Ids(self.chance.stream("records")),
            sealer=given_keys(),
            terms=self.terms,
        )

    def controller(self, **parts: Any) -> WorkerController:
        return replace(super().controller(**parts), plane=self.plane(WORKER_CONTROLLER))

    def pool_controller(self, holder: str = "pools") -> PoolController:
        return PoolController(
            plane=self.core.plane_for(service(POOL_CONTROLLER)),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder=holder,
        )

    @asynccontextmanager
    async def booking(self) -> AsyncIterator["Pools"]:
        """Run the desk's calendar beside what a test does."""
        assert self.core.promises is not None
        async with beside(self.core.promises.calendar.run()):
            yield self

    @asynccontextmanager
    async def following(self, *, workers: bool = False) -> AsyncIterator["Pools"]:
        """Run the pool controller, and the worker controller if asked to, beside what a test does."""
        async with self.booking():
            if workers:
                async with beside(self.controller().run()), beside(self.pool_controller().run()):
                    yield self
            else:
                async with beside(self.pool_controller().run()):
                    yield self

    @asynccontextmanager
    async def scaling(self) -> AsyncIterator["Pools"]:
        """Run the pool controller, the scheduler and the lives of sessions beside what a test does."""
        scheduler = SchedulerController(
            plane=self.core.plane_for(service(SCHEDULER)),
            clock=self.clock,
            stopwatch=VirtualStopwatch(),
            chance=self.half,
            settings=self.settings,
            holder="scheduler",
        )
        lablets = Lablets(self.core.plane_for(service(LABLET_CONTROLLER)), self.clock)
        async with self.following(), beside(scheduler.run()), beside(lablets.run()):
            yield self

    async def want(self, *names: str, span: timedelta = 2 * HOUR, **fields: Any) -> None:
        """Ask for sessions as soon as possible."""
        minutes = span // MINUTE
        for name in names:
            spec = LabletSessionSpec(definition="basics:1.0.0", duration_minutes=minutes, **fields)
            await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def found(
        self,
        *,
        cpu: int = 4,
        template: dict[str, Any] | None = None,
        smaller: Sequence[str] = (),
        **spec: Any,
    ) -> LabWorkerPool:
        """Make a template, a definition and a pool."""
        worker = self.spec(**(template or {}))
        made = WorkerTemplateSpec(
            worker=worker, name_prefix="ccna", labels={"team": "exams"}, smaller_types=tuple(smaller)
        )
        await self.otto.create(WorkerTemplate(metadata=Metadata(name="metal"), spec=made))
        definition = given.definition(
            lab_track="ccna",
            state=DefinitionState.ACTIVE,
            node_count=5,
            resource_requirements=ResourceRequirements(cpu_cores=cpu, memory_gb=8),
        )
        await self.otto.create(LabletDefinition(metadata=Metadata(name="basics:1.0.0"), spec=definition.spec))
        wanted: dict[str, Any] = {"min_workers": 0, "max_workers": 10} | spec
        pool = LabWorkerPoolSpec(lab_track="ccna", template="metal", **wanted)
        return await self.otto.create(LabWorkerPool(metadata=Metadata(name="ccna"), spec=pool))

    async def book(self, name: str, start: datetime, span: timedelta = 2 * HOUR) -> LabletSession:
        spec = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=start + span)
        return await self.otto.create(LabletSession(metadata=Metadata(name=name), spec=spec))

    async def book_many(self, count: int, start: datetime, span: timedelta = 2 * HOUR) -> Sequence[LabletSession]:
        return await asyncio.gather(*(self.book(f"s{number}", start, span) for number in range(count)))

    async def pool(self) -> LabWorkerPool:
        found = await self.otto.get(CCNA)
        assert found is not None, "the pool is gone"
        return found

    async def workers(self) -> Sequence[LabWorker]:
        return (await self.otto.list(LabWorker)).items

    async def settles(self, seconds: float = 5) -> LabWorkerPool | None:
        """Let the controller have its looks."""
        await asyncio.sleep(seconds)
        return await self.otto.get(CCNA)

    async def pool_reaches(self, phase: PoolPhase, within: timedelta = 3 * HOUR) -> LabWorkerPool:
        until = self.clock.now() + within
        while (pool := await self.pool()).status.phase is not phase:
            assert self.clock.now() < until, f"it is {pool.status.phase}"
            await asyncio.sleep(5)
        return pool

    async def comes_up(self, name: str) -> LabWorker:
        """Take a worker to where it accepts labs, as its controller would, with no machine behind it."""
        worker = await self.worker(name)
        way = UP if worker.status.phase is WorkerPhase.PENDING else UP[2:]
        for phase in way:
            worker = await self.stepped(worker, phase)
        return worker

    async def stepped(self, worker: LabWorker, phase: WorkerPhase, **fields: Any) -> LabWorker:
        """Take a worker one step further, with what that needs."""
        machine = "" if phase is WorkerPhase.PROVISIONING_EC2 else "i-1"
        status = msgspec.structs.replace(
            worker.status,
            phase=phase,
            ec2=msgspec.structs.replace(worker.status.ec2, client_token="t", instance_id=machine, launch_attempt=1),
            cml=msgspec.structs.replace(
                worker.status.cml, api_url="https://cml", version="2.9.0", ready=True, licensed=phase in _LICENSED
            ),
            capacity=declared_capacity(worker.spec) if is_small(worker) else given.machine(labs=20),
            conditions=(_accepting(phase, self.clock.now()),),
            observed_generation=worker.metadata.generation,
            **fields,
        )
        return await self.plane(WORKER_CONTROLLER).step(worker, status)


_LICENSED = frozenset({WorkerPhase.READY, WorkerPhase.ACTIVE})


def _accepting(phase: WorkerPhase, now: datetime) -> Condition:
    truth = Truth.TRUE if phase in _LICENSED else Truth.FALSE
    return Condition(type=WorkerCondition.ACCEPTING_LABS, status=truth, last_transition_at=now)


def names(workers: Sequence[LabWorker]) -> list[str]:
    return sorted(one.metadata.name for one in workers)
