"""One WebSocket connection without a network: what it keeps of frames, and what it still writes when it closes."""

import asyncio
import base64
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.http11 import Request

from harness.consoles import SOON
from harness.suite import here, longest_turn
from lcm.system.limits import ConnectionLimits
from lcm.system.websocket import WebSocketConnection

BINARY, CONT, CLOSE, PING = 2, 0, 8, 9
UPGRADE = {
    "Host": "desk",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    "Sec-WebSocket-Version": "13",
}


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    return bytes([(fin << 7) | opcode, 128 | len(data), 0, 0, 0, 0]) + data


class Line(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        """Nothing is read here but what a test gives."""

    def resume_reading(self) -> None:
        """Likewise."""


class Talk:
    """An application that takes messages, and closes when it is told to."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.opened, self.closing = asyncio.Event(), asyncio.Event()
        self.line = Line()

    async def __call__(self, _: object, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        self.opened.set()
        taking = asyncio.create_task(self._take(receive))
        await self.closing.wait()
        taking.cancel()
        await send({"type": "websocket.close", "code": 4409, "reason": "over"})

    async def _take(self, receive: Any) -> None:
        while True:
            self.messages.put_nowait(await receive())


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Talk, WebSocketConnection]]:
    talk, state = Talk(), ServerState()
    config = Config(talk, log_config=None)
    config.load()
    limits = ConnectionLimits(message_bytes=65_536)
    connection = WebSocketConnection(config, state, limits, lambda: None, Request("/", Headers(UPGRADE)))
    connection.connection_made(talk.line)
    await asyncio.wait_for(talk.opened.wait(), SOON)
    try:
        yield talk, connection
    finally:
        talk.closing.set()
        connection.connection_lost(None)
        await asyncio.wait(state.tasks)


async def test_fragments_without_data_take_no_memory() -> None:
    async with connected() as (talk, connection):
        connection.data_received(frame(BINARY, b"a", fin=False))
        tracemalloc.start()
        try:
            for _ in range(20):
                connection.data_received(frame(CONT, fin=False) * 5_000)
                connection.data_received(frame(PING, b"x"))
                before = len(talk.line.written)
                async with asyncio.timeout(SOON):
                    while len(talk.line.written) == before:
                        await asyncio.sleep(0)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 200_000
        connection.data_received(frame(CONT, b"b"))
        message = await asyncio.wait_for(talk.messages.get(), SOON)
        assert message == {"type": "websocket.receive", "bytes": b"ab"}


async def test_after_our_close_pings_are_not_answered() -> None:
    async with connected() as (talk, connection):
        talk.closing.set()
        async with asyncio.timeout(SOON):
            while b"over" not in talk.line.written:
                await asyncio.sleep(0)
        connection.pause_writing()
        before = bytes(talk.line.written)
        connection.data_received(frame(PING, b"x" * 100) * 100)
        assert talk.line.written == before
        connection.data_received(frame(CLOSE))
        assert talk.line.ended
        connection.resume_writing()


async def test_floods_of_tiny_frames_on_many_connections_keep_nobody_waiting() -> None:
    connections, frames = 20, 3_000

    async def take_all(talk: Talk) -> None:
        for _ in range(frames):
            await talk.messages.get()

    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(connected()) for _ in range(connections)]
        for _, connection in lines:
            connection.data_received(frame(BINARY, b"x") * frames)
        async with asyncio.timeout(6 * SOON):
            longest = await longest_turn(asyncio.gather(*(take_all(talk) for talk, _ in lines)))
    assert longest < here(0.06)
