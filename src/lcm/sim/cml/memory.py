"""A way to a simulated CML without a network, for clients that run in virtual time.

httpx's own ASGI transport knows no time-outs, no refused connections and no answers that break off; clients must be
tested against all of these.
"""

import asyncio
import errno

import httpx

from lcm.sim.cml.http import REFUSABLE, CmlApp, CmlFleet, Message
from lcm.sim.cml.refusals import Down


class MemoryTransport(httpx.AsyncBaseTransport):
    """Hands requests to the simulator's REST face in the same process."""

    def __init__(self, app: CmlApp | CmlFleet) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(await request.aread())
        seconds = request.extensions.get("timeout", {}).get("read")
        try:
            async with asyncio.timeout(seconds):
                await self._app(_scope(request), exchange.receive, exchange.send)
        except TimeoutError as error:
            raise httpx.ReadTimeout("the simulator did not answer in time", request=request) from error
        except Down as error:
            cause = ConnectionRefusedError(str(error)) if error.there else OSError(errno.EHOSTUNREACH, str(error))
            raise httpx.ConnectError(str(error), request=request) from cause
        if not exchange.complete:
            raise httpx.RemoteProtocolError("the answer broke off", request=request)
        return httpx.Response(exchange.status, headers=exchange.headers, content=b"".join(exchange.parts))


class _Exchange:
    """One request and its answer, as ASGI messages."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.complete = False

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if self._body is not None:
            message = {"type": "http.request", "body": self._body, "more_body": False}
            self._body = None
            return message
        await self._gone.wait()  # a client that gives up cancels us, so this never comes
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0)
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
        else:
            self.parts.append(message["body"])
            self.complete = not message.get("more_body", False)


def _scope(request: httpx.Request) -> dict[str, object]:
    return {
        "type": "http",
        "method": request.method,
        "path": request.url.path,
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "extensions": {REFUSABLE: {}},
    }
