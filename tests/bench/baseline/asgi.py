"""A bare ASGI application that sends the same bytes to whoever asks."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


class SameBytes:
    """Answers every request with one body."""

    def __init__(self, body: bytes) -> None:
        length = str(len(body)).encode()
        self._start = {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/json"), (b"content-length", length)],
        }
        self._body = {"type": "http.response.body", "body": body}

    async def __call__(
        self, _: Message, __: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        await send(self._start)
        await send(self._body)
