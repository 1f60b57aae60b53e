"""Serves an ASGI application on a real port, over HTTP or HTTPS, until told to stop.

Called by `compose.api` for the API and by `lcm cml-sim` for the simulator; the benchmarks serve their baselines with
it too. Connections are accepted one by one and counted from that moment on, so that neither their number nor that of
unfinished TLS handshakes exceeds what the process has files for.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import structlog
import uvicorn

from lcm.model.access.address import address_block
from lcm.model.base.errors import Refused
from lcm.system.connection import HttpConnection
from lcm.system.limits import ConnectionLimits
from lcm.system.tls import ServerTls

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_BACKLOG: Final = 512
_ACCEPTED_AT_ONCE: Final = 64
_GRACE_SECONDS: Final = 2
_REFUSAL_SECONDS: Final = 1.0
_MAX_REFUSALS: Final = 32
"""Connections that are told why they are refused at once; more are closed without a word."""
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_NO_FILES_WAIT_SECONDS: Final = 1.0
_REFUSAL_BODY: Final = (
    b'{"type":"about:blank","title":"Too busy","status":503,"reason":"Throttled","detail":"too many connections"}'
)
_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_REFUSAL_BODY), _REFUSAL_BODY)
)
_DEFAULT_LIMITS: Final = ConnectionLimits()
_log: Final = structlog.get_logger()


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
        listening.setblocking(False)  # noqa: FBT003 - as the library has it
    except (OSError, UnicodeError) as error:
        listening.close()
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            raise NotLocalAddress(f"{host} is no address of this machine") from error
        raise Refused(f"cannot listen on {url_host(host)}:{port}: {error.strerror or error}") from error
    return listening


async def serve(
    app: Application,
    listening: socket.socket,
    tls: ServerTls | None,
    stop: asyncio.Event,
    *,
    limits: ConnectionLimits = _DEFAULT_LIMITS,
) -> None:
    """Serve until `stop` is set; then end streams at once, and give other requests a moment to be answered."""
    settings = uvicorn.Config(
        app,
        interface="asgi3",
        http=HttpConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # uvicorn would log every injected fault, and every client that left, as our error
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `api.http.request` knows whom to believe
        timeout_keep_alive=_seconds(limits.idle_seconds),
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = _Server(settings)
    accepting = asyncio.create_task(_Listener(listening, server, tls, limits).run())
    stopping = asyncio.create_task(server.stop_after(stop, accepting))
    try:
        await server.serve([])  # it only keeps the time and ends requests; what it serves is accepted by us
    finally:
        accepting.cancel()
        stopping.cancel()
        await asyncio.wait([accepting, stopping])


def _seconds(seconds: float) -> int:
    return max(1, round(seconds))


class _Server(uvicorn.Server):
    """Leaves signals to the process; the library's own handling would raise the signal once more at the end."""

    async def stop_after(self, stop: asyncio.Event, accepting: asyncio.Task[None]) -> None:
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait([stopped, accepting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            accepting.cancel()
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Listener:
    """Accepts connections and gives each a place, or refuses it."""

    def __init__(
        self, listening: socket.socket, server: _Server, tls: ServerTls | None, limits: ConnectionLimits
    ) -> None:
        self._listening = listening
        self._server = server
        self._tls = tls
        self._limits = limits
        self._taken: Counter[str] = Counter()
        self._total = 0
        self._refusing = 0
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Accept until cancelled; what is still connecting then is closed."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                # Not `sock_accept`: what it has accepted when it is cancelled would stay open for ever.
                loop.add_reader(self._listening, arrived.set)
                await arrived.wait()
                arrived.clear()
                if not self._accept_some():
                    loop.remove_reader(self._listening)
                    await asyncio.sleep(_NO_FILES_WAIT_SECONDS)
        finally:
            loop.remove_reader(self._listening)
            self._listening.close()
            for task in self._connecting:
                task.cancel()

    def _accept_some(self) -> bool:
        """Accept who waits, some at a time so that others get their turn. Return False while no files are left."""
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                self._welcome(*self._listening.accept())
        except OSError as error:
            if error.errno in _NO_FILES:
                _log.error("no connection can be accepted", error=str(error), open=self._total)
                return False
        return True

    def _welcome(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        sock.setblocking(False)  # noqa: FBT003 - as the library has it
        place = self._take_place(peer[0])
        if place is None and (self._tls is not None or self._refusing >= _MAX_REFUSALS):
            sock.close()
            return
        task = asyncio.create_task(self._connect(sock, place) if place else self._refuse(sock))
        self._connecting.add(task)

        def finish(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            if task.cancelled() or task.exception():
                sock.close()
                if place is not None:
                    place.leave()

        task.add_done_callback(finish)

    def _take_place(self, address: str) -> "_Place | None":
        block, limits = address_block(address), self._limits
        is_crowded = self._taken[block] >= limits.per_address and not limits.is_proxy(address)
        if self._total >= limits.most or is_crowded:
            return None
        self._total += 1
        self._taken[block] += 1
        return _Place(self, block)

    def leave_place(self, block: str) -> None:
        """Count one connection less."""
        self._total -= 1
        self._taken[block] -= 1
        if not self._taken[block]:
            del self._taken[block]

    async def _connect(self, sock: socket.socket, place: "_Place") -> None:
        loop, tls = asyncio.get_running_loop(), self._tls() if self._tls else None
        seconds = self._limits.handshake_seconds if tls else None
        await loop.connect_accepted_socket(
            lambda: HttpConnection(self._server.config, self._server.server_state, self._limits, place.leave),
            sock,
            ssl=tls,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=seconds,
        )

    async def _refuse(self, sock: socket.socket) -> None:
        """Say why. What the client sends is read first: closing with unread data would discard the answer."""
        loop = asyncio.get_running_loop()
        self._refusing += 1
        try:
            async with asyncio.timeout(_REFUSAL_SECONDS):
                await loop.sock_sendall(sock, _REFUSAL)
                await loop.sock_recv(sock, 65_536)
        except (OSError, TimeoutError):
            pass
        finally:
            self._refusing -= 1
            sock.close()


class _Place:
    """One connection's place, which can be left once."""

    def __init__(self, listener: _Listener, block: str) -> None:
        self._listener: _Listener | None = listener
        self._block = block

    def leave(self) -> None:
        """Leave it to the next one. May be repeated."""
        if self._listener is not None:
            self._listener.leave_place(self._block)
            self._listener = None
