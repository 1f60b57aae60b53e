"""Whole installations, from cloud to plane, in which workers and sessions live their lives; with HTTP on every side."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest

from harness.asgi import AsgiTransport, MemoryTransport
from harness.clouds import HERE, KEYS, SESSION, MotoWorld, unique
from harness.event_clients import Listener
from harness.fleet_world import Fleet, OneSecret
from harness.lab_hosts import PASSWORD, CmlSim
from harness.plane_world import CAST, KEY, LIMITS, Site, served, service
from harness.servers import MotoServer, free_port
from harness.session_world import HOUR, Lablets
from harness.workers import Estate, beside, spec
from lcm.api.http.app import Api
from lcm.control.access.tokens import Tokens
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Plane
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.access.secret import Secret
from lcm.model.base.machine import LABLET_CONTROLLER, WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker, LabWorkerSpec, RootVolume
from lcm.providers.aws.clients import AwsClients
from lcm.providers.cml.connection import CmlLimits, pinned_context
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.compute import InstanceState
from lcm.providers.protocols.labhost import Hosts
from lcm.settings.load import Settings
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlApp
from lcm.sim.time.loop import run
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.clock import SystemClock, SystemStopwatch, random_fraction

SPEED: Final = 50
CALLER: Final = service(WORKER_CONTROLLER)
Body = Callable[[Estate], Awaitable[None]]


class Admin:
    """Gives the simulator's password for every reference."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return PASSWORD


class ByAddress(httpx.AsyncBaseTransport):
    """Leads to the CML on whichever machine of a fleet has an address now."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        cml = self._at(request.url.host)
        if cml is None:
            silence = OSError(errno.EHOSTUNREACH, "no machine has this address")
            raise httpx.ConnectError(str(silence), request=request) from silence
        return await MemoryTransport(CmlApp(cml)).handle_async_request(request)

    def _at(self, address: str) -> Cml | None:
        now = self._fleet.clock.now()
        machines = self._fleet.cloud.account.machines.values()
        there = [one.instance_id for one in machines if one.instance(now).public_ip == address]
        found = self._fleet.cloud.find_attached(there[0]) if there else None
        return found if isinstance(found, Cml) else None


class RestFleet(Fleet):
    """A fleet in virtual time whose machines are spoken to by our CML client."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hosts = CmlHosts(Admin(), transport=ByAddress(self))


