"""A CML controller behind the `LabHost` protocol, over its REST API. Made by `compose`, one object per worker.

The fourteen operations of the system that came before, and what they are called here:

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

`cml_wire` carries the calls and the token over `cml_line`, `cml_errors` says what a refusal means, `cml_tls` whom we
believe; `cml_labs` and `cml_licence` do what takes several calls; `cml_answers` and `cml_lab_answers` read the answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError
from lcm.model.kinds.worker import LabWorker
from lcm.providers.cml import answers, lab_answers
from lcm.providers.cml import labs as cml_labs
from lcm.providers.cml import licence as cml_licence
from lcm.providers.cml.connection import HTTPS_PORT, Limits, fetch_certificate
from lcm.providers.cml.errors import Asked
from lcm.providers.cml.rest import Wire
from lcm.providers.protocols.labhost import (
    Activity,
    Elements,
    Health,
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
        limits: Limits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect later. `pin` is the worker's certificate in PEM (see `cml_tls`); `transport` replaces the network."""
        self._wire = Wire(url, username, password, pin=pin, limits=limits, transport=transport)

    async def sign_in(self) -> None:
        await self._wire.sign_in()

    async def system(self) -> System:
        return (await self._wire.ask("system_information", answers.SYSTEM, open_to_all=True)).value()

    async def health(self) -> Health:
        return (await self._wire.ask("system_health", answers.HEALTH)).value()

    async def stats(self) -> Stats:
        return (await self._wire.ask("system_stats", answers.STATS)).value()

    async def maintenance(self) -> Maintenance:
        mode = await self._wire.ask("system/maintenance_mode", answers.MAINTENANCE, open_to_all=True)
        notices = await self._wire.ask("system/notices", answers.NOTICES)
        shown = tuple(notice.value() for notice in notices if notice.enabled)
        return Maintenance(enabled=mode.maintenance_mode, notices=shown)

    async def licence(self) -> Licence:
        return (await cml_licence.read(self._wire)).value()

    async def register(self, *, product: str, token: Secret, expansion_nodes: int = 0) -> Licence:
        return await cml_licence.register(self._wire, product=product, token=token, expansion_nodes=expansion_nodes)

    async def deregister(self) -> Licence:
        return await cml_licence.deregister(self._wire)

    async def labs(self) -> Sequence[LabSummary]:
        return await cml_labs.listed(self._wire)

    async def find(self, title: str) -> LabSummary | None:
        return await cml_labs.find(self._wire, title)

    async def look(self, lab_id: str) -> LabSummary | None:
        return await cml_labs.look(self._wire, lab_id)

    async def ensure(self, title: str, topology: str) -> LabSummary:
        return await cml_labs.ensure(self._wire, title, topology)

    async def start(self, lab_id: str) -> None:
        await self._wire.tell("PUT", cml_labs.path(lab_id, "start"), asked=Asked.START)

    async def converged(self, lab_id: str) -> bool:
        return await self._wire.ask(cml_labs.path(lab_id, "check_if_converged"), lab_answers.CONVERGED)

    async def stop(self, lab_id: str) -> None:
        await self._wire.tell("PUT", cml_labs.path(lab_id, "stop"))

    async def remove(self, lab_id: str) -> None:
        await cml_labs.remove(self._wire, lab_id)

    async def elements(self, lab_id: str) -> Elements:
        return (await self._wire.ask(cml_labs.path(lab_id, "lab_element_state"), lab_answers.ELEMENTS)).value()

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        return await cml_labs.observe(self._wire, lab_id)

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        return await cml_labs.everywhere(self._wire)

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        return (await self._wire.ask(cml_labs.path(lab_id, "simulation_stats"), lab_answers.SIMULATION)).value()

    async def topology(self, lab_id: str) -> str:
        return await cml_labs.download(self._wire, lab_id)

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        await self._wire.tell("PATCH", cml_labs.path(lab_id, "nodes", node_id), {"tags": list(tags)})

    async def pools(self) -> Sequence[PoolUse]:
        return [pool.value() for pool in await self._wire.ask("resource_pool_usage", answers.POOLS)]

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        events = await self._wire.ask("telemetry/events", answers.EVENTS)
        recent = [event.value() for event in events if answers.aware(event.timestamp) > since]
        return sorted(recent, key=lambda event: event.at)

    async def set_telemetry(self, *, enabled: bool) -> None:
        await self._wire.tell("PUT", "telemetry", {"opt_in": enabled})

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        definitions = await self._wire.ask("simplified_node_definitions", answers.DEFINITIONS)
        return [definition.value() for definition in definitions]

    async def close(self) -> None:
        await self._wire.close()


REVEALED_SECONDS: Final = 300.0
"""How long a password is believed to be the one that its reference leads to."""
RETIRED_SECONDS: Final = 900.0
"""How long somebody may still be using a host that another one replaced: longer than its longest call."""


class _Way(NamedTuple):
    """What leads to a worker's CML."""

    url: str
    certificate: str
    username: str
    password: str
    """Where it is, not what it is."""


@dataclass(slots=True)
class _Kept:
    way: _Way
    password: Secret
    host: CmlHost
    revealed_at: float


def own_address(worker: LabWorker) -> str:
    """Say where a worker itself says that its CML is; "" while it does not."""
    return worker.status.cml.api_url


class CmlHosts:
    """One `CmlHost` per worker."""

    def __init__(
        self,
        secrets: Secrets,
        *,
        limits: Limits | None = None,
        address: Callable[[LabWorker], str] = own_address,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Speak to each worker at `address`; `transport` replaces the network, and shows no certificate to pin."""
        self._secrets = secrets
        self._limits = limits
        self._address = address
        self._transport = transport
        self._kept: dict[str, _Kept] = {}
        self._retired: deque[tuple[float, CmlHost]] = deque()

    async def of(self, worker: LabWorker) -> CmlHost:
        way, uid, now = self._way(worker), worker.metadata.uid, asyncio.get_running_loop().time()
        kept = self._kept.get(uid)
        if kept is not None and kept.way == way and now - kept.revealed_at < REVEALED_SECONDS:
            return kept.host
        password = await self._secrets.reveal(way.password)
        kept = self._kept.get(uid)  # somebody else may have asked meanwhile
        if kept is not None and kept.way == way and kept.password == password:
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
        self._kept[uid] = _Kept(way, password, host, now)
        return host

    async def certificate(self, worker: LabWorker) -> str:
        parts = urlsplit(self._way(worker).url)
        if parts.scheme != "https" or self._transport is not None:
            return ""
        return await fetch_certificate(parts.hostname or "", parts.port or HTTPS_PORT)

    async def forget(self, worker: LabWorker) -> None:
        now = asyncio.get_running_loop().time()
        if kept := self._kept.pop(worker.metadata.uid, None):
            self._retired.append((now + RETIRED_SECONDS, kept.host))
        while self._retired and self._retired[0][0] <= now:
            await self._retired.popleft()[1].close()

    async def close(self) -> None:
        hosts = [kept.host for kept in self._kept.values()] + [host for _, host in self._retired]
        self._kept.clear()
        self._retired.clear()
        for host in hosts:
            await host.close()

    def _way(self, worker: LabWorker) -> _Way:
        url, wanted = self._address(worker), worker.spec.cml
        if not url:
            raise _nowhere(worker)
        return _Way(url, worker.status.cml.certificate, wanted.admin_username, wanted.admin_password)


def _nowhere(worker: LabWorker) -> LcmError:
    return NotReady(f"no address of {worker.metadata.name}'s CML is known yet")
