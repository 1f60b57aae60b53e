"""An API in memory or on a real port, callers of every role, and `lcm` run against it in the test's own process."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import structlog
from typer.testing import CliRunner, Result

from harness.asgi import AsgiTransport
from harness.credentials import given_keys
from harness.plane_world import CAST, LIMITS, hand_clock
from harness.servers import LOOPBACK, free_port
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.api.http.pages import Pages
from lcm.api.http.routing import Route
from lcm.api.openapi.description import ANSWERS, DOCUMENTS
from lcm.api.routes.plan_shapes import PlanBaseline, PlanJob, Planner, PlanWish
from lcm.api.routes.table import ROUTES
from lcm.cli.main import app
from lcm.control.access.oidc import Verifier
from lcm.control.access.oidc_browser import BrowserSignIn
from lcm.control.access.tokens import Tokens
from lcm.control.booking.quota import OwnerLimits
from lcm.control.delivery.sinks import NO_SINKS, SinkSettings
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane
from lcm.model.access.address import TrustedProxies
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone
from lcm.model.kinds.registry import KINDS, Resource
from lcm.placement.claims import Terms
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import Op, Store
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock, new_epoch, new_id
from lcm.system.serving import listen, serve

KEY = "the-service-key-of-a-test"
ROLES = {**{name: role for name, role in CAST.items() if name != "bob"}, "service": Role.SERVICE}
"""One of each role, by name."""
ROOT = Caller(name="root", role=Role.ADMIN)
OWNED = ("LabletSession", "Reservation")


class OnePlan:
    """Has made one plan, the one of the examples, and begins no other."""

    def __init__(self) -> None:
        self._job: PlanJob = msgspec.convert(ANSWERS["PlanJob"], PlanJob)

    async def begin(self, wish: PlanWish, by: str, standing: PlanBaseline | None = None) -> PlanJob:
        assert (standing is not None) == wish.from_now, "what there is comes with whoever asks for it"
        assert wish.timetable is not None, "the examples have no file"
        return msgspec.structs.replace(self._job, by=by, progress=1 / len(wish.timetable.sessions))

    def find(self, name: str) -> PlanJob:
        if name != self._job.id:
            raise Gone(f"there is no plan {name}")
        return self._job

    def report(self, name: str) -> str:
        return f"<!doctype html>{self.find(name).id}"

    async def cancel(self, name: str) -> None:
        self.find(name)


class Desk:
    """Asks the API as whoever is named; nobody is named "" and a service "service"."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        limits: ApiLimits,
        routes: Sequence[Route],
        ids: Any = new_id,
        house: SinkSettings = NO_SINKS,
        verifier: Verifier | None = None,
        plans: Planner | None = None,
        proxies: TrustedProxies | None = None,
        pages: Pages | None = None,
        provider: BrowserSignIn | None = None,
        configuration: Any = lambda _: (),
    ) -> None:
        self.store = store
        self.core = ControlPlane(store, clock=clock, ids=ids, sealer=given_keys(), sinks=house)
        self.tokens = Tokens(store, clock=clock, service_key=Secret(KEY))
        self.api = Api(
            self.core,
            self.tokens,
            clock=clock,
            limits=limits,
            routes=routes,
            verifier=verifier,
            plans=plans or OnePlan(),
            proxies=proxies or TrustedProxies(),
            pages=pages,
            provider=provider,
            configuration=configuration,
        )
        self.secrets = {"service": KEY}
        self._client = httpx.AsyncClient(transport=AsgiTransport(self.api), base_url="http://desk", timeout=SOON)

    async def ask(self, who: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request; `json`, `content`, `params` and `headers` are httpx's."""
        headers = {**self.signed(who), **request.pop("headers", {})}
        return await self._client.request(method, path, headers=headers, **request)

    def streamed(self, who: str, path: str, **request: Any) -> AbstractAsyncContextManager[httpx.Response]:
        """Begin to read an answer that goes on."""
        headers = {**self.signed(who), **request.pop("headers", {})}
        return self._client.stream("GET", path, headers=headers, **request)

    async def done(self, who: str, method: str, path: str, **request: Any) -> Any:
        """Send a request that must succeed, and give its answer."""
        answer = await self.ask(who, method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def signed(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}

    async def start(self) -> None:
        await self.tokens.start()
        self._following = asyncio.create_task(self.api.run())
        for name, role in CAST.items():
            self.secrets[name] = (await self.tokens.make(name, role))[0].reveal()

    async def close(self) -> None:
        await self._client.aclose()
        self._following.cancel()
        await asyncio.wait([self._following])
        await self.tokens.close()
        await self.store.close()

    async def revision(self) -> int:
        return (await self.store.scan("", limit=1)).revision


@asynccontextmanager
async def opened(
    *,
    store: Store | None = None,
    clock: Clock | None = None,
    limits: ApiLimits = LIMITS,
    routes: Sequence[Route] = ROUTES,
    ids: Any = new_id,
    house: SinkSettings = NO_SINKS,
    verifier: Verifier | None = None,
    plans: Planner | None = None,
    proxies: TrustedProxies | None = None,
    pages: Pages | None = None,
    provider: BrowserSignIn | None = None,
    configuration: Any = lambda _: (),
) -> AsyncIterator[Desk]:
    """Open a desk with no objects behind it."""
    given = store or MemoryStore()
    desk = Desk(
        store=given,
        clock=clock or hand_clock(),
        limits=limits,
        routes=routes,
        ids=ids,
        house=house,
        verifier=verifier,
        plans=plans,
        proxies=proxies,
        pages=pages,
        provider=provider,
        configuration=configuration,
    )
    await desk.start()
    try:
        yield desk
    finally:
        await desk.close()


def document(kind: str, *, name: str | None = None, **spec: Any) -> dict[str, Any]:
    """Return the example of a kind, under another name, or with other things in its spec."""
    example = DOCUMENTS[kind]
    metadata = example["metadata"] | ({"name": name} if name else {})
    return {**example, "metadata": metadata, "spec": example["spec"] | spec}


async def stock(desk: Desk, *, owner: str = "root") -> None:
    """Make the example of every kind; bookings belong to the owner."""
    written = [document(kind, **({"owner": owner} if kind in OWNED else {})) for kind in DOCUMENTS]
    await desk.core.plane_for(ROOT).apply(written)


def path(kind: str, name: str | None = None) -> str:
    """Return where a kind, or an object of it, is served."""
    return f"/api/{KINDS[kind].plural}" + (f"/{name}" if name else "")


def name_of(kind: str) -> str:
    """Return what the example of a kind is called."""
    return str(DOCUMENTS[kind]["metadata"]["name"])


T = TypeVar("T")
SOON = 60
SERVICE_KEY = "a-key-for-services"
PEOPLE = {"root": Role.ADMIN, "anna": Role.AUTHOR, "ada": Role.USER, "bob": Role.USER}


class ApiServer:
    """An API that runs in a thread of its own, with a token for everybody."""

    def __init__(
        self,
        defaults: Mapping[str, Mapping[str, Any]] | None = None,
        port: int = 0,
        terms: Terms | None = None,
        artifacts: Artifacts | None = None,
        quotas: OwnerLimits | None = None,
        *,
        beside: Callable[[ControlPlane], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Serve in a thread; `beside` runs on the control plane meanwhile."""
        self._beside = beside
        self.url = ""
        self.store = MemoryStore(epoch=new_epoch())
        self.tokens: dict[str, str] = {}
        self._core = ControlPlane(
            self.store,
            clock=SystemClock(),
            defaults=defaults or {},
            sealer=given_keys(),
            terms=terms,
            limits=quotas,
            artifacts=artifacts,
        )
        self.port = port or free_port()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._api: Api | None = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),))

    def start(self) -> None:
        self._thread.start()
        self._ready.result(SOON)

    def stop(self) -> None:
        """Stop serving and lose everything."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SOON)
        assert not self._thread.is_alive()
        self._loop.close()

    def do(self, work: Callable[[Plane], Coroutine[Any, Any, T]], caller: Caller | None = None) -> T:
        """Do something on the plane itself, as an administrator or somebody else."""
        plane = self._core.plane_for(caller or Caller(name="root", role=Role.ADMIN))
        return asyncio.run_coroutine_threadsafe(work(plane), self._loop).result(SOON)

    def acting(self, actor: str, work: Callable[[Plane], Coroutine[Any, Any, T]]) -> T:
        """Do something as a controller."""
        return self.do(work, Caller(name="service", role=Role.SERVICE, actor=actor))

    def put(self, *resources: Resource) -> None:
        """Place objects as they are, whatever their phases."""
        for one in resources:
            self.commit(*creation_ops(one))

    def commit(self, *ops: Op) -> None:
        """Write behind everybody's back."""
        asyncio.run_coroutine_threadsafe(self.store.commit(*ops), self._loop).result(SOON)

    def once_watched(self, work: Callable[[], object]) -> threading.Thread:
        """Do something as soon as somebody watches who does not yet; join what this returns."""
        self._await_streams(some=False)
        thread = threading.Thread(target=self._once_watched, args=(work,))
        thread.start()
        return thread

    def _once_watched(self, work: Callable[[], object]) -> None:
        self._await_streams(some=True)
        work()

    def _await_streams(self, *, some: bool) -> None:
        assert self._api is not None
        deadline = time.monotonic() + SOON
        while bool(self._api._streams.total) is not some and time.monotonic() < deadline:
            time.sleep(0.01)

    @property
    def revision(self) -> int:
        async def ask() -> int:
            return (await self.store.scan("", limit=1)).revision

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(SOON)

    async def _main(self) -> None:
        tokens = Tokens(self.store, clock=SystemClock(), service_key=Secret(SERVICE_KEY))
        await tokens.start()
        for name, role in PEOPLE.items():
            self.tokens[name] = (await tokens.make(name, role))[0].reveal()
        limits = ApiLimits(requests_per_second=1e9, burst=10**9, failure_burst=10**9, write_burst=10**9)
        self._api = Api(self._core, tokens, clock=SystemClock(), limits=limits)
        following = [asyncio.create_task(self._api.run())]
        if self._core.promises is not None:
            following.append(asyncio.create_task(self._core.promises.calendar.run()))
        if self._beside is not None:
            following.append(asyncio.create_task(self._beside(self._core)))
        listening = listen(LOOPBACK, self.port)
        self.url = f"http://{LOOPBACK}:{self.port}"
        self._ready.set_result(None)
        await serve(self._api, listening, None, self._stop)
        for task in following:
            task.cancel()
        await asyncio.wait(following)
        await tokens.close()
        await self.store.close()


@contextmanager
def served(**options: Any) -> Iterator[ApiServer]:
    """Serve an API until the block ends."""
    server = ApiServer(**options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Shell:
    """A person at a terminal: `lcm` with an environment of its own."""

    def __init__(self, home: Path, *, columns: int | None = None, **environment: str) -> None:
        self.home = home
        self.environment: dict[str, str | None] = {
            "XDG_CONFIG_HOME": str(home),
            "COLUMNS": str(columns) if columns else None,
            "LCM_URL": None,
            "LCM_TOKEN": None,
            "LCM_CONTEXT": None,
            **environment,
        }

    def lcm(self, *arguments: object, stdin: str | None = None) -> Result:
        """Run a command; a bug of ours fails the test."""
        logging = structlog.get_config()
        try:
            result = CliRunner(env=self.environment).invoke(
                app, [*map(str, arguments)], input=stdin, catch_exceptions=False
            )
        finally:
            structlog.configure(**logging)  # some commands send logs to their own standard error, which is closed now
        assert "Traceback" not in result.output, result.output
        return result

    def out(self, *arguments: object, stdin: str | None = None) -> str:
        """Run a command that succeeds; gives what it printed."""
        result = self.lcm(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout


def shell(api: ApiServer, home: Path, name: str = "root", **more: Any) -> Shell:
    """Seat somebody at a terminal, signed in."""
    return Shell(home, **more, LCM_URL=api.url, LCM_TOKEN=api.tokens[name])