class RemoteFleet(RestFleet):
    """Likewise, whose controller speaks HTTP to the control plane too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.site = Site(self.store, self.clock)

    def controller(self, **parts: Any) -> WorkerController:
        plane = self.site.plane(CALLER, "http://memory", AsgiTransport(self.site.api))
        return replace(super().controller(**parts), plane=plane)


@dataclass
class AwsFleet(Estate):
    """Workers in real time, on EC2 as moto plays it, with a running simulator as CML."""

    site: Site
    account: MotoWorld
    image: str
    hosts: CmlHosts
    sim: httpx.AsyncClient
    door: Plane
    pin: str
    glance_seconds = 0.02
    patience = timedelta(seconds=30)
    a_while = timedelta(seconds=0.5)

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.core = self.site.core
        self.cloud = self.account.compute

    def spec(self, **changes: Any) -> LabWorkerSpec:
        wanted = spec(**changes)
        volume = RootVolume(kind="gp3", iops=3000)  # moto makes no other
        aws = msgspec.structs.replace(wanted.aws, ami_name_pattern=self.image, root_volume=volume)
        return msgspec.structs.replace(wanted, aws=aws)

    def controller(self) -> WorkerController:
        return WorkerController(
            plane=self.door,
            cloud=self.cloud,
            hosts=self.hosts,
            secrets=OneSecret(),
            clock=self.clock,
            stopwatch=SystemStopwatch(),
            chance=random_fraction,
            settings=Settings(
                metrics_poll_interval=1,
                idle_check_interval=1,
                worker_discovery_ami_name=self.image,
                worker_discovery_interval=2,
            ),
            holder="controller",
            speed=SPEED,
        )

    async def seats_taken(self) -> int:
        return len((await self._simulator())["licence_server"]["taken"])

    async def is_on(self, worker: LabWorker) -> bool:
        del worker  # there is one machine at a time
        return bool((await self._simulator())["up"])

    async def switch(self, *, on: bool) -> None:
        """Switch the simulated machine on or off."""
        (await self.sim.post("/sim/power", json={"on": on})).raise_for_status()

    async def follow(self) -> None:
        """Switch the simulated machine with its instance, for ever."""
        was = False
        while True:
            states = [one.state for one in await self.cloud.list_owned(HERE)]
            assert states.count(InstanceState.RUNNING) <= 1, "one simulator is one machine"
            on = InstanceState.RUNNING in states
            if on is not was:
                await self.switch(on=on)
            was = on
            await asyncio.sleep(0.1)

    async def _simulator(self) -> Any:
        return (await self.sim.get("/sim")).raise_for_status().json()


@asynccontextmanager
async def _direct(_: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    yield Fleet()


@asynccontextmanager
async def _client(_: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    fleet = RestFleet()
    yield fleet
    await fleet.hosts.close()


@asynccontextmanager
async def _client_over_http(_: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    fleet = RemoteFleet()
    await fleet.site.start()
    yield fleet
    await fleet.hosts.close()
    await fleet.site.close()


@asynccontextmanager
async def _aws(request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    async with _on_sqlite(request) as site:
        async with _on_aws(request, site, site.core.plane_for(CALLER)) as fleet:
            yield fleet
        await site.close()


@asynccontextmanager
async def _aws_over_http(request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    async with _on_sqlite(request) as site, served(site.api, free_port()) as url:
        async with _on_aws(request, site, site.plane(CALLER, url)) as fleet:
            yield fleet
        await site.close()


@asynccontextmanager
async def _on_sqlite(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    store = await SqliteStore.open(_file(request))
    site = Site(store, SystemClock())
    await site.start()
    yield site
    await store.close()


@asynccontextmanager
async def _on_aws(request: pytest.FixtureRequest, site: Site, door: Plane) -> AsyncIterator[Estate]:
    sim: CmlSim = request.getfixturevalue("own_cml_sim")
    clients = _clients(request.getfixturevalue("moto"))
    account = MotoWorld(clients)
    image = unique("CML-life")
    await account.add_image(image)
    # Moto's addresses lead nowhere: each stands for the simulator's.
    at = lambda worker: worker.status.cml.api_url and sim.url  # noqa: E731
    hosts = CmlHosts(Admin(), limits=CmlLimits(poll_seconds=0.05), address=at)
    async with httpx.AsyncClient(base_url=sim.url, verify=pinned_context(sim.pin), trust_env=False) as client:
        fleet = AwsFleet(site, account, image, hosts, client, door, sim.pin)
        await fleet.switch(on=False)
        async with beside(fleet.follow()):
            yield fleet
    await hosts.close()
    await clients.close()


def _file(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue("tmp_path")
    return folder / "store.db"


def _clients(moto: MotoServer) -> AwsClients:
    return AwsClients(session=SESSION, keys=KEYS, endpoint_url=moto.url)


_PLACES: Final[dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Estate]]]] = {
    "direct": _direct,
    "client": _client,
    "client-http": _client_over_http,
    "aws": _aws,
    "aws-http": _aws_over_http,
}


def everywhere(body: Body) -> Callable[..., None]:
    """Make a test of a body, once for each place."""

    def test(place: str, request: pytest.FixtureRequest) -> None:
        async def main() -> None:
            async with _PLACES[place](request) as world:
                await body(world)

        if place.startswith("aws"):
            request.getfixturevalue("own_cml_sim")  # which begins with a loop of its own
            asyncio.run(main())
        else:
            run(main, horizon=timedelta(days=2))

    test.__name__ = body.__name__
    return pytest.mark.parametrize("place", _PLACES)(test)


Json = dict[str, Any]
URL = "http://memory"


@dataclass
class RestLablets(Lablets):
    """Lablets whose controllers are in other processes, as far as they can tell."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hosts = CmlHosts(Admin(), transport=ByAddress(self))
        self.tokens = Tokens(self.store, clock=self.clock, service_key=KEY)
        self.api = Api(self.core, self.tokens, clock=self.clock, limits=LIMITS)
        self.client = httpx.AsyncClient(transport=AsgiTransport(self.api), base_url=URL, timeout=60)
        self.keys: dict[str, str] = {"service": KEY.reveal()}
        self._opened: list[HttpPlane] = []

    def by(self, actor: str) -> Plane:
        plane = HttpPlane.open(URL, KEY, actor=actor, caller=service(actor), transport=AsgiTransport(self.api))
        self._opened.append(plane)
        return plane

    def lablets(self, *, holder: str = "lablets", hosts: Hosts | None = None, alone: bool = False) -> LabletController:
        return replace(super().lablets(holder=holder, hosts=hosts, alone=alone), plane=self.by(LABLET_CONTROLLER))

    def workers_controller(self) -> WorkerController:
        return replace(self.controller(), plane=self.by(WORKER_CONTROLLER))

    @asynccontextmanager
    async def open(self) -> AsyncIterator["RestLablets"]:
        """Serve the API, and let all controllers work through it."""
        await self.tokens.start()
        for name, role in CAST.items():
            self.keys[name] = (await self.tokens.make(name, role))[0].reveal()
        async with beside(self.api.run()), self.everybody():
            yield self
        for plane in self._opened:
            await plane.close()
        await self.hosts.close()
        await self.client.aclose()
        await self.tokens.close()

    @asynccontextmanager
    async def listening(self, who: str, **query: str) -> AsyncIterator[Listener]:
        """Follow the stream of events as somebody."""
        listener = Listener(self.client, self.keys[who], **query)
        async with beside(listener.run()):
            yield listener

    async def ask(self, who: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request as somebody; nobody is ""."""
        signed = {"Authorization": f"Bearer {self.keys[who]}"} if who else {}
        headers = signed | request.pop("headers", {})
        return await self.client.request(method, path, headers=headers, **request)

    async def answered(self, who: str, method: str, path: str, **request: Any) -> Any:
        """Send a request that must succeed, and give its JSON."""
        answer = await self.ask(who, method, path, **request)
        assert answer.is_success, (method, path, answer.status_code, answer.text)
        return answer.json()

    async def refused(self, who: str, method: str, path: str, **request: Any) -> tuple[int, str]:
        """Send a request that must not succeed, and give its status and reason."""
        answer = await self.ask(who, method, path, **request)
        assert answer.headers["content-type"] == "application/problem+json", (method, path, answer.text)
        return answer.status_code, answer.json()["reason"]

    async def comes(self, who: str, path: str, within: timedelta = 4 * HOUR, **status: Any) -> Json:
        """Look at an object until its status has these values."""
        async with asyncio.timeout(within.total_seconds()):
            while True:
                found: Json = await self.answered(who, "GET", path)
                if {name: found["status"].get(name) for name in status} == status:
                    return found
                assert found["status"].get("phase") != "FAILED", found["status"]
                await asyncio.sleep(within.total_seconds() / 240)
