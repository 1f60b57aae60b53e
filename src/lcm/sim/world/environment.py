"""What outlives our processes: the store, the cloud with its CMLs and licences, artifacts, time and chance."""

import asyncio
import errno
import re
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Final

import httpx

from lcm.model.access.secret import Secret
from lcm.model.base.clock import Clock
from lcm.model.base.errors import LcmError
from lcm.providers.cml.host import CmlHosts
from lcm.providers.protocols.artifacts import ListedArtifact
from lcm.providers.protocols.compute import ENDING, Instance
from lcm.providers.protocols.labhost import Hosts, NotReady
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import SENDER, OnEffect, ignore_effect
from lcm.sim.cloud.fleet import PASSWORD, SimFleet, SimHosts
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlDown
from lcm.sim.cml.rest.app import REFUSABLE, CmlApp, CmlFleet
from lcm.sim.time.asgi import AsgiTransport
from lcm.sim.time.chance import Chance
from lcm.sim.time.faults import ActiveFaults
from lcm.sim.time.loop import VirtualClock
from lcm.sim.world.scenario import SECRET, Scenario
from lcm.store.base import Change, Op
from lcm.store.memory import MemoryStore

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


_EXTENSIONS: Final[dict[str, object]] = {REFUSABLE: {}}


class MemoryTransport(AsgiTransport):
    """Hands requests to the simulator's REST face in the same process; a machine that is down refuses them."""

    def __init__(self, app: CmlApp | CmlFleet, *, context: Context | None = None) -> None:
        super().__init__(app, context=context, extensions=_EXTENSIONS, refusal=CmlDown)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except CmlDown as error:
            cause = ConnectionRefusedError(str(error)) if error.there else OSError(errno.EHOSTUNREACH, str(error))
            raise httpx.ConnectError(str(error), request=request) from cause


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


OnCommit = Callable[[int, Sequence[Change]], None]
"""Called when a commit has happened, before anybody else knows of it."""


class Environment:
    """Everything outside of our own processes."""

    def __init__(self, scenario: Scenario, noted: OnCommit, done: OnEffect = ignore_effect) -> None:
        self.clock = VirtualClock()
        self.chance = Chance(scenario.seed)
        self.store = WatchedStore(noted)
        self._face = scenario.face
        password = SECRET if scenario.face == "client" else PASSWORD
        self.fleet = SimFleet(self.clock, self.chance.stream("cloud"), on_effect=done, password=password)
        self.cloud = self.fleet.cloud
        self.licences = self.fleet.licences
        self.artifacts = SimulatedArtifacts(self.clock)
        self.hosts = SimHosts(self.cloud)
        self.secrets = OneSecret()

    def hosts_of(self, process: str) -> Hosts:
        """Return the way in which a process reaches CMLs; each process has a client of its own."""
        if self._face == "direct":
            return self.hosts
        return CmlHosts(
            self.secrets, transport=SimulatedCmlTransport(self.cloud, self.clock, self.hosts.spells, process)
        )

    def living_machines(self) -> Sequence[Instance]:
        """Return the machines that cost money."""
        now = self.clock.now()
        every = [machine.instance(now) for machine in self.cloud.account.machines.values()]
        return [one for one in every if one.state not in ENDING]

    def temporary_files(self) -> Sequence[ListedArtifact]:
        """Return the files that have names, as they are at this moment."""
        return self.artifacts.temporary_now()

    def cml(self, instance_id: str) -> Cml | None:
        """Return the CML of a machine; None while the machine does not run."""
        found = self.cloud.find_attached(instance_id)
        return found if isinstance(found, Cml) else None


class WatchedStore(MemoryStore):
    """A store that reports every commit, on the host that made it."""

    def __init__(self, noted: OnCommit) -> None:
        super().__init__(epoch="simulated")
        self._on_commit = noted

    def holder(self, lease: str) -> str | None:
        """Return who holds a lease at this very moment; None for nobody."""
        held = self._leases.get(lease)
        return held.lease.holder if held else None

    def _write(self, ops: Sequence[Op]) -> int:
        before = self._revision
        revision = super()._write(ops)
        if revision != before:
            self._on_commit(revision, self._log[-1].changes)
        return revision


class OneSecret:
    """Returns the same secret for every reference; it must never appear anywhere."""

    async def reveal(self, _ref: str) -> Secret:
        await asyncio.sleep(0)
        return Secret(SECRET)
