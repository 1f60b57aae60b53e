"""A control plane and its callers, in process on each store engine or over HTTP; objects in any phase."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx
import pytest

from harness import given
from harness.asgi import AsgiTransport
from harness.credentials import given_keys
from harness.servers import LOOPBACK, free_port
from harness.stores import HandClock, HandStopwatch, SimulatedSource, etcd_arena
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.control.access.sealing import Sealer
from lcm.control.access.tokens import Tokens
from lcm.control.admission.admit import Quota, allow_all
from lcm.control.booking.step_records import NO_LIMITS, FleetSettings
from lcm.control.objects.records import creation_ops, find_record
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Changes, Plane, PlaneWatch, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.event import Event, decode_event
from lcm.model.kinds.definition import DefinitionState, LabletDefinition
from lcm.model.kinds.pool import WorkerTemplate
from lcm.model.kinds.registry import Resource
from lcm.placement.claims import Terms
from lcm.providers.protocols.artifacts import Artifacts
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Store
from lcm.store.hub import BACKLOG
from lcm.store.memory import MemoryStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import new_id
from lcm.system.serving import listen, serve

R = TypeVar("R", bound=Resource)
NOW = given.moment("08:00")
ROOT = Caller(name="root", role=Role.ADMIN)
OTTO = Caller(name="otto", role=Role.OPERATOR)
ANNA = Caller(name="anna", role=Role.AUTHOR)
ADA = Caller(name="ada", role=Role.USER)
BOB = Caller(name="bob", role=Role.USER)


def service(actor: str) -> Caller:
    return Caller(name="service", role=Role.SERVICE, actor=actor)


@dataclass
class Standing:
    """A clock that stands still until a test sets it."""

    moment: datetime = NOW

    def now(self) -> datetime:
        return self.moment


@dataclass
class Stage:
    """A store with a plane for each caller."""

    store: Store = field(default_factory=MemoryStore)
    clock: Clock = field(default_factory=Standing)
    quota: Quota = allow_all
    sealer: Sealer = field(default_factory=given_keys)
    fleet: FleetSettings = NO_LIMITS

    def __post_init__(self) -> None:
        numbers = count(1)
        ids = lambda: f"uid-{next(numbers)}"  # noqa: E731
        self.core = ControlPlane(
            self.store, clock=self.clock, ids=ids, quota=self.quota, sealer=self.sealer, fleet=self.fleet
        )

    def __getitem__(self, caller: Caller) -> LocalPlane:
        return self.core.plane_for(caller)

    async def put(self, resource: R) -> R:
        """Place an object as it is, whatever its phase, and read it back."""
        await self.store.commit(*creation_ops(resource))
        record = await find_record(self.store, ref_of(resource))
        assert record is not None
        return record.resource

    async def read(self, resource: R) -> R | None:
        record = await find_record(self.store, ref_of(resource))
        return record.resource if record else None

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision

    async def keys(self) -> list[str]:
        """Name everything that is stored but the audit and the guards."""
        every = [entry.key for entry in (await self.store.scan("", limit=1000)).entries]
        return [key for key in every if not key.startswith(("audit/", "guards/"))]

    async def told(self, after: int = 0) -> Sequence[Event]:
        """Read every event committed after a revision."""
        end = await self.revision()
        events: list[Event] = []
        async with self.store.events(after=after) as reader:
            # A commit of ours marks the end, so that nobody waits for what does not come.
            await self.store.commit(events=[b"end"])
            async for happened in reader:
                if happened.revision > end:
                    return events
                events += [decode_event(raw) for raw in happened.events]
        raise AssertionError("the reader ended by itself")

    async def types(self, after: int = 0) -> list[str]:
        return [event.type for event in await self.told(after)]


def active(**overrides: object) -> LabletDefinition:
    """Return a definition that may be booked."""
    return given.definition(**{"state": DefinitionState.ACTIVE} | overrides)


T = TypeVar("T")
KEY = Secret("the-service-key-of-a-test")
LIMITS = ApiLimits(
    requests_per_second=1e9, burst=10**9, failures_per_minute=1e9, failure_burst=10**9, write_burst=10**9
)
PATIENCE = 60.0
"""Seconds after which something that should happen counts as not happening."""

CAST = {
    "root": Role.ADMIN,
    "otto": Role.OPERATOR,
    "anna": Role.AUTHOR,
    "ines": Role.INSTRUCTOR,
    "ada": Role.USER,
    "bob": Role.USER,
    "vera": Role.VIEWER,
}
"""Who takes part."""


class Door(Protocol):
    """Gives a plane to a caller."""

    def __call__(self, caller: Caller) -> Plane: ...


@dataclass
class World:
    """One store, and planes onto it for whoever takes part."""

    store: Store
    door: Door
    wait: Callable[[float], Awaitable[None]]
    artifacts: Artifacts | None = None
    _planes: dict[tuple[str, str], Plane] = field(default_factory=dict)

    @property
    def root(self) -> Plane:
        return self.person("root")

    @property
    def ada(self) -> Plane:
        return self.person("ada")

    @property
    def bob(self) -> Plane:
        return self.person("bob")

    def person(self, name: str) -> Plane:
        return self._plane(Caller(name=name, role=CAST[name]))

    def service(self, actor: str) -> Plane:
        return self._plane(Caller(name="service", role=Role.SERVICE, actor=actor))

    async def pass_time(self, seconds: float) -> None:
        """Let time go by, for clocks and for leases."""
        await self.wait(seconds)

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision

    def _plane(self, caller: Caller) -> Plane:
        who = (caller.name, caller.actor)
        if who not in self._planes:
            self._planes[who] = self.door(caller)
        return self._planes[who]


Files = Mapping[str, bytes]
Body = Callable[[World], Awaitable[None]]
Place = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[World]]


class Site:
    """An API over a store, the tokens of everybody who takes part, and the planes that were opened onto it."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        ids: Callable[[], str] = new_id,
        terms: Terms | None = None,
        artifacts: Artifacts | None = None,
    ) -> None:
        self.core = ControlPlane(store, clock=clock, ids=ids, terms=terms, artifacts=artifacts)
        self.tokens = Tokens(store, clock=clock, service_key=KEY)
        self.api = Api(self.core, self.tokens, clock=clock, limits=LIMITS)
        self._keys: dict[str, Secret] = {}
        self._opened: list[HttpPlane] = []

    async def start(self) -> None:
        await self.tokens.start()
        made = await asyncio.gather(*(self.tokens.make(name, role) for name, role in CAST.items()))
        self._keys = {token.name: secret for secret, token in made}

    def plane(self, caller: Caller, url: str, transport: httpx.AsyncBaseTransport | None = None) -> HttpPlane:
        if caller.role is Role.SERVICE:
            plane = HttpPlane.open(url, KEY, actor=caller.actor, caller=caller, transport=transport)
        else:
            plane = HttpPlane.open(url, self._keys[caller.name], caller=caller, transport=transport)
        self._opened.append(plane)
        return plane

    async def close(self) -> None:
        for plane in self._opened:
            await plane.close()
        await self.tokens.close()


