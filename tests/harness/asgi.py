"""httpx transports to ASGI applications without a network, for clients in virtual time.

httpx's own ASGI transport has no time-outs, no broken answers and no streaming: it waits for the end of an answer.
`AsgiTransport` reaches the API, `MemoryTransport` a simulated CML.
"""

import asyncio
import errno
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextvars import Context
from functools import partial
from typing import Final

import httpx

from lcm.sim.cml.faults import CmlDown
from lcm.sim.cml.rest.app import REFUSABLE, CmlApp, CmlFleet
from lcm.sim.time.host import HOST
from lcm.system.serving import Application, Message

_BUFFER_BYTES: Final = 65_536
"""How far an answer may be ahead of its reader, like a socket's buffers."""


class AsgiTransport(httpx.AsyncBaseTransport):
    """Hands requests to an application in the same process; an application's error is raised in its client."""

    def __init__(
        self,
        app: Application,
        *,
        context: Context | None = None,
        extensions: Mapping[str, object] | None = None,
        refusal: type[Exception] | None = None,
        address: str = "in-memory",
    ) -> None:
        """Serve in a context, such as a host's; without one, requests are handled on the host of their client.

        The application may raise `refusal` instead of an answer; any other error is its bug.
        """
        self._app = app
        self._context = context
        self._extensions = dict(extensions or {})
        self._refusal = refusal
        self._address = address
        self._handling: set[asyncio.Task[None]] = set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(request, await request.aread())
        handling = asyncio.get_running_loop().create_task(self._handle(request, exchange), context=self._context)
        self._handling.add(handling)
        handling.add_done_callback(self._handling.discard)
        handling.add_done_callback(partial(exchange.finish, self._refusal))
        try:
            await exchange.wait_for_start()
        finally:
            if not exchange.status:
                exchange.disconnect()
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_ResponseStream(exchange))

    async def _handle(self, request: httpx.Request, exchange: "_Exchange") -> None:
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": (self._address, 0),
            "extensions": self._extensions,
        }
        await self._app(scope, exchange.receive, exchange.send)


class _Exchange:
    """One request and its answer, as ASGI messages."""

    def __init__(self, request: httpx.Request, body: bytes) -> None:
        self._request = request
        self._client = HOST.get()
        self._seconds: float | None = request.extensions.get("timeout", {}).get("read")
        self._body: bytes | None = body
        self._parts: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._news, self._room, self._gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._complete = False
        self._failure: BaseException | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if self._body is not None:
            message = {"type": "http.request", "body": self._body, "more_body": False}
            self._body = None
            return message
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        if self._client is not None and not self._client.alive:
            self.disconnect()  # the operating system closes a dead process's connections
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        else:
            part = message.get("body", b"")
            self._parts.append(part)
            self._ahead_bytes += len(part)
            self._complete = not message.get("more_body", False)
        self._news.set()
        while self._ahead_bytes > _BUFFER_BYTES and not self._gone.is_set():
            self._room.clear()
            await self._room.wait()

    def finish(self, refusal: type[Exception] | None, handling: "asyncio.Task[None]") -> None:
        """Record that the application has finished, with or without an error."""
        error = None if handling.cancelled() else handling.exception()
        self._failure = error or httpx.RemoteProtocolError("the answer broke off", request=self._request)
        self._news.set()
        if error is not None and self._gone.is_set() and not (refusal and isinstance(error, refusal)):
            message = "an application failed after its client had left"
            handling.get_loop().call_exception_handler({"message": message, "exception": error, "task": handling})

    def disconnect(self) -> None:
        """Tell the application that its client has gone. May be repeated."""
        self._gone.set()
        self._room.set()

    async def wait_for_start(self) -> None:
        """Wait for the beginning of the answer."""
        while not self.status:
            await self._wait()

    async def next_part(self) -> bytes | None:
        """Wait for the next part of the answer; None after the last."""
        while not self._parts:
            if self._complete:
                return None
            await self._wait()
        part = self._parts.popleft()
        self._ahead_bytes -= len(part)
        self._room.set()
        return part

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._news.clear()
        await self._with_timeout(self._news.wait())

    async def _with_timeout(self, waiting: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await waiting
        except TimeoutError as error:
            raise httpx.ReadTimeout("no answer in time", request=self._request) from error


class _ResponseStream(httpx.AsyncByteStream):
    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await self._exchange.next_part()) is not None:
            yield part

    async def aclose(self) -> None:
        self._exchange.disconnect()


class MemoryTransport(AsgiTransport):
    """Hands requests to the simulator's REST face in the same process; a machine that is down refuses them."""

    def __init__(self, app: CmlApp | CmlFleet, *, context: Context | None = None) -> None:
        super().__init__(app, context=context, extensions={REFUSABLE: {}}, refusal=CmlDown)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except CmlDown as error:
            cause = ConnectionRefusedError(str(error)) if error.there else OSError(errno.EHOSTUNREACH, str(error))
            raise httpx.ConnectError(str(error), request=request) from cause
