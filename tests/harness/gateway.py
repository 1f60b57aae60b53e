"""The gateway on a real port: an API whose sessions run on a simulated lab, and clients that open its consoles."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect

from harness import given
from harness.api_world import Desk, opened
from harness.consoles import SOON, ConsoleLab, console_lab
from harness.plane_world import LIMITS
from harness.servers import LOOPBACK, free_port
from lcm.api.http.limits import ApiLimits
from lcm.control.access.oidc import Verifier
from lcm.control.objects.records import creation_ops
from lcm.model.kinds.definition import PortUse
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.store.base import Store
from lcm.system.clock import SystemClock
from lcm.system.limits import ConnectionLimits
from lcm.system.serving import listen, serve
from lcm.system.tls import ServerTls

MESSAGE_BYTES: Final = 131_072
TEMPLATE: Final = {
    "R1_serial": PortUse(kind="serial", node="R1"),
    "R2_serial": PortUse(kind="serial", node="R2"),
    "PC_serial": PortUse(kind="serial", node="PC"),
    "PC_vnc": PortUse(kind="vnc", node="PC"),
    "PC_pat_tcp_22": PortUse(kind="pat", node="PC", protocol="tcp", inside=22),
    "PC_pat_udp_53": PortUse(kind="pat", node="PC", protocol="udp", inside=53),
}
LAB_PORTS: Final = {
    "R1_serial": "R1",
    "R2_serial": "R2",
    "PC_serial": "PC",
    "PC_vnc": "PC_vnc",
    "PC_pat_tcp_22": "PC_pat",
}


class Gateway:
    """An API with a session `s1` of ada's, whose lab is up."""

    def __init__(
        self, desk: Desk, port: int, ports: dict[str, int], stop: asyncio.Event, *, address: str, scheme: str
    ) -> None:
        self.desk = desk
        self.port = port
        self.ports = ports
        self.stop = stop
        self.address = address
        self.url = f"{scheme}://{LOOPBACK}:{port}"

    async def put(self, *resources: Resource) -> None:
        for one in resources:
            await self.desk.store.commit(*creation_ops(one))

    def session(self, name: str = "s1", **more: Any) -> LabletSession:
        return given.session(
            **{
                "name": name,
                "uid": f"uid-{name}",
                "owner": "ada",
                "phase": SessionPhase.RUNNING,
                "worker_id": "uid-w1",
                "worker_name": "w1",
                "worker_namespace": "default",
                "allocated_ports": self.ports,
            }
            | more
        )

    async def end_session(self, name: str = "s1") -> None:
        await self.desk.done("ada", "POST", f"/api/lablet-sessions/{name}/terminate")

    def open(self, who: str, console: str = "R1_serial", session: str = "s1", **more: Any) -> "connect":
        """Open a console as somebody."""
        query = more.pop("query", "")
        headers = {**(self.desk.signed(who) if who else {}), **more.pop("headers", {})}
        path = f"/api/lablet-sessions/{session}/consoles/{console}{query}"
        more.setdefault("compression", None)
        return connect(self.url + path, additional_headers=headers, max_size=None, proxy=None, **more)


async def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    """Read binary messages until these bytes come, and give all."""
    text = b""
    async with asyncio.timeout(SOON):
        while wanted not in text:
            message = await socket.recv()
            assert isinstance(message, bytes), message
            text += message
    return text


@contextlib.asynccontextmanager
async def gateway(
    lab: ConsoleLab | None = None,
    *,
    limits: ApiLimits = LIMITS,
    connections: ConnectionLimits | None = None,
    ports: dict[str, int] | None = None,
    store: Store | None = None,
    verifier: Verifier | None = None,
    tls: ServerTls | None = None,
    is_replica: bool = False,
) -> AsyncIterator[Gateway]:
    """Serve an API; without a lab of one's own, on a new one. A replica finds in its store what another put there."""
    async with contextlib.AsyncExitStack() as stack:
        if lab is None and ports is None:
            lab = await stack.enter_async_context(console_lab())
        address = lab.address if lab else LOOPBACK
        taken = ports or {name: lab.ports[label] for name, label in LAB_PORTS.items() if lab}
        desk = await stack.enter_async_context(
            opened(store=store, clock=SystemClock(), limits=limits, verifier=verifier)
        )
        port, stop = free_port(), asyncio.Event()
        wanted = connections or ConnectionLimits(message_bytes=MESSAGE_BYTES)
        serving = asyncio.create_task(serve(desk.api, listen(LOOPBACK, port), tls, stop, limits=wanted))
        it = Gateway(desk, port, taken, stop, address=address, scheme="wss" if tls else "ws")
        worker = given.worker(aws={"public_ip": False}, ec2={"private_ip": address})
        try:
            if not is_replica:
                await it.put(worker, given.definition(port_template=TEMPLATE), it.session())
            yield it
        finally:
            stop.set()
            await serving
