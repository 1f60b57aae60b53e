"""A bare ASGI application that fans bytes out: one bounded queue a client, one task a client, nothing else."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
QUEUE = 1_000


class FanOut:
    """Sends what is published to everybody who is connected."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes]] = set()

    def publish(self, frame: bytes) -> None:
        for queue in self._queues:
            queue.put_nowait(frame)

    async def __call__(
        self, _: Message, __: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE)
        self._queues.add(queue)
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"event: hello\ndata: {}\n\n", "more_body": True})
        try:
            while True:
                frame = await queue.get()
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        finally:
            self._queues.discard(queue)
