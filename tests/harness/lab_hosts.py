"""Where a LabHost is tried: the simulator directly, our client over its REST API or HTTPS, and canned answers."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from harness.asgi import MemoryTransport
from harness.http_answers import AnswerServer, Say, says
from harness.servers import LOOPBACK, READY_SECONDS, free_port
from lcm.model.access.secret import Secret
from lcm.model.topology.node_definitions import shipped_nodes
from lcm.providers.cml.connection import CmlLimits, fetch_certificate
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import LabHost, LabState, LabSummary, NodeFacts, NotReady
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlApp
from lcm.sim.cml.rest.documents import UserCreate
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run

SPEED = 1000
PASSWORD = Secret("admin")
Body = Callable[["World"], Awaitable[None]]


@dataclass
class World:
    """A host, and the machine behind it where a test may reach into that."""

    host: LabHost
    machine: Cml | None = None
    speed: float = 1

    @property
    def cml(self) -> Cml:
        assert self.machine is not None, "a machine behind HTTPS is out of reach"
        return self.machine

    async def pass_time(self, seconds: float) -> None:
        """Let simulated seconds go by."""
        await asyncio.sleep(seconds / self.speed)


def machine() -> Cml:
    return Cml(VirtualClock(), Chance(7))


def client(cml: Cml, password: Secret = PASSWORD, limits: CmlLimits | None = None) -> CmlHost:
    return CmlHost("https://cml", "admin", password, limits=limits, transport=MemoryTransport(CmlApp(cml)))


def direct(cml: Cml) -> DirectHost:
    return DirectHost(cml)


class CmlSim:
    """A running `lcm cml-sim`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "cml-sim.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.pin = ""

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def host(self, password: Secret = PASSWORD) -> CmlHost:
        return CmlHost(self.url, "admin", password, pin=self.pin, limits=CmlLimits(poll_seconds=0.05))

    def __enter__(self) -> Self:
        command = [str(Path(sys.executable).with_name("lcm")), "cml-sim", f"--port={self._port}", f"--speed={SPEED}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.pin = asyncio.run(self._certificate())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(READY_SECONDS)

    async def _certificate(self) -> str:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                assert self._process is not None
                assert self._process.poll() is None, self._log.read_text()
                try:
                    return await fetch_certificate(LOOPBACK, self._port)
                except NotReady:
                    await asyncio.sleep(0.05)


def _in_virtual_time(make: Callable[[Cml], LabHost]) -> Callable[[Body, pytest.FixtureRequest], None]:
    def play(body: Body, _: pytest.FixtureRequest) -> None:
        async def main() -> None:
            cml = machine()
            await _live(body, World(make(cml), cml))

        run(main)

    return play


def _over_https(body: Body, request: pytest.FixtureRequest) -> None:
    sim: CmlSim = request.getfixturevalue("cml_sim")
    asyncio.run(_live(body, World(sim.host(), speed=SPEED)))


async def _live(body: Body, world: World) -> None:
    try:
        await body(world)
    finally:
        await world.host.close()


_PLAY = {"direct": _in_virtual_time(direct), "client": _in_virtual_time(client), "https": _over_https}


def on(*faces: str) -> Callable[[Body], Callable[..., None]]:
    """Make a test of a body, once for each of these faces."""

    def decorate(body: Body) -> Callable[..., None]:
        def test(face: str, request: pytest.FixtureRequest) -> None:
            _PLAY[face](body, request)

        test.__name__ = body.__name__
        return pytest.mark.parametrize("face", faces)(test)

    return decorate


in_process = on("direct", "client")
everywhere = on("direct", "client", "https")
over_rest = on("client")


ROUTER = shipped_nodes()["iosv"]
NOWHERE = "00000000-0000-4000-8000-000000000000"
BOOTED_AFTER = 300
LAB = """\
lab:
  version: 0.3.0
  title: the file's own title
  description: a router, a host and a way out
nodes:
  - id: n0
    label: R1
    node_definition: iosv
    x: 0
    y: 0
    cpu_limit: 50
    tags: [serial:5001, core]
    configuration: hostname R1
    interfaces:
      - {id: i0, label: GigabitEthernet0/0, type: physical, slot: 0}
      - {id: i1, label: GigabitEthernet0/1, type: physical, slot: 1}
  - id: n1
    label: PC1
    node_definition: alpine
    x: 100
    y: 0
    cpus: 2
    ram: 1024
    boot_disk_size: 20
    data_volume: 5
    tags: [vnc:5002]
    interfaces:
      - {id: i0, label: eth0, type: physical, slot: 0, mac_address: "52:54:00:00:00:aa"}
  - id: n2
    label: out
    node_definition: external_connector
    x: 200
    y: 0
    configuration: NAT
    interfaces:
      - {id: i0, label: port, type: physical, slot: 0}
links:
  - {id: l0, n1: n0, i1: i0, n2: n1, i2: i0}
  - {id: l1, n1: n0, i1: i1, n2: n2, i2: i0}
"""


def topology_of(count: int) -> str:
    nodes = [
        {"id": f"n{n}", "label": f"H{n}", "node_definition": "server", "x": n, "y": 0, "interfaces": []}
        for n in range(count)
    ]
    return yaml.safe_dump({"lab": {"version": "0.3.0", "title": "many"}, "nodes": nodes, "links": []})


async def started(world: World, title: str, topology: str = LAB) -> LabSummary:
    lab = await world.host.ensure(title, topology)
    await world.host.start(lab.lab_id)
    await until_converged(world, lab.lab_id)
    return lab


async def until_converged(world: World, lab_id: str) -> None:
    for _ in range(BOOTED_AFTER):
        if await world.host.converged(lab_id):
            return
        await world.pass_time(5)
    raise AssertionError("the lab never converged")


async def node(host: LabHost, lab_id: str, label: str) -> NodeFacts:
    return next(one for one in await host.nodes(lab_id) if one.label == label)


async def state(host: LabHost, lab_id: str) -> LabState | None:
    lab = await host.look(lab_id)
    return lab.state if lab else None


def stranger(world: World, title: str, topology: str = LAB) -> str:
    """Let somebody else import a lab."""
    users = world.cml.users
    somebody = next((one for one in users.everybody.values() if not one.admin), None) or users.add(
        UserCreate(username="somebody", password="something")
    )
    return world.cml.import_lab(topology, somebody, title)[0].id


TOKEN = Secret("licence-token-77")
CANNED_LAB = {
    "id": "L1",
    "lab_title": "exam-1",
    "state": "STARTED",
    "node_count": 1,
    "owner_username": "admin",
    "created": "2026-01-01T10:00:00+00:00",
    "modified": "2026-01-01T10:00:00",
}
SIZE = {"cpus": 2, "cpu_limit": 50, "ram": 512, "boot_disk_size": 4, "data_volume": None}
NODE = {
    "id": "N1",
    "lab_id": "L1",
    "label": "R1",
    "node_definition": "iosv",
    "state": "BOOTED",
    "tags": ["serial:5001"],
    "cpus": None,
    "ram": None,
    "operational": SIZE,
}
LICENCE = {
    "registration": {"status": "NOT_REGISTERED", "register_time": {"attempted": None, "failure": None}},
    "authorization": {"status": "INIT"},
    "features": [],
    "product_license": {"active": "CML_Enterprise"},
}
REGISTERED = LICENCE | {"registration": {"status": "COMPLETED"}, "authorization": {"status": "IN_COMPLIANCE"}}
SPACE = {"total": 2097152.0, "used": 1048576.0}
DOMINFO = {"running_nodes": 1, "total_nodes": 2, "allocated_cpus": 2, "allocated_memory": 1048576}
STATS = {
    "computes": {"C": {"stats": {"dominfo": DOMINFO}}},
    "all": {"cpu": {"count": 6, "percent": 4.1}, "memory": SPACE, "disk": SPACE},
}
GOOD: dict[str, object] = {
    "system_information": {"version": "2.9.1+build.7", "ready": True},
    "system_health": {"valid": True, "is_licensed": True, "computes": {}, "controller": {"valid": True}},
    "system_stats": STATS,
    "system/maintenance_mode": {"maintenance_mode": False},
    "system/notices": [],
    "licensing": LICENCE,
    "labs": ["L1"],
    "labs/L1": CANNED_LAB,
    "labs/L1/state": "STARTED",
    "labs/L1/check_if_converged": True,
    "labs/L1/lab_element_state": {"nodes": {"N1": "BOOTED"}, "links": {}, "interfaces": {}},
    "labs/L1/nodes": [NODE],
    "labs/L1/nodes/N1": "N1",
    "labs/L1/nodes/N1/extract_configuration": {},
    "labs/L1/nodes/N1/interfaces": [{"id": "I1", "label": "eth0", "state": "STARTED", "slot": 0}],
    "labs/L1/layer3_addresses": {},
    "labs/L1/simulation_stats": {"nodes": {}, "links": {}},
    "nodes": [NODE],
    "import": {"id": "L1", "warnings": []},
    "resource_pool_usage": [],
    "telemetry/events": [],
    "simplified_node_definitions": [],
}


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[AnswerServer]:
    async with AnswerServer() as server:
        for path, value in GOOD.items():
            server.tell(path, says(value))
        for path in ("start", "stop", "wipe"):
            server.tell(f"labs/L1/{path}", Say(204))
        server.tell("labs/L1/download", Say(200, b"lab:\n  title: exam-1\n", "text/yaml"))
        for path in ("registration", "product_license", "deregistration"):
            server.tell(f"licensing/{path}", Say(204))
        yield server


@contextlib.asynccontextmanager
async def host_of(url: str, **limits: Any) -> AsyncIterator[CmlHost]:
    limited = CmlLimits(**{"poll_seconds": 0.01, "licence_seconds": 0.05, "removal_seconds": 0.05} | limits)
    host = CmlHost(url, "admin", Secret("swordfish"), limits=limited)
    try:
        yield host
    finally:
        await host.close()
