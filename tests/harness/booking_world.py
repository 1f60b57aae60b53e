"""A control plane that promises, in virtual time: pools of metal machines, workers that stand there, planes."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any, ParamSpec, TypeVar

from harness import given
from harness import workers as companies
from harness.api_world import ApiServer
from harness.plane_world import NOW, OTTO, Standing, active, service
from harness.workers import beside, spec
from lcm.control.accounts.costs import OPEN_PREFIX
from lcm.control.booking.quota import OwnerLimits
from lcm.control.booking.step_records import NO_LIMITS, FleetSettings
from lcm.control.objects.records import creation_ops, find_record
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.access.identity import Caller
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.errors import Conflict
from lcm.model.base.machine import POOL_CONTROLLER, SCHEDULER
from lcm.model.base.resource import Condition, Metadata, Truth
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, PortUse, ResourceRequirements
from lcm.model.kinds.placement import Assignment
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, Seat, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.places import claims_of_booking
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Cursor, Fence, Op, Page
from lcm.store.memory import MemoryStore

A = ParamSpec("A")
CCNA = Ref(LabWorkerPool, "ccna")
NINE, ELEVEN = given.moment("09:00"), given.moment("11:00")
DOZEN = 12
"""Labs that fit on one machine."""
METAL = declared_capacity(spec())


def from_monday(test: Callable[A, Coroutine[Any, Any, None]]) -> Callable[A, None]:
    """Run a test in virtual time, which begins in the night to a Monday."""

    @functools.wraps(test)
    def wrapped(*args: A.args, **kwargs: A.kwargs) -> None:
        run(lambda: test(*args, **kwargs), start=given.MONDAY)

    return wrapped


class CountingStore(MemoryStore):
    """Counts the commits that are tried, and those that somebody else was faster than."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = 0
        self.conflicts = 0
        self.before_next: Callable[[], Coroutine[Any, Any, object]] | None = None
        """What somebody else does just before the next commit."""
        self.after_next: Callable[[], Coroutine[Any, Any, object]] | None = None
        """What somebody else does between the next commit and the one after it."""
        self.before_costs: Callable[[], Coroutine[Any, Any, object]] | None = None
        """What somebody else does just before the costs are read."""

    async def scan(
        self, prefix: str, *, labels: Mapping[str, str] | None = None, limit: int = 500, cursor: Cursor | None = None
    ) -> Page:
        first, self.before_costs = (self.before_costs, None) if prefix == OPEN_PREFIX else (None, self.before_costs)
        if first is not None:
            await first()
        return await super().scan(prefix, labels=labels, limit=limit, cursor=cursor)

    async def commit(self, *ops: Op, events: Sequence[bytes] = (), fence: Fence | None = None) -> int:
        first, self.before_next = self.before_next, None
        if first is not None:
            await first()
        self.tried += 1
        try:
            revision = await super().commit(*ops, events=events, fence=fence)
        except Conflict:
            self.conflicts += 1
            raise
        meanwhile, self.after_next = self.after_next, None
        if meanwhile is not None:
            await meanwhile()
        return revision


