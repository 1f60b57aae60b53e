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

from collections.abc import Mapping, Sequence
from datetime import datetime

import httpx

from lcm.model.secret import Secret
from lcm.providers import cml_answers, cml_lab_answers, cml_labs, cml_licence
from lcm.providers.cml_errors import Asked
from lcm.providers.cml_line import Limits
from lcm.providers.cml_wire import Wire
from lcm.providers.labhost import (
    Activity,
    Elements,
    Health,
    LabSummary,
    Licence,
    Maintenance,
    NodeDefinition,
    NodeFacts,
    PoolUse,
    SimulationStats,
    Stats,
    System,
)


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
        return (await self._wire.ask("system_information", cml_answers.SYSTEM, open_to_all=True)).value()

    async def health(self) -> Health:
        return (await self._wire.ask("system_health", cml_answers.HEALTH)).value()

    async def stats(self) -> Stats:
        return (await self._wire.ask("system_stats", cml_answers.STATS)).value()

    async def maintenance(self) -> Maintenance:
        mode = await self._wire.ask("system/maintenance_mode", cml_answers.MAINTENANCE, open_to_all=True)
        notices = await self._wire.ask("system/notices", cml_answers.NOTICES)
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
        return await self._wire.ask(cml_labs.path(lab_id, "check_if_converged"), cml_lab_answers.CONVERGED)

    async def stop(self, lab_id: str) -> None:
        await self._wire.tell("PUT", cml_labs.path(lab_id, "stop"))

    async def remove(self, lab_id: str) -> None:
        await cml_labs.remove(self._wire, lab_id)

    async def elements(self, lab_id: str) -> Elements:
        return (await self._wire.ask(cml_labs.path(lab_id, "lab_element_state"), cml_lab_answers.ELEMENTS)).value()

    async def nodes(self, lab_id: str) -> Sequence[NodeFacts]:
        return await cml_labs.observe(self._wire, lab_id)

    async def all_nodes(self) -> Mapping[str, Sequence[NodeFacts]]:
        return await cml_labs.everywhere(self._wire)

    async def simulation_stats(self, lab_id: str) -> SimulationStats:
        return (await self._wire.ask(cml_labs.path(lab_id, "simulation_stats"), cml_lab_answers.SIMULATION)).value()

    async def topology(self, lab_id: str) -> str:
        return await cml_labs.download(self._wire, lab_id)

    async def set_tags(self, lab_id: str, node_id: str, tags: Sequence[str]) -> None:
        await self._wire.tell("PATCH", cml_labs.path(lab_id, "nodes", node_id), {"tags": list(tags)})

    async def pools(self) -> Sequence[PoolUse]:
        return [pool.value() for pool in await self._wire.ask("resource_pool_usage", cml_answers.POOLS)]

    async def activity(self, *, since: datetime) -> Sequence[Activity]:
        events = await self._wire.ask("telemetry/events", cml_answers.EVENTS)
        recent = [event.value() for event in events if cml_answers.aware(event.timestamp) > since]
        return sorted(recent, key=lambda event: event.at)

    async def set_telemetry(self, *, enabled: bool) -> None:
        await self._wire.tell("PUT", "telemetry", {"opt_in": enabled})

    async def node_definitions(self) -> Sequence[NodeDefinition]:
        definitions = await self._wire.ask("simplified_node_definitions", cml_answers.DEFINITIONS)
        return [definition.value() for definition in definitions]

    async def close(self) -> None:
        await self._wire.close()
