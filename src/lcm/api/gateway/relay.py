"""The relay between one WebSocket and one port of a worker. Run by `api.gateway.consoles`.

Each side is read only as fast as the other one takes it, so that a relay holds a few hundred kilobytes at most, and
waits for nobody but its own two sides.
"""

import asyncio
import socket as sockets
from dataclasses import dataclass
from typing import Final

from lcm.api.gateway.registry import OpenConsole
from lcm.api.gateway.telnet import TelnetClient
from lcm.api.gateway.viewer import LookingViewer, UnknownMessage
from lcm.api.http.sockets import FORBIDDEN, NORMAL, UNREACHABLE, UNSUPPORTED, Socket
from lcm.model.kinds.console import ConsoleKind
from lcm.system.tasks import run_until_first_ends

_CHUNK: Final = 65_536
_CONNECT_SECONDS: Final = 5.0
_TAKE_SECONDS: Final = 30.0
"""For a port that takes nothing of what was sent."""
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}
"""Seconds of silence, seconds between questions, and how many of them: options that not every system has."""


@dataclass(slots=True)
class RelayOutcome:
    """What went through a relay, and how it ended."""

    to_client: int = 0
    to_port: int = 0
    code: int = NORMAL
    reason: str = "closed by the client"


class Relay:
    """One console's relay."""

    def __init__(self, socket: Socket, console: OpenConsole, kind: ConsoleKind) -> None:
        self._socket = socket
        self._console = console
        self._telnet = TelnetClient() if kind is ConsoleKind.SERIAL else None
        self._viewer = LookingViewer() if console.looking and kind is ConsoleKind.VNC else None
        self.outcome = RelayOutcome()

    async def run(self, host: str, port: int) -> None:
        """Relay until either side closes, or the console must end; then close both, and tell the client why.

        The end waits for nobody: neither for a port that does not answer, nor for a client that reads nothing.
        """
        try:
            await run_until_first_ends(self._console.wait_for_end(), self._relay(host, port))
        except UnknownMessage as error:
            self._set_outcome(FORBIDDEN, str(error))
        except TimeoutError:
            self._set_outcome(UNREACHABLE, "the node takes no input")
        except OSError:
            pass  # one of the sides is gone
        if self._console.ending is not None:
            self._set_outcome(*self._console.ending)
        await self._socket.close(self.outcome.code, self.outcome.reason)

    async def _relay(self, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, limit=_CHUNK)
        except (OSError, TimeoutError):
            self._set_outcome(UNREACHABLE, f"{self._console.name} does not answer; try again in a minute")
            return
        _keep_alive(writer.get_extra_info("socket"))
        try:
            await run_until_first_ends(
                self._pass_to_client(reader, writer), self._pass_to_port(writer), self._pass_notices()
            )
        finally:
            writer.transport.abort()

    async def _pass_to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await self._read(reader):
            if self._telnet is not None:
                data, answer = self._telnet.receive(data)
                if answer:
                    writer.write(answer)
            if data:
                self.outcome.to_client += len(data)
                await self._socket.send(data)
        self._set_outcome(NORMAL, "the node closed the console")

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.read(_CHUNK)
        except OSError:
            return b""

    async def _pass_to_port(self, writer: asyncio.StreamWriter) -> None:
        while (message := await self._socket.receive()) is not None:
            if isinstance(message, str):
                self._set_outcome(UNSUPPORTED, "there are no control messages from clients")
                return
            if data := self._to_port(message):
                self.outcome.to_port += len(message)
                writer.write(data)
                if writer.transport.get_write_buffer_size() > _CHUNK:
                    async with asyncio.timeout(_TAKE_SECONDS):
                        await writer.drain()

    def _to_port(self, message: bytes) -> bytes:
        if self._viewer is not None:
            return self._viewer.filter(message)
        if self._console.looking:
            return b""
        return self._telnet.send(message) if self._telnet is not None else message

    async def _pass_notices(self) -> None:
        while True:
            await self._socket.send(await self._console.next_notice())

    def _set_outcome(self, code: int, reason: str) -> None:
        self.outcome.code, self.outcome.reason = code, reason


def _keep_alive(line: sockets.socket) -> None:
    """Set TCP keep-alive on a port's connection: what lies between forgets silent ones."""
    line.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(sockets, name, None)) is not None:
            line.setsockopt(sockets.IPPROTO_TCP, option, value)