class Office:
    """Planes on one store, each with its own calendar; a definition of which a dozen fit on a machine."""

    def __init__(self, *, planes: int = 1, fleet: FleetSettings = NO_LIMITS, limits: OwnerLimits | None = None) -> None:
        self.store = CountingStore()
        self.clock = VirtualClock()
        numbers, chance = count(1), Random(7)
        self.cores = [
            ControlPlane(
                self.store,
                clock=self.clock,
                ids=lambda: f"uid-{next(numbers)}",
                fleet=fleet,
                terms=Terms(),
                limits=limits,
                chance=chance.random,
            )
            for _ in range(planes)
        ]

    @asynccontextmanager
    async def open(self, **pool: Any) -> AsyncIterator["Office"]:
        """Run the calendars, with a pool of these fields; without any, there is none."""
        async with AsyncExitStack() as running:
            for core in self.cores:
                assert core.promises is not None
                await running.enter_async_context(beside(core.promises.calendar.run()))
            await self.otto.create(lab())
            if pool:
                price = pool.pop("price", None)
                await self.otto.create(metal(price_per_hour_usd=price))
                await self.otto.create(a_pool(**pool))
            yield self

    @property
    def otto(self) -> LocalPlane:
        return self.cores[0].plane_for(OTTO)

    def by(self, actor: str) -> LocalPlane:
        return self.cores[0].plane_for(service(actor))

    async def book(self, name: str, start: datetime = NINE, **fields: Any) -> LabletSession:
        return await self.otto.create(slot(name, start, **fields))

    async def sessions(self) -> Sequence[LabletSession]:
        return (await self.otto.list(LabletSession, limit=1000)).items

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision

    async def claims(self) -> dict[int, list[Claim]]:
        """Read who has claims on which seat from the store, and from nothing else."""
        found: dict[int, list[Claim]] = {}
        bookings: list[LabletSession | Reservation] = [*await self.sessions()]
        bookings += (await self.otto.list(Reservation, limit=1000)).items
        for booking in bookings:
            for _, number, held in claims_of_booking(booking):
                found.setdefault(number, []).append(held.claim)
        return {seat: sorted(claims, key=lambda one: (one.start, one.end)) for seat, claims in found.items()}

    async def overcommitted(self, room: Amount | None = METAL) -> list[int]:
        assert room is not None
        return [seat for seat, claims in (await self.claims()).items() if Profile.of(claims).find_overcommitted(room)]


def lab(**fields: Any) -> LabletDefinition:
    usual = {
        "lab_track": "ccna",
        "state": DefinitionState.ACTIVE,
        "resource_requirements": ResourceRequirements(cpu_cores=4, memory_gb=16),
        "node_count": 5,
        "max_duration_minutes": 480,
    }
    return given.definition(**usual | fields)


def metal(**fields: Any) -> WorkerTemplate:
    return WorkerTemplate(metadata=Metadata(name="metal"), spec=WorkerTemplateSpec(worker=spec(), **fields))


def a_pool(**fields: Any) -> LabWorkerPool:
    usual: dict[str, Any] = {"lab_track": "ccna", "template": "metal", "min_workers": 0}
    wanted = LabWorkerPoolSpec(**usual | fields)
    return LabWorkerPool(metadata=Metadata(name="ccna"), spec=wanted)


def slot(name: str, start: datetime = NINE, *, minutes: int = 120, **fields: Any) -> LabletSession:
    end = start + timedelta(minutes=minutes)
    wanted = LabletSessionSpec(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end, **fields)
    return LabletSession(metadata=Metadata(name=name), spec=wanted)


R = TypeVar("R", bound=Resource)
HOUR = timedelta(hours=1)


class Counter:
    """One store, its control plane and whoever stands before it."""

    def __init__(self, fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None) -> None:
        self.store = MemoryStore()
        ids = Ids(Chance(1).stream("ids"))
        self.core = ControlPlane(
            self.store, clock=VirtualClock(), ids=ids, record_ids=ids, fleet=fleet, terms=terms or Terms()
        )

    @property
    def otto(self) -> LocalPlane:
        return self.core.plane_for(OTTO)

    def __getitem__(self, caller: Caller) -> LocalPlane:
        return self.core.plane_for(caller)

    async def put(self, *resources: Resource) -> None:
        """Place objects as they are, whatever their phases, and let the calendar learn of them."""
        assert self.core.promises is not None
        for one in resources:
            revision = await self.store.commit(*creation_ops(one))
            await self.core.promises.calendar.wait_for_revision(revision)

    async def read(self, resource: R) -> R:
        record = await find_record(self.store, ref_of(resource))
        assert record is not None
        return record.resource


@asynccontextmanager
async def staffed(fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None) -> AsyncIterator[Counter]:
    counter = Counter(fleet, terms)
    assert counter.core.promises is not None
    async with beside(counter.core.promises.calendar.run()):
        yield counter
    await counter.store.close()