@asynccontextmanager
async def served(api: Api, port: int) -> AsyncIterator[str]:
    """Serve an API on a port until the block ends; gives its address."""
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(api, listen(LOOPBACK, port), None, stop))
    try:
        yield f"http://{LOOPBACK}:{port}"
    finally:
        stop.set()
        await serving


@asynccontextmanager
async def promising(core: ControlPlane) -> AsyncIterator[ControlPlane]:
    """Run the calendar of a control plane that has terms until the block ends."""
    if core.promises is None:
        yield core
        return
    following = asyncio.create_task(core.promises.calendar.run())
    try:
        yield core
    finally:
        following.cancel()
        await asyncio.wait([following])


def depot(clock: Clock, files: Files | None) -> SimulatedArtifacts | None:
    """Return a place for files, with these to be read besides; None without any."""
    return None if files is None else SimulatedArtifacts(clock, sources=[SimulatedSource(files)])


@asynccontextmanager
async def _in_memory(
    _: pytest.FixtureRequest, *, backlog: int = BACKLOG, terms: Terms | None = None, files: Files | None = None
) -> AsyncIterator[World]:
    store, artifacts = MemoryStore(backlog=backlog), depot(VirtualClock(), files)
    async with promising(ControlPlane(store, clock=VirtualClock(), terms=terms, artifacts=artifacts)) as core:
        yield World(store, core.plane_for, asyncio.sleep, artifacts)
    await store.close()


@asynccontextmanager
async def _in_memory_over_http(
    _: pytest.FixtureRequest, *, backlog: int = BACKLOG, terms: Terms | None = None, files: Files | None = None
) -> AsyncIterator[World]:
    store, artifacts = MemoryStore(backlog=backlog), depot(VirtualClock(), files)
    site = Site(store, VirtualClock(), terms=terms, artifacts=artifacts)
    await site.start()
    way = AsgiTransport(site.api)
    async with promising(site.core):
        yield World(store, lambda caller: site.plane(caller, "http://memory", way), asyncio.sleep, artifacts)
        await site.close()
    await store.close()


