"""A CML controller behind the `LabHost` protocol, and all of them behind `Hosts`. Made by `compose`.

`CmlHosts` keeps one `CmlHost` per worker, with its connections and its token, as long as address, certificate and
credentials are the same; another one replaces it when they change. `rest` makes the calls and holds the token,
`connection` carries them and decides which certificate is trusted, `errors` translates refusals; `labs` and `licence`
do what takes several calls; `answers` and `lab_answers` parse the answers.

The fourteen operations of the previous system, and what they are called here:

| before | here | CML |
| --- | --- | --- |
| authenticate | sign_in | POST /auth_extended |
| check_system_ready | system().ready | GET /system_information |
| get_system_information | system | GET /system_information |
| get_system_stats | stats | GET /system_stats |
| get_license_status | licence | GET /licensing |
| set_license | register | PUT /licensing/product_license, POST /licensing/registration, PATCH /licensing/features |
| remove_license | deregister | DELETE /licensing/deregistration |
| list_labs | labs | GET /labs?show_all=true, GET /labs/{id} |
| create_lab | ensure | POST /import |
| start_lab | start | PUT /labs/{id}/start |
| stop_lab | stop | PUT /labs/{id}/stop |
| delete_lab | remove | PUT /labs/{id}/stop, PUT /labs/{id}/wipe, DELETE /labs/{id} |
| get_lab_details | look | GET /labs/{id} |
| health_check | health | GET /system_health |
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from lcm.model.access.secret import Secret, check_use
from lcm.model.base.resource import SecretUse
from lcm.model.kinds.worker import LabWorker
from lcm.providers.cml import answers, lab_answers
from lcm.providers.cml import labs as cml_labs
from lcm.providers.cml import licence as cml_licence
from lcm.providers.cml.connection import HTTPS_PORT, CmlLimits, fetch_certificate
from lcm.providers.cml.errors import CmlOperation
from lcm.providers.cml.rest import CmlClient
from lcm.providers.protocols.labhost import (
    Activity,
    Elements,
    HostHealth,
    LabSummary,
    Licence,
    Maintenance,
    NodeDefinition,
    NodeFacts,
    NotReady,
    PoolUse,
    SimulationStats,
    Stats,
    System,
)
from lcm.providers.protocols.secrets import Secrets


class CmlHost:
    """One worker's CML."""

    def __init__(
        self,
        url: str,
        username: str,
        password: Secret,
        *,
        pin: str | None = None,
        limits: CmlLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect later. `pin` is the worker's certificate in PEM; `transport` replaces the network."""
        self._client = CmlClient(url, username, password, pin=pin, limits=limits, transport=transport)

    async def sign_in(self) -> None:
        await self._client.sign_in()

    async def system(self) -> System:
        return (await self._client.read("system_information", answers.SYSTEM, open_to_all=True)).value()

    async def health(self) -> HostHealth:
        return (await self._client.read("system_health", answers.HEALTH)).value()

    async def stats(self) -> Stats:
        return (await self._client.read("system_stats", answers.STATS)).value()

    async def maintenance(self) -> Maintenance:
        mode = await self._client.read("system/maintenance_mode", answers.MAINTENANCE, open_to_all=True)
        notices = await self._client.read("system/notices", answers.NOTICES)
        shown = tuple(notice.value() for notice in notices if notice.enabled)
        return Maintenance(enabled=mode.maintenance_mode, notices=shown)

    async def licence(self) -> Licence:
        return (await cml_licence.read_licence(self._client)).value()

    async def register(self, *, product: str, token: Secret, expansion_nodes: int = 0) -> Licence:
        return await cml_licence.register(self._client, product=product, token=token, expansion_nodes=expansion_nodes)

    async def deregister(self) -> Licence:
        return await cml_licence.deregister(self._client)

    async def labs(self) -> Sequence[LabSummary]:
        return await cml_labs.list_labs(self._client)

    async def find(self, title: str) -> LabSummary | None:
        return await cml_labs.find(self._client, title)

    async def look(self, lab_id: str) -> LabSummary | None:
        return await cml_labs.look(self._client, lab_id)

    async def ensure(self, title: str, topology: str) -> LabSummary:
        return await cml_labs.ensure(self._client, title, topology)

    async def start(self, lab_id: str) -> None:
        await self._client.send("PUT", cml_labs.lab_path(lab_id, "start"), asked=CmlOperation.START)

    async def converged(self, lab_id: str) -> bool:
        return await self._client.read(cml_labs.lab_path(lab_id, "check_if_converged"), lab_answers.CONVERGED)

    async def stop(self, lab_id: str) -> None:
        await self._client.send("PUT", cml_labs.lab_path(lab_id, "stop"))

    async def remove(self, lab_id: str) -> None:
        await cml_labs.remove(self._client, lab_id)

    async def elements(self, lab_id: str) -> Elements:
        return (await self._client.read(cml_labs.lab_path(lab_id, "lab_element_state"), lab_answers.ELEMENTS)).value()

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        return await cml_labs.observe(self._client, lab_id)

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        return await cml_labs.observe_all(self._client)

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        return (await self._client.read(cml_labs.lab_path(lab_id, "simulation_stats"), lab_answers.SIMULATION)).value()

    async def topology(self, lab_id: str) -> str:
        return await cml_labs.download(self._client, lab_id)

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        await self._client.send("PATCH", cml_labs.lab_path(lab_id, "nodes", node_id), {"tags": list(tags)})

    async def pools(self) -> Sequence[PoolUse]:
        return [pool.value() for pool in await self._client.read("resource_pool_usage", answers.POOLS)]

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        events = await self._client.read("telemetry/events", answers.EVENTS)
        recent = [event.value() for event in events if answers.to_utc(event.timestamp) > since]
        return sorted(recent, key=lambda event: event.at)

    async def set_telemetry(self, *, enabled: bool) -> None:
        await self._client.send("PUT", "telemetry", {"opt_in": enabled})

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        definitions = await self._client.read("simplified_node_definitions", answers.DEFINITIONS)
        return [definition.value() for definition in definitions]

    async def close(self) -> None:
        await self._client.close()


PASSWORD_CACHED_SECONDS: Final = 300.0
"""How long a password that was read is used before its reference is read again."""
RETIRED_SECONDS: Final = 900.0
"""How long a replaced host may still be in use: longer than its longest call."""


class _Endpoint(NamedTuple):
    """What is needed to reach a worker's CML."""

    url: str
    certificate: str
    username: str
    password: str
    """The reference to the password, not the password."""


@dataclass(slots=True)
class _CachedHost:
    endpoint: _Endpoint
    password: Secret
    host: CmlHost
    revealed_at: float


class CmlHosts:
    """One `CmlHost` per worker."""

    def __init__(
        self,
        secrets: Secrets,
        *,
        limits: CmlLimits | None = None,
        address: Callable[[LabWorker], str] = lambda worker: worker.status.cml.api_url,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to each worker at `address`; `transport` replaces the network, and shows no certificate to pin."""
        self._secrets = secrets
        self._limits = limits
        self._address = address
        self._transport = transport
        self._cached: dict[str, _CachedHost] = {}
        self._retired: deque[tuple[float, CmlHost]] = deque()

    async def of(self, worker: LabWorker) -> CmlHost:
        way, uid, now = self._endpoint(worker), worker.metadata.uid, asyncio.get_running_loop().time()
        kept = self._cached.get(uid)
        if kept is not None and kept.endpoint == way and now - kept.revealed_at < PASSWORD_CACHED_SECONDS:
            return kept.host
        check_use(way.password, SecretUse.ADMIN_PASSWORD)
        password = await self._secrets.reveal(way.password)
        kept = self._cached.get(uid)  # another task may have done so meanwhile
        if kept is not None and kept.endpoint == way and kept.password == password:
            kept.revealed_at = now
            return kept.host
        host = CmlHost(
            way.url,
            way.username,
            password,
            pin=way.certificate or None,
            limits=self._limits,
            transport=self._transport,
        )
        await self.forget(worker)
        self._cached[uid] = _CachedHost(way, password, host, now)
        return host

    async def certificate(self, worker: LabWorker) -> str:
        parts = urlsplit(self._endpoint(worker).url)
        if parts.scheme != "https" or self._transport is not None:
            return ""
        return await fetch_certificate(parts.hostname or "", parts.port or HTTPS_PORT)

    async def forget(self, worker: LabWorker) -> None:
        now = asyncio.get_running_loop().time()
        if kept := self._cached.pop(worker.metadata.uid, None):
            self._retired.append((now + RETIRED_SECONDS, kept.host))
        while self._retired and self._retired[0][0] <= now:
            await self._retired.popleft()[1].close()

    async def close(self) -> None:
        hosts = [kept.host for kept in self._cached.values()] + [host for _, host in self._retired]
        self._cached.clear()
        self._retired.clear()
        for host in hosts:
            await host.close()

    def _endpoint(self, worker: LabWorker) -> _Endpoint:
        url, wanted = self._address(worker), worker.spec.cml
        if not url:
            raise NotReady(f"no address of {worker.metadata.name}'s CML is known yet")
        return _Endpoint(url, worker.status.cml.certificate, wanted.admin_username, wanted.admin_password)