def attended(
    work: Callable[[Counter], Awaitable[None]], *, fleet: FleetSettings = NO_LIMITS, terms: Terms | None = None
) -> None:
    """Do something at a desk, in virtual time from eight o'clock on."""

    async def main() -> None:
        async with staffed(fleet, terms) as counter:
            await work(counter)

    run(main, start=NOW)


def counter_lab(cores: float = 4, **more: object) -> LabletDefinition:
    """Return a lab that may be booked and says what it needs."""
    needs = ResourceRequirements(cpu_cores=cores, memory_gb=8)
    said = {"state": DefinitionState.ACTIVE, "resource_requirements": needs, "node_count": 4, "lab_track": "ccna"}
    return given.definition(**said | more)


def warm(name: str = "w1", phase: WorkerPhase = WorkerPhase.READY, **more: Any) -> LabWorker:
    """Return a worker that serves, unless it is said otherwise."""
    cml = {"licensed": True, "ready": True, **more.pop("cml", {})}
    serves = phase in {WorkerPhase.READY, WorkerPhase.ACTIVE}
    accepts = Condition(
        type=WorkerCondition.ACCEPTING_LABS,
        status=Truth.TRUE if serves else Truth.FALSE,
        last_transition_at=NOW,
        reason="Ready" if serves else f"Phase{phase}",
    )
    return companies.worker(name, phase, cml=cml, conditions=(accepts,), **more)


def pool(*workers: LabWorker, **more: object) -> LabWorkerPool:
    """Return a pool whose first seats these workers fill."""
    seats = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    return given.pool(**{"min_workers": 0, "max_workers": 2, "seats": seats} | more)


def running(name: str, on: LabWorker, seat: int | None = None, **need: int) -> LabletSession:
    """Return somebody else's session that is on a worker until eleven, and takes so much of it."""
    place = {"worker_id": on.metadata.uid, "worker_name": on.metadata.name}
    return given.asap(
        name=name,
        uid=f"uid-{name}",
        owner="bob",
        lab_track="ccna",
        phase=SessionPhase.RUNNING,
        claim=Claim(start=NOW - HOUR, end=NOW + 3 * HOUR, need=Amount(labs=1, **need)),
        seat=Seat(pool="ccna", number=seat) if seat else None,
        **place,
    )


def wanted(**more: object) -> LabletSession:
    """Return Ada's session, which waits to be placed as soon as possible."""
    return given.asap(**{"name": "wanted", "uid": "uid-wanted", "owner": "ada", "lab_track": "ccna"} | more)


NEED = Amount(cpu_millis=4_000, memory_mb=16_384, storage_mb=20_480, nodes=4, ports=3, labs=1)
ROOM = Amount(cpu_millis=8_000, memory_mb=43_008, storage_mb=51_200, nodes=10, ports=6_000, labs=3)
PORTS = ("PC_serial", "PC_vnc", "web")


@dataclass
class Hall:
    """Some control planes on one store; verbs go to the first unless said otherwise."""

    planes: int = 1
    fleet: FleetSettings = NO_LIMITS
    store: MemoryStore = field(default_factory=MemoryStore)
    clock: Standing = field(default_factory=Standing)
    cores: list[ControlPlane] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = count(1)
        ids = lambda: f"uid-{next(numbers)}"  # noqa: E731 - as short as what it stands for
        for _ in range(self.planes):
            terms = Terms()
            self.cores.append(ControlPlane(self.store, clock=self.clock, ids=ids, terms=terms, fleet=self.fleet))

    def scheduler(self, plane: int = 0) -> LocalPlane:
        return self.cores[plane].plane_for(service(SCHEDULER))

    def follower(self) -> LocalPlane:
        return self.cores[0].plane_for(service(POOL_CONTROLLER))

    async def put(self, resource: R) -> R:
        await self.store.commit(*creation_ops(resource))
        return await self.read(resource)

    async def read(self, resource: R) -> R:
        found = await find_record(self.store, ref_of(resource))
        assert found is not None
        return found.resource

    async def place(
        self, session: LabletSession, *, worker: LabWorker | None = None, seat: int | None = None, plane: int = 0
    ) -> LabletSession:
        """Put a session somewhere for as long as it has a claim, or for two hours from now on."""
        held = session.status.claim
        start, end = (held.start, held.end) if held else (NOW, NOW + 2 * HOUR)
        return await self.scheduler(plane).schedule(session, assignment(start, end, worker=worker, seat=seat))


