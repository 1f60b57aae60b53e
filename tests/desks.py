"""A booking desk in virtual time: a pool of metal machines with room for a dozen labs each, and planes that promise."""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any, ParamSpec

import given
from backstage import OTTO, service
from estates import beside, spec
from lcm.control.accounts.billing import OPEN_PREFIX
from lcm.control.accounts.step_records import NO_LIMITS, FleetSettings
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Amount, Claim, Profile
from lcm.model.base.errors import Conflict
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, WorkerTemplate, WorkerTemplateSpec
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.money.prices import declared_capacity
from lcm.placement.claims import Terms
from lcm.placement.places import claims_of_booking
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

    def __init__(self, *, planes: int = 1, fleet: FleetSettings = NO_LIMITS) -> None:
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
