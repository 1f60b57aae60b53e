"""Serves an ASGI application on a real port, over HTTP or HTTPS, until told to stop.

Called by `compose.api` for the API and by `lcm cml-sim` for the simulator; the benchmarks serve their baselines with
it too.
"""

import asyncio
import errno
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lcm.model.base.errors import Refused

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_BACKLOG: Final = 512
_GRACE_SECONDS: Final = 2
_IDLE_SECONDS: Final = 75
_MAX_HEAD_BYTES: Final = 65_536
_HEAD_SECONDS: Final = 10.0
_REFUSAL_SECONDS: Final = 1.0
_REFUSAL_BODY: Final = (
    b'{"type":"about:blank","title":"Too busy","status":503,"reason":"Throttled","detail":"too many connections"}'
)
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL_BODY), _REFUSAL_BODY)
)

MAX_CONNECTIONS: Final = 10_000
"""How many connections are served at once by default."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM texts."""

    certificate: bytes
    key: bytes


class NotLocalAddress(Refused):
    """A host that this machine cannot listen on, whatever the port."""


def url_host(host: str) -> str:
    """Return a host in the form that a URL needs."""
    return f"[{host}]" if ":" in host else host


def listen(host: str, port: int) -> socket.socket:
    """Bind a port, any free one for 0; clients may connect from now on and are served once `serve` runs."""
    # asyncio sends small answers without delay only if the socket names its protocol, which create_server leaves out.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        listening.close()
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            raise NotLocalAddress(f"{host} is no address of this machine") from error
        raise Refused(f"cannot listen on {url_host(host)}:{port}: {error.strerror or error}") from error
    return listening


async def serve(
    app: Application,
    listening: socket.socket,
    certificate: Certificate | None,
    stop: asyncio.Event,
    *,
    most_connections: int = MAX_CONNECTIONS,
    head_seconds: float = _HEAD_SECONDS,
) -> None:
    """Serve until `stop` is set; then end streams at once, and give other requests a moment to be answered."""
    limits = {"most_connections": most_connections, "head_seconds": head_seconds}
    settings = uvicorn.Config(
        app,
        interface="asgi3",
        http=type("_Limited", (_Connection,), limits),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # uvicorn would log every injected fault, and every client that left, as our error
        access_log=False,
        server_header=False,
        proxy_headers=False,  # they cost time on every request, and nothing here trusts them
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    with tempfile.TemporaryDirectory(prefix="lcm-") as folder:
        if certificate:
            settings.ssl_certfile, settings.ssl_keyfile = _write_certificate(Path(folder), certificate)
        server = _Server(settings)
        stopping = asyncio.create_task(server.stop_after(stop))
        try:
            await server.serve([listening])
        finally:
            stopping.cancel()


class _Server(uvicorn.Server):
    """Leaves signals to the process; the library's own handling would raise the signal once more at the end."""

    async def stop_after(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(HttpToolsProtocol):
    """Limits the size and time of a request's head, and closes streams when the server stops.

    A stream then ends as if its client had left. A timeout around every head would cost time on every request, so one
    timer for each connection checks now and then.
    """

    most_connections = MAX_CONNECTIONS
    head_seconds = _HEAD_SECONDS
    _head_bytes = 0
    _head_since: float | None = None
    """When the head began that is not complete yet."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its parent does
        if len(self.connections) >= self.most_connections:
            transport.write(_REFUSAL)
            transport.set_protocol(_RefusedConnection(transport, self.loop))
            return
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._check_head_time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._head_timer is not None:
            self._head_timer.cancel()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head too large.")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = 0
        self._head_since = None

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._head_bytes = 0

    def shutdown(self) -> None:
        super().shutdown()
        if not self.transport.is_closing() and self.cycle.response_started:
            self.transport.close()

    def _check_head_time(self) -> None:
        now = self.loop.time()
        if self._head_since is not None and self.flow.read_paused:
            self._head_since = now  # the pause in reading is ours, so the client is not late
        if self._head_since is not None and now >= self._head_since + self.head_seconds:
            self.transport.close()
        else:
            self._head_timer = self.loop.call_at((self._head_since or now) + self.head_seconds, self._check_head_time)


class _RefusedConnection(asyncio.Protocol):
    """A connection above the limit.

    What it sends is read first: closing with unread data would discard the answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._timer = loop.call_later(_REFUSAL_SECONDS, transport.close)

    def data_received(self, _: bytes) -> None:
        self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._timer.cancel()


def _write_certificate(folder: Path, certificate: Certificate) -> tuple[Path, Path]:
    shown, key = folder / "cert.pem", folder / "key.pem"
    shown.write_bytes(certificate.certificate)
    key.touch(0o600)
    key.write_bytes(certificate.key)
    return shown, key
