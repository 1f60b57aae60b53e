"""PATty's ports for real: listens on an address for every mapping of a simulated machine and greets who connects.

For demonstrations and tests in real time; simulations ask `Cml.patty` instead.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from lcm.sim.cml.engine import Cml
from lcm.sim.cml.patty import Mapped

_VNC: Final = b"RFB 003.008\n"
_TELNET: Final = b"\xff\xfb\x01\xff\xfb\x03"
"""The server will echo, and will not say go-ahead."""
_CHUNK: Final = 4096


class PattyPorts:
    """The open ports of one machine on one address."""

    def __init__(self, cml: Cml, host: str) -> None:
        self._cml = cml
        self._host = host
        self._doors: dict[Mapped, _Door] = {}
        self.taken: dict[Mapped, str] = {}
        """Ports that somebody else on this address holds, and what the system said."""

    async def sync(self) -> None:
        """Open the ports that are mapped now and close the others, with their connections."""
        wanted = {*self._cml.patty("tcp").values(), *self._cml.patty("udp").values()}
        for port in [port for port in self._doors if port not in wanted]:
            self._doors.pop(port).close()
        taken = {}
        for port in sorted(wanted - self._doors.keys(), key=lambda port: (port.protocol, port.outside)):
            try:
                self._doors[port] = await self._open(port)
            except OSError as error:
                taken[port] = str(error)
        self.taken = taken

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
        for door in self._doors.values():
            door.close()
        self._doors.clear()

    async def _open(self, port: Mapped) -> "_Door":
        label = self._cml.labs.get(port.lab_id).nodes[port.node_id].spec.label
        if port.protocol == "udp":
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_datagram_endpoint(_Echo, local_addr=(self._host, port.outside))
            return _Door(transport.close)
        door = _Door()
        greet = partial(door.serve, _greeting(port, label), echo=port.kind != "vnc")
        door.shut = (await asyncio.start_server(greet, self._host, port.outside)).close
        return door


class _Door:
    """One port with those who came through it."""

    def __init__(self, shut: Callable[[], object] = lambda: None) -> None:
        self.shut = shut
        self._visitors: set[asyncio.StreamWriter] = set()

    async def serve(
        self, greeting: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, echo: bool
    ) -> None:
        self._visitors.add(writer)
        try:
            writer.write(greeting)
            while data := await reader.read(_CHUNK):
                if echo:
                    writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the visitor left without a word
        finally:
            self._visitors.discard(writer)
            writer.close()

    def close(self) -> None:
        self.shut()
        for writer in self._visitors:
            writer.transport.abort()


class _Echo(asyncio.DatagramProtocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)


def _greeting(port: Mapped, label: str) -> bytes:
    if port.kind == "vnc":
        return _VNC
    if port.kind == "pat":
        return b""
    return _TELNET + f"\r\n{label} con{port.inside} is now available\r\n\r\n{label}>".encode()