@asynccontextmanager
async def hall(planes: int = 1, fleet: FleetSettings = NO_LIMITS) -> AsyncIterator[Hall]:
    """Open a hall that has the definition basics:1.0.0."""
    made = Hall(planes, fleet)
    async with AsyncExitStack() as running, asyncio.timeout(60):
        for core in made.cores:
            assert core.promises is not None
            await running.enter_async_context(beside(core.promises.calendar.run()))
        await made.put(hall_lab())
        yield made


def assignment(
    start: datetime = NOW, end: datetime = NOW + 2 * HOUR, *, worker: LabWorker | None = None, seat: int | None = None
) -> Assignment:
    return Assignment(
        start=start,
        end=end,
        worker_id=worker.metadata.uid if worker else None,
        seat=None if seat is None else Seat(pool="ccna", number=seat),
    )


def hall_lab(need: Amount = NEED, ports: tuple[str, ...] = PORTS) -> LabletDefinition:
    requirements = ResourceRequirements(
        cpu_cores=need.cpu_millis / 1000, memory_gb=need.memory_mb / 1024, storage_gb=need.storage_mb / 1024
    )
    template = {name: PortUse(kind="vnc", node=name) for name in ports}
    return active(resource_requirements=requirements, node_count=need.nodes, port_template=template)


def waiting(name: str, **overrides: object) -> LabletSession:
    """Return a session that is wanted as soon as possible."""
    return given.asap(**{"name": name, "uid": f"uid-{name}"} | overrides)


def booked(name: str, seat: int | None = 1, start: datetime = NOW + HOUR, **overrides: object) -> LabletSession:
    """Return a session with a slot of an hour, that has a claim for it."""
    held = claim(start, start + HOUR)
    fields = {"claim": held, "seat": Seat(pool="ccna", number=seat) if seat else None}
    slot = {"timeslot_start": start, "timeslot_end": start + HOUR}
    return given.session(**{"name": name, "uid": f"uid-{name}"} | fields | slot | overrides)


def claim(start: datetime = NOW, end: datetime = NOW + 2 * HOUR, need: Amount = NEED) -> Claim:
    return Claim(start=start, end=end, need=need)


def on(worker: LabWorker, name: str, **overrides: object) -> LabletSession:
    """Return a session that runs on a worker."""
    there = {"worker_id": worker.metadata.uid, "phase": SessionPhase.RUNNING, "claim": claim()}
    return waiting(name, **there | overrides)


def worker(name: str = "w1", *, licensed: bool = True, **overrides: object) -> LabWorker:
    """Return a worker that takes sessions."""
    accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=NOW)
    ready = {"phase": WorkerPhase.READY, "conditions": (accepts,), "capacity": ROOM}
    made = given.worker(**{"name": name, "uid": f"uid-{name}"} | ready | overrides)
    return given.changed(made, {"status": {"cml": {"licensed": licensed}}})


def filled(*workers: LabWorker, **overrides: object) -> LabWorkerPool:
    """Return a pool whose first seats have these workers."""
    seats = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    return given.pool(**{"seats": seats, "min_workers": 0, "max_workers": 3} | overrides)


TERMS = Terms(boot=timedelta(minutes=10), instantiation=timedelta(minutes=5))


def furnish(api: ApiServer, *, seats: int = 2) -> None:
    """Make the pool `ccna` with so many seats, and the lab `basics`, of which two fit on one."""

    async def work(plane: Plane) -> None:
        await plane.create(given.template(worker=spec()))
        await plane.create(given.pool(min_workers=0, max_workers=seats))
        needs = ResourceRequirements(cpu_cores=20, memory_gb=16)
        await plane.create(
            given.definition(
                lab_track="ccna", state="active", node_count=5, resource_requirements=needs, max_duration_minutes=180
            )
        )

    api.do(work)
