"""How processes of a checked world reach CMLs: directly, or with our client over the simulator's REST interface."""

import errno
import re
from collections.abc import Sequence
from contextvars import Context
from typing import Final

import httpx

from harness.asgi import MemoryTransport
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.labhost import Hosts, NotReady
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import SENDER, OnEffect, ignore_effect
from lcm.sim.cloud.fleet import PASSWORD
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlApp
from lcm.sim.time.faults import ActiveFaults
from lcm.sim.world.environment import Environment, OnCommit
from lcm.sim.world.scenario import SECRET, Scenario

_LAB: Final = r"/labs/[^/]+"
_VERBS: Final = tuple(
    (re.compile(f"{method} /api/v0{path}"), verb)
    for method, path, verb in (
        ("GET", "/labs", "find"),
        ("POST", "/import", "ensure"),
        ("PUT", f"{_LAB}/start", "start"),
        ("PUT", f"{_LAB}/stop", "stop"),
        ("PUT", f"{_LAB}/wipe", "remove"),
        ("DELETE", _LAB, "remove"),
        ("GET", f"{_LAB}/download", "topology"),
        ("POST", "/licensing/registration", "register"),
        ("DELETE", "/licensing/deregistration", "deregister"),
    )
)


class WiredEnvironment(Environment):
    """An environment in which each process may have a CML client of its own, as its scenario says."""

    def __init__(self, scenario: Scenario, noted: OnCommit, done: OnEffect = ignore_effect) -> None:
        self._face = scenario.face
        super().__init__(scenario, noted, done, password=SECRET if scenario.face == "client" else PASSWORD)

    def hosts_of(self, process: str) -> Hosts:
        if self._face == "direct":
            return super().hosts_of(process)
        return CmlHosts(
            self.secrets, transport=SimulatedCmlTransport(self.cloud, self.clock, self.hosts.spells, process)
        )


class SimulatedCmlTransport(httpx.AsyncBaseTransport):
    """Connects a process to the CML on whichever machine has an address now.

    A request that was sent is carried out, also when its sender dies or pauses meanwhile; it counts as the sender's.
    """

    def __init__(self, cloud: SimCloud, clock: Clock, spells: ActiveFaults, sender: str) -> None:
        """Connect to a cloud's machines; `spells` are the faults on the way to all of them."""
        self._cloud = cloud
        self._clock = clock
        self._spells = spells
        self._elsewhere = Context()
        self._elsewhere.run(SENDER.set, sender)
        self._machines: dict[str, str] = {}
        self._transports: dict[str, MemoryTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        instance_id = self._machine_at(request.url.host)
        cml = self._cloud.find_attached(instance_id)
        if not isinstance(cml, Cml):
            raise _connect_error("no machine has this address", request)
        verb, spells = verb_of(request), (cml.spells, self._spells)
        if (error := await _fault_before(spells, verb)) is not None:
            if isinstance(error, NotReady):
                return httpx.Response(502, html="<html><body><h1>502 Bad Gateway</h1></body></html>")
            raise _connect_error(str(error), request)
        response = await self._transport_to(instance_id, cml).handle_async_request(request)
        try:
            for one in spells:
                one.raise_after_effect(verb)
        except LcmError as lost:
            await response.aclose()
            raise httpx.ReadError(str(lost), request=request) from lost
        return response

    def _transport_to(self, instance_id: str, cml: Cml) -> MemoryTransport:
        if instance_id not in self._transports:
            self._transports[instance_id] = MemoryTransport(CmlApp(cml), context=self._elsewhere)
        return self._transports[instance_id]

    def _machine_at(self, address: str) -> str:
        known = self._machines.get(address, "")
        if not self._has_address(known, address):
            known = next((one for one in self._cloud.account.machines if self._has_address(one, address)), "")
            self._machines[address] = known
        return known

    def _has_address(self, instance_id: str, address: str) -> bool:
        machine = self._cloud.account.machines.get(instance_id)
        if machine is None:
            return False
        instance = machine.instance(self._clock.now())
        return address in {instance.public_ip, instance.private_ip}


def verb_of(request: httpx.Request) -> str:
    """Return which method of a `LabHost` sends a request; empty for those that no mishap concerns."""
    line = f"{request.method} {request.url.path}"
    return next((verb for pattern, verb in _VERBS if pattern.fullmatch(line)), "")


async def _fault_before(spells: Sequence[ActiveFaults], verb: str) -> LcmError | None:
    """Return the fault that stands between a request and its effect; None if there is none."""
    try:
        for one in spells:
            await one.delay_call(verb)
        for one in spells:
            one.raise_before_effect(verb)
    except LcmError as error:
        return error
    return None


def _connect_error(text: str, request: httpx.Request) -> httpx.ConnectError:
    error = httpx.ConnectError(text, request=request)
    error.__cause__ = OSError(errno.EHOSTUNREACH, text)
    return error
