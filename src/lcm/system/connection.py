"""One HTTP connection of the server, with a limit in every state. Made by `system.serving` for each client.

A connection waits for a head, for the rest of a body that nobody reads, or for the next request: each has its time. One
timer for each connection checks now and then, as one around every request would cost time on every request. What a
client does not take is dropped in the end. While a request is served, its own limits hold. All that was read at once is
parsed at once, so requests, headers and chunks are limited in number: each takes long for the few bytes that it is.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.http11 import Request

from lcm.system.limits import ConnectionLimits
from lcm.system.websocket import WebSocketConnection

_MAX_HEAD_BYTES: Final = 65_536
_MAX_HEADERS: Final = 100
_MAX_PIPELINED: Final = 16
"""Requests that may wait for the answer of the one before them."""
_FREE_CHUNKS: Final = 1_000
_LEAST_CHUNK_BYTES: Final = 256
"""What the chunks of a body have on average, if they are more than those that are free."""
_LEAST_BYTES_A_SECOND: Final = 1_000
"""A client that takes an answer more slowly is one that does not take it."""
WHOLE_ANSWER: Final = "lcm.whole_answer"
"""The ASGI extension by which an application sends a whole answer at once: `await send(head, body)`.

The head is the status line and the headers, each with its end of line; the application answers for their form. It goes
out in one write with the body, and is not taken apart, checked and put together again for each request.
"""


class HttpConnection(HttpToolsProtocol):
    """Serves one connection within its limits; streams are closed when the server stops, as if their client left."""

    def __init__(self, config: Config, state: ServerState, limits: ConnectionLimits, leave: Callable[[], None]) -> None:
        """Serve one connection; `leave` is called when it is over."""
        super().__init__(config, state, {})
        self._limits = limits
        self._leave = leave
        self._head_bytes = 0
        self._in_head = True
        self._has_whole_body = True
        self._chunks = self._body_bytes = 0
        self._deadline: float | None = None
        """When what the client owes must be there; None while it owes nothing."""
        self._unsent: tuple[int, float] | None = None
        """How many bytes were not taken, and when that was seen."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent does
        super().connection_made(transport)
        self._expect_within(self._limits.head_seconds)
        self._check_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()
        if self._timer is not None:
            self._timer.cancel()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._expect_within(self._limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            # A trailer: it would be added to the headers of a request whose caller was authenticated by them.
            raise ValueError("trailers are not accepted")
        if len(self.headers) >= _MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise ValueError("too many requests wait for their answers")
        self._in_head = self._has_whole_body = False
        self._head_bytes = self._chunks = self._body_bytes = 0
        self._deadline = None
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count a chunk of a body."""
        if self._chunks > _FREE_CHUNKS and self._body_bytes < self._chunks * _LEAST_CHUNK_BYTES:
            raise ValueError("the chunks are too small")
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0
        self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._has_whole_body = True
        if not self._is_answering:
            self._expect_within(self._limits.idle_seconds)

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and not self._in_head:
            limits = self._limits
            self._expect_within(limits.idle_seconds if self._has_whole_body else limits.unread_seconds)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over; its place and its limits go with it.

        Not while earlier answers wait to be taken: what takes over would not be told that sending is paused.
        """
        if self._is_answering or self.pipeline or self._has_body or self.flow.write_paused:
            self.send_400_response("An upgrade comes alone.")
            return
        self.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers)
        request = Request(
            self.url.decode("latin-1"), headers, self.scope["method"], f"HTTP/{self.scope['http_version']}"
        )
        socket = WebSocketConnection(self.config, self.server_state, self._limits, self._leave, request)
        self.transport.set_protocol(socket)
        socket.connection_made(self.transport)

    def _should_upgrade_to_ws(self) -> bool:
        return self._limits.message_bytes > 0

    @property
    def _has_body(self) -> bool:
        lengths = [value for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        return any(value != b"0" for value in lengths)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent = None

    def send_400_response(self, msg: str) -> None:
        if self._is_answering and self.cycle.response_started:
            self.transport.close()  # an answer within an answer would be read as a part of it
        else:
            super().send_400_response(msg)

    def shutdown(self) -> None:
        super().shutdown()
        if not self.transport.is_closing() and self.cycle.response_started:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - an ASGI application
        extensions: Any = {WHOLE_ANSWER: partial(_send_whole_answer, cycle)}
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_within(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds

    def _check_time(self) -> None:
        now = self.loop.time()
        if self._in_head and self._deadline is not None and self.flow.read_paused:
            self._expect_within(self._limits.head_seconds)  # the pause in reading is ours, so the client is not late
        if self._is_stalled(now):
            self.transport.abort()
        elif self._deadline is not None and now >= self._deadline:
            self.transport.close()
        again = now + self._limits.head_seconds
        due = self._deadline if self._deadline is not None and self._deadline > now else again
        self._timer = self.loop.call_at(min(due, again), self._check_time)

    def _is_stalled(self, now: float) -> bool:
        """Return whether an answer waits for a client that takes next to nothing of it.

        While an answer is being made, what waits to be sent may be new each time, unless sending is paused.
        """
        waiting, closing = self.transport.get_write_buffer_size(), self.transport.is_closing()
        if not closing and (not waiting or (self._is_answering and not self.flow.write_paused)):
            self._unsent = None
            return False
        if self._unsent is None:
            self._unsent = waiting, now
        before, since = self._unsent
        if now - since < self._limits.send_seconds:
            return False
        self._unsent = waiting, now
        return waiting > before - _LEAST_BYTES_A_SECOND * (now - since)


async def _send_whole_answer(cycle: RequestResponseCycle, head: bytes, body: bytes) -> None:
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    assert not cycle.response_started, "a request has one answer"
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    common = [b"%s: %s\r\n" % header for header in cycle.default_headers]
    end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
    cycle.transport.write(b"".join((head, *common, end, body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
