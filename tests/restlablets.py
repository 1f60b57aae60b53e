"""Sessions in virtual time with HTTP on every side: people, all four controllers and CML are spoken to by it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx

from backstage import service
from estates import beside
from lablets import HOUR, Lablets
from lcm.api.http.app import Api
from lcm.control.access.tokens import Tokens
from lcm.control.plane.client import HttpPlane
from lcm.control.plane.protocol import Plane
from lcm.controllers.session.controller import LabletController
from lcm.controllers.worker.controller import WorkerController
from lcm.model.base.machine import LABLET_CONTROLLER, WORKER_CONTROLLER
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.labhost import Hosts
from lcm.sim.time.asgi import AsgiTransport
from lifeworlds import Admin, ByAddress
from planes import CAST, KEY, LIMITS
from sse import Listener

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
        self.client = httpx.AsyncClient(transport=AsgiTransport(self.api), base_url=URL)
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