@asynccontextmanager
async def _on_sqlite(
    request: pytest.FixtureRequest, *, backlog: int = BACKLOG, terms: Terms | None = None, files: Files | None = None
) -> AsyncIterator[World]:
    clock, stopwatch = hand_clock(), HandStopwatch()
    artifacts = depot(clock, files)
    store = await SqliteStore.open(_file(request), stopwatch=stopwatch, backlog=backlog)
    async with promising(ControlPlane(store, clock=clock, terms=terms, artifacts=artifacts)) as core:
        yield World(store, core.plane_for, _by_hand(clock, stopwatch), artifacts)
    await store.close()


@asynccontextmanager
async def _on_sqlite_over_http(
    request: pytest.FixtureRequest, *, backlog: int = BACKLOG, terms: Terms | None = None, files: Files | None = None
) -> AsyncIterator[World]:
    clock, stopwatch = hand_clock(), HandStopwatch()
    artifacts = depot(clock, files)
    store = await SqliteStore.open(_file(request), stopwatch=stopwatch, backlog=backlog)
    site = Site(store, clock, terms=terms, artifacts=artifacts)
    await site.start()
    async with promising(site.core), served(site.api, free_port()) as url:
        yield World(store, lambda caller: site.plane(caller, url), _by_hand(clock, stopwatch), artifacts)
        await site.close()
    await store.close()


@asynccontextmanager
async def _on_etcd(
    request: pytest.FixtureRequest, *, backlog: int = BACKLOG, terms: Terms | None = None, files: Files | None = None
) -> AsyncIterator[World]:
    clock = hand_clock()
    arena = etcd_arena(request.getfixturevalue("etcd").endpoint)
    store, artifacts = await arena.open(backlog=backlog), depot(clock, files)
    async with promising(ControlPlane(store, clock=clock, terms=terms, artifacts=artifacts)) as core:
        yield World(store, core.plane_for, _by_hand(clock, HandStopwatch()), artifacts)
    await arena.close()


def _file(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue("tmp_path")
    return folder / "store.db"


def hand_clock() -> HandClock:
    clock = HandClock()
    clock.moment = NOW
    return clock


def _by_hand(clock: HandClock, stopwatch: HandStopwatch) -> Callable[[float], Awaitable[None]]:
    async def wait(seconds: float) -> None:
        clock.step(seconds=seconds)
        stopwatch.step(seconds)
        await asyncio.sleep(0)

    return wait


_PLACES: dict[str, Callable[..., AbstractAsyncContextManager[World]]] = {
    "memory": _in_memory,
    "memory-http": _in_memory_over_http,
    "sqlite": _on_sqlite,
    "sqlite-http": _on_sqlite_over_http,
    "etcd": _on_etcd,
}


def on(*places: str, **options: Any) -> Callable[[Body], Callable[..., None]]:
    """Make a test of a body, once for each of these places."""

    def decorate(body: Body) -> Callable[..., None]:
        def test(place: str, request: pytest.FixtureRequest) -> None:
            async def main() -> None:
                async with _PLACES[place](request, **options) as world:
                    await body(world)

            run(main, start=NOW) if place.startswith("memory") else asyncio.run(main())

        test.__name__ = body.__name__
        return pytest.mark.parametrize("place", places)(test)

    return decorate


everywhere = on(*_PLACES)
either = on("memory", "memory-http")
"""Where neither the engine nor a real port makes a difference."""
on_any_wire = on("memory", "memory-http", "sqlite-http")
over_http = on("memory-http", "sqlite-http")


def template(name: str = "metal", **metadata: object) -> WorkerTemplate:
    """Return a template with these things in its metadata; its spec has labels too."""
    return given.changed(given.template(), {"metadata": {"name": name, **metadata}})


async def take(watch: PlaneWatch, count: int = 1) -> list[Changes]:
    """Read so many commits, in time."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(watch) for _ in range(count)]


async def quiet(watch: PlaneWatch, seconds: float = 0.15) -> bool:
    """Return whether nothing more comes."""
    try:
        async with asyncio.timeout(seconds):
            await anext(watch)
    except TimeoutError:
        return True
    return False


def names(changes: Changes) -> list[tuple[str, bool]]:
    """Return which objects a commit touched, and whether they are still there."""
    return [(seen.ref.name, seen.resource is not None) for seen in changes.seen]
