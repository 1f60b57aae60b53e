"""One WebSocket connection of the server, with a limit in every state. Made by `system.connection` for an upgrade.

The application is asked by ASGI, as for a request. Frames are read and written by the library `websockets`, of which
only the part without I/O is used. Nothing is parsed before the application asks for it: what a client sends faster than
it is taken waits in the client's own buffers, and so do pings of a client that does not read their answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

from uvicorn import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.server import ServerProtocol

from lcm.system.limits import ConnectionLimits
from lcm.system.tasks import LoopTurns

_PIECE: Final = 2_048
"""Bytes that are parsed at once: a few hundred frames, however small they are."""
_MAX_PIECES: Final = 32
_TURNS: Final = LoopTurns(0.005)
"""What all clients' frames, and what is done with their messages, may take in one turn of the loop."""
_MAX_UNPARSED: Final = 65_536
_MAX_REFUSAL: Final = 65_536
_CHECK_SECONDS: Final = 1.0
_PING: Final = b"lcm"
GOING_AWAY: Final = int(CloseCode.GOING_AWAY)
_NOT_OPENED: Final = 1006
_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
Message = MutableMapping[str, Any]


class SocketClosed(ConnectionError):
    """The connection is closed, so that nothing can be sent any more."""


class WebSocketConnection(asyncio.Protocol):
    """Serves one connection after its upgrade."""

    def __init__(
        self, config: Config, state: ServerState, limits: ConnectionLimits, leave: Callable[[], None], request: Request
    ) -> None:
        """Serve one connection; `leave` is called when it is over. Raise ValueError for an invalid upgrade."""
        self._config = config
        self._state = state
        self._limits = limits
        self._leave = leave
        self._request = request
        self._handshake = ServerProtocol()
        self._accepting: Response = self._handshake.accept(request)
        self._frames = Protocol(SERVER, state=OPEN, max_size=limits.message_bytes)
        self._loop = asyncio.get_running_loop()
        self._unparsed = bytearray()
        self._message = bytearray()
        """What has come of a message in several frames. Those without data leave no trace, however many there are."""
        self._is_text = False
        self._has_replied = False
        """Whether what was parsed last was answered by us, as a ping is."""
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._refusal: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._opened = self._answered = False
        self._disconnect: Message | None = None
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._writable.set()
        self._heard_at = self._pinged_at = self._loop.time()
        self._stuck_since: float | None = None
        self._closing_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._state.connections.add(self)  # type: ignore[arg-type]  # the library names its own classes
        if self._accepting.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._answer(self._accepting)
            return
        task = self._loop.create_task(self._run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the library's own signature
        self._state.connections.discard(self)
        self._end(_NOT_OPENED, "")
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._unparsed += data
        if len(self._unparsed) > _MAX_UNPARSED:
            self._transport.pause_reading()
        if self._closing_since is not None:
            self._take_close()
        self._readable.set()

    def eof_received(self) -> None:
        self._end(_NOT_OPENED, "")

    def pause_writing(self) -> None:
        self._writable.clear()
        self._stuck_since = self._loop.time()

    def resume_writing(self) -> None:
        self._writable.set()
        self._stuck_since = None

    def shutdown(self) -> None:
        """Close it, because the server stops."""
        if self._opened:
            self._close(GOING_AWAY, "the API stops")
        else:
            self._transport.close()
        self._end(GOING_AWAY, "the API stops")

    async def _run(self) -> None:
        path, _, query = self._request.path.partition("?")
        scope: Message = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in self._request.headers.raw_items()
            ],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }
        try:
            await self._config.loaded_app(scope, self.receive, self.send)
        except SocketClosed:
            pass
        finally:
            if self._opened:
                self._close(CloseCode.INTERNAL_ERROR, "")
            elif not self._answered:
                self._answer(self._handshake.reject(HTTPStatus.INTERNAL_SERVER_ERROR, ""))

    async def receive(self) -> Message:
        """Return the next message of the client; a part of what it sent is parsed if need be."""
        while True:
            # A flood of tiny frames must not keep others from being served, nor one of pings fill our buffers.
            await _TURNS.wait()
            if self._messages:
                return self._messages.popleft()
            if self._disconnect is not None:
                return self._disconnect
            if self._unparsed:
                if self._has_replied:
                    await self._writable.wait()
                self._has_replied = False
                self._parse()
                continue
            self._transport.resume_reading()
            self._readable.clear()
            await self._readable.wait()

    async def send(self, message: Message) -> None:
        """Send what the application says, and wait until the client has taken most of it. Raise SocketClosed."""
        match message["type"]:
            case "websocket.accept":
                self._accept()
            case "websocket.http.response.start":
                self._refusal = message["status"], list(message.get("headers", []))
            case "websocket.http.response.body":
                self._refuse(message.get("body", b""))
            case "websocket.send":
                self._send_message(message)
            case "websocket.close":
                self._close(message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or "")
        await self._writable.wait()

    def _accept(self) -> None:
        if self._disconnect is not None:
            raise SocketClosed
        self._opened = True
        self._write_response(self._accepting)

    def _refuse(self, body: bytes) -> None:
        assert self._refusal is not None, "a refusal begins with its status"
        status, headers = self._refusal
        named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        whole = Headers([*named, ("Connection", "close")])
        self._answer(Response(status, HTTPStatus(status).phrase, whole, body[:_MAX_REFUSAL]))

    def _answer(self, response: Response) -> None:
        self._answered = True
        self._write_response(response)
        self._transport.close()
        self._loop.call_later(self._limits.close_seconds, self._transport.abort)  # a client may not take it

    def _write_response(self, response: Response) -> None:
        self._handshake.send_response(response)
        self._transport.write(b"".join(self._handshake.data_to_send()))

    def _send_message(self, message: Message) -> None:
        if self._disconnect is not None or not self._opened:
            raise SocketClosed
        try:
            if (data := message.get("bytes")) is not None:
                self._frames.send_binary(data)
            else:
                self._frames.send_text(message["text"].encode())
        except InvalidState as error:
            raise SocketClosed from error
        self._flush()

    def _close(self, code: int, reason: str) -> None:
        """Begin to close; the client has a moment to answer."""
        if self._closing_since is not None or self._transport.is_closing() or self._frames.state is not OPEN:
            return
        self._frames.send_close(code, reason)
        self._flush()
        self._closing_since = self._loop.time()
        self._transport.resume_reading()
        self._loop.call_later(self._limits.close_seconds, self._transport.abort)
        self._end(code, reason)

    def _take_close(self) -> None:
        """Look for the client's answer to our close; all else that it sends is thrown away."""
        if self._frames.parser_exc is None and not self._transport.is_closing():
            self._parse()
        self._unparsed.clear()
        self._messages.clear()

    def _parse(self) -> None:
        at = 0
        for at in range(_PIECE, _PIECE * (_MAX_PIECES + 1), _PIECE):
            self._frames.receive_data(bytes(self._unparsed[at - _PIECE : at]))
            if at >= len(self._unparsed) or _TURNS.is_over():
                break
        del self._unparsed[:at]
        for event in self._frames.events_received():
            if isinstance(event, Frame):
                self._take_frame(event)
        self._has_replied = self._flush()
        if self._frames.close_expected() or self._frames.parser_exc is not None:
            self._transport.close()
            self._loop.call_later(self._limits.close_seconds, self._transport.abort)

    def _take_frame(self, frame: Frame) -> None:
        if frame.opcode in _DATA:
            self._is_text = frame.opcode is Opcode.TEXT if frame.opcode is not Opcode.CONT else self._is_text
            self._message += frame.data
            if frame.fin:
                data, self._message = bytes(self._message), bytearray()
                self._put_message(data)
        elif frame.opcode is Opcode.CLOSE and self._frames.close_rcvd is not None:
            self._end(self._frames.close_rcvd.code, self._frames.close_rcvd.reason)

    def _put_message(self, data: bytes) -> None:
        if not self._is_text:
            self._messages.append({"type": "websocket.receive", "bytes": data})
            return
        try:
            self._messages.append({"type": "websocket.receive", "text": data.decode()})
        except UnicodeDecodeError:
            self._close(CloseCode.INVALID_DATA, "not UTF-8")

    def _flush(self) -> bool:
        """Write what there is to send. Return whether there was something.

        After our close there are only answers to pings, which nobody waits for and a client may not read: they are
        left out.
        """
        output = [part for part in self._frames.data_to_send() if part]
        if output and self._closing_since is None and not self._transport.is_closing():
            self._transport.write(b"".join(output) if len(output) > 1 else output[0])
        if self._frames.parser_exc is not None and self._frames.close_sent is not None:
            self._end(self._frames.close_sent.code, self._frames.close_sent.reason)
        return bool(output)

    def _end(self, code: int, reason: str) -> None:
        """Mark the end for the application: nothing more will come; what has come is still received."""
        if self._disconnect is None:
            self._disconnect = {"type": "websocket.disconnect", "code": code, "reason": reason}
        self._readable.set()
        if self._transport.is_closing() or code == _NOT_OPENED:
            self._writable.set()

    def _check_time(self) -> None:
        now, limits = self._loop.time(), self._limits
        if self._stuck_since is not None and now - self._stuck_since >= limits.send_seconds:
            self._transport.abort()
        elif self._opened and self._closing_since is None:
            if self._unparsed:
                self._heard_at = now  # the pause in reading is ours, so the client is not silent
            elif now - self._heard_at >= limits.silent_seconds:
                self._close(CloseCode.POLICY_VIOLATION, "no answer to a ping")
            elif now - max(self._heard_at, self._pinged_at) >= limits.ping_seconds and self._writable.is_set():
                self._pinged_at = now
                self._frames.send_ping(_PING)
                self._flush()
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check_time)
