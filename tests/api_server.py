"""An API on a real port beside the test, and `lcm` run against it in the test's own process."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog
from typer.testing import CliRunner, Result

from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.cli.main import app
from lcm.control.access.tokens import Tokens
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane
from lcm.model.access.identity import Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.kinds.registry import Resource
from lcm.placement.claims import Terms
from lcm.providers.protocols.artifacts import Artifacts
from lcm.store.base import Op
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock, new_epoch
from lcm.system.serving import listen, serve
from seals import given_keys
from servers import LOOPBACK, free_port

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
    ) -> None:
        self.url = ""
        self.store = MemoryStore(epoch=new_epoch())
        self.tokens: dict[str, str] = {}
        self._core = ControlPlane(
            self.store,
            clock=SystemClock(),
            defaults=defaults or {},
            sealer=given_keys(),
            terms=terms,
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
        """Do something as soon as somebody watches; join what this returns."""
        thread = threading.Thread(target=self._once_watched, args=(work,))
        thread.start()
        return thread

    def _once_watched(self, work: Callable[[], object]) -> None:
        assert self._api is not None
        deadline = time.monotonic() + SOON
        while not self._api._streams.total and time.monotonic() < deadline:
            time.sleep(0.01)
        work()

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
        limits = ApiLimits(requests_per_second=1e9, burst=10**9, failure_burst=10**9)
        self._api = Api(self._core, tokens, clock=SystemClock(), limits=limits)
        following = [asyncio.create_task(self._api.run())]
        if self._core.promises is not None:
            following.append(asyncio.create_task(self._core.promises.calendar.run()))
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
        assert "Traceback" not in result.output
        return result

    def out(self, *arguments: object, stdin: str | None = None) -> str:
        """Run a command that succeeds; gives what it printed."""
        result = self.lcm(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout


def shell(api: ApiServer, home: Path, name: str = "root", **more: Any) -> Shell:
    """Seat somebody at a terminal, signed in."""
    return Shell(home, **more, LCM_URL=api.url, LCM_TOKEN=api.tokens[name])
