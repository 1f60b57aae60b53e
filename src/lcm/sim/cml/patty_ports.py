"""PATty's ports for real: listens on an address for every mapping of a simulated machine and answers who connects.

For demonstrations and tests in real time; simulations call `Cml.patty_ports` instead. `sim.cloud.patty_server` does it
for a whole cloud. A connection reaches a serial console, a VNC screen, or a port of the node.
"""

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from lcm.sim.cml.console.line import ConsoleNode, SerialLine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.patty import PortMapping
from lcm.sim.cml.screen import NodeScreen, VncScreen


class PortAnswerer(Protocol):
    """What answers on one port, to all its connections."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until either side ends it. Raise OSError when the other side is to blame."""
        ...


class NodePort:
    """A port of the node: sends its name, then echoes what it receives."""

    def __init__(self, label: str, port: int) -> None:
        self._greeting = f"{label} port {port}\r\n".encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._greeting)
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


def answerer_for(cml: Cml, port: PortMapping, label: str) -> PortAnswerer:
    """Return what answers on a TCP port."""
    if port.kind == "pat":
        return NodePort(label, port.inside)
    node = ConsoleNode(cml, port.lab_id, port.node_id)
    if port.kind == "serial":
        return SerialLine(node, port.inside)
    return VncScreen(NodeScreen(label, node.node.kind.id, cml.pace.now))


MOST_PORTS: Final = 6_000
MOST_CONNECTIONS: Final = 400
"""How many connections one machine keeps at a time; further ones are refused."""
_CHUNK: Final = 65_536
_OUT_OF_RESOURCES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class PattyPorts:
    """The open ports of one machine on one address."""

    def __init__(self, cml: Cml, host: str) -> None:
        self._cml = cml
        self._host = host
        self._open_ports: dict[PortMapping, _OpenPort] = {}
        self._visitors: set[asyncio.StreamWriter] = set()
        self.taken: dict[PortMapping, str] = {}
        """Ports that could not be opened, and why: for example because another process holds them."""

    @property
    def count(self) -> int:
        """How many ports are open."""
        return len(self._open_ports)

    async def sync(self, most: int = MOST_PORTS) -> None:
        """Open the ports that are mapped now, at most `most`, and close the others with their connections."""
        wanted = self._mapped_ports()
        for port in [port for port in self._open_ports if port not in wanted]:
            self._open_ports.pop(port).close()
        missing = sorted(wanted.keys() - self._open_ports.keys(), key=lambda port: (port.protocol, port.outside))
        self.taken = await self._open_all({port: wanted[port] for port in missing}, most)

    async def run(self, every_seconds: float) -> None:
        """Follow the machine until cancelled."""
        try:
            while True:
                await self.sync()
                await asyncio.sleep(every_seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Close all ports."""
        for open_port in self._open_ports.values():
            open_port.close()
        self._open_ports.clear()

    def _mapped_ports(self) -> dict[PortMapping, str]:
        """Return the ports that are mapped now with the labels of their nodes, which may be gone a moment later."""
        labs = self._cml.labs
        return {port: labs.get(port.lab_id).nodes[port.node_id].spec.label for port in self._cml.open_ports()}

    async def _open_all(self, wanted: dict[PortMapping, str], most: int) -> dict[PortMapping, str]:
        refused, full = dict[PortMapping, str](), ""
        for port, label in wanted.items():
            full = full or (f"{most} ports are open already" if self.count >= most else "")
            if full:
                refused[port] = full
                continue
            try:
                self._open_ports[port] = await self._open(port, label)
            except OSError as error:
                refused[port] = str(error)
                full = str(error) if error.errno in _OUT_OF_RESOURCES else ""
        return refused

    async def _open(self, port: PortMapping, label: str) -> "_OpenPort":
        if port.protocol == "udp":
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(_Echo, local_addr=(self._host, port.outside))
            return _OpenPort(self._visitors, transport.close)
        open_port = _OpenPort(self._visitors)
        answerer = answerer_for(self._cml, port, label)
        server = await asyncio.start_server(partial(open_port.serve, answerer), self._host, port.outside)
        open_port.shut = server.close
        return open_port


class _OpenPort:
    """One port and its connections; `everybody` are those of all the machine's ports."""

    def __init__(self, everybody: set[asyncio.StreamWriter], shut: Callable[[], object] = lambda: None) -> None:
        self.shut = shut
        self._everybody = everybody
        self._visitors: set[asyncio.StreamWriter] = set()
        self._open = True

    async def serve(self, answerer: PortAnswerer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open or len(self._everybody) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._visitors.add(writer)
        self._everybody.add(writer)
        try:
            await answerer.serve(reader, writer)
        except OSError:
            pass  # the client closed the connection, or does not keep to the protocol
        finally:
            self._visitors.discard(writer)
            self._everybody.discard(writer)
            writer.close()

    def close(self) -> None:
        self._open = False
        self.shut()
        for writer in self._visitors:
            writer.transport.abort()


class _Echo(asyncio.DatagramProtocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)
