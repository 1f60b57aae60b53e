"""A client that asks as fast as it is answered, over several connections kept open."""

import asyncio
import time
from collections.abc import Callable

CONNECTIONS = 16
_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the answer to the last one is whole."""

    def __init__(self, next_request: Callable[[], bytes | None], status: bytes) -> None:
        self._next = next_request
        self._status = b"HTTP/1.1 " + status
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        rest = self._rest + data if self._rest else data
        end = rest.find(_HEAD_END)
        if end < 0:
            self._rest = rest
            return
        head = rest[:end].lower()
        at = head.index(_LENGTH) + len(_LENGTH)
        length = int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else end])
        if len(rest) < end + 4 + length:
            self._rest = rest
            return
        if not rest.startswith(self._status):
            self.done.set_exception(AssertionError(rest[:500]))
            self._transport.close()
            return
        self._rest = b""
        self._ask()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the server closed the connection"))

    def _ask(self) -> None:
        request = self._next()
        if request is None:
            self.done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(request)


async def rate(port: int, requests: list[bytes], status: bytes = b"200", *, connections: int = CONNECTIONS) -> float:
    """Send every request once and tell how many were answered in a second."""
    waiting = iter(requests)
    started = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Connection(lambda: next(waiting, None), status), "127.0.0.1", port)
        for _ in range(connections)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in made))
    return len(requests) / (time.perf_counter() - started)
