"""PATty's ports for real: listens on an address for every mapping of a simulated machine and answers who connects.

For demonstrations and tests in real time; simulations call `Cml.patty_ports` instead. `sim.cloud.patty_server` does it
for a whole cloud. A connection reaches a serial console, a VNC screen, or a port of the node.
"""

import asyncio
import errno
import re
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.patty import PortMapping

_TELNET: Final = b"\xff\xfb\x01\xff\xfb\x03"
"""The server will echo, and will suppress go-ahead."""
_COMMAND: Final = re.compile(rb"\xff(?:[\xfb-\xfe].|\xfa.*?\xff\xf0|[^\xfa-\xfe])", re.DOTALL)
_UNFINISHED: Final = re.compile(rb"\xff(?:[\xfb-\xfe]|\xfa.*)?\Z", re.DOTALL)
_MOST_UNFINISHED_BYTES: Final = 256
_ENTER: Final = re.compile(rb"\r\n|\r\x00|\r|\n")
_RFB: Final = b"RFB 003.008\n"
_NO_SCREEN: Final = b"this screen is simulated: there is nothing to see"


class PortDialog(Protocol):
    """One connection to a simulated port."""

    greeting: bytes

    def answer(self, data: bytes) -> bytes:
        """Return what to send back."""
        ...


class SerialConsole:
    """A serial line over telnet: input is echoed, and every line ends with a prompt."""

    def __init__(self, label: str, line: int) -> None:
        self._prompt = f"\r\n{label}>".encode()
        self.greeting = _TELNET + f"\r\n{label} con{line} is now available\r\n".encode() + self._prompt
        self._rest = b""

    def answer(self, data: bytes) -> bytes:
        text = _COMMAND.sub(b"", self._rest + data)
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished else len(text)
        self._rest = text[end : end + _MOST_UNFINISHED_BYTES]
        return _ENTER.sub(lambda _: self._prompt, text[:end])


class VncScreen:
    """A VNC server that sends its version, and then that it has nothing to show."""

    greeting = _RFB

    def __init__(self) -> None:
        self._told = False

    def answer(self, data: bytes) -> bytes:
        if self._told or not data.endswith(b"\n"):
            return b""
        self._told = True
        # No security types, followed by the reason, which viewers show.
        return b"\0" + len(_NO_SCREEN).to_bytes(4, "big") + _NO_SCREEN


class NodePort:
    """A port of the node: sends its name, then echoes what it receives."""

    def __init__(self, label: str, port: int) -> None:
        self.greeting = f"{label} port {port}\r\n".encode()

    def answer(self, data: bytes) -> bytes:
        return data


def start_dialog(port: PortMapping, label: str) -> PortDialog:
    """Start the dialog for a connection to a TCP port."""
    if port.kind == "vnc":
        return VncScreen()
    return SerialConsole(label, port.inside) if port.kind == "serial" else NodePort(label, port.inside)


MOST_PORTS: Final = 6_000
MOST_CONNECTIONS: Final = 200
"""How many connections one machine keeps at a time; further ones are refused."""
_CHUNK: Final = 4096
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
        server = await asyncio.start_server(
            partial(open_port.serve, partial(start_dialog, port, label)), self._host, port.outside
        )
        open_port.shut = server.close
        return open_port


class _OpenPort:
    """One port and its connections; `everybody` are those of all the machine's ports."""

    def __init__(self, everybody: set[asyncio.StreamWriter], shut: Callable[[], object] = lambda: None) -> None:
        self.shut = shut
        self._everybody = everybody
        self._visitors: set[asyncio.StreamWriter] = set()
        self._open = True

    async def serve(
        self, begin: Callable[[], PortDialog], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if not self._open or len(self._everybody) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._visitors.add(writer)
        self._everybody.add(writer)
        try:
            await _serve_connection(begin(), reader, writer)
        except OSError:
            pass  # the client closed the connection
        finally:
            self._visitors.discard(writer)
            self._everybody.discard(writer)
            writer.close()

    def close(self) -> None:
        self._open = False
        self.shut()
        for writer in self._visitors:
            writer.transport.abort()


async def _serve_connection(visit: PortDialog, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(visit.greeting)
    while data := await reader.read(_CHUNK):
        writer.write(visit.answer(data))
        await writer.drain()


class _Echo(asyncio.DatagramProtocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)
