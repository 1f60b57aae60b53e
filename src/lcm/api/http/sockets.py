"""A WebSocket as handlers see it: opened or refused once, then messages in both directions until it is closed.

Made by `api.http.app` for every upgrade; `system.websocket` is its other side.
"""

from typing import Final

from lcm.api.http.answers import Answer, Receive, Scope, Send, headers_of

SWITCHING_PROTOCOLS: Final = 101
NORMAL, UNSUPPORTED, BUG_MET = 1000, 1003, 1011
"""Codes of the protocol with which a socket is closed. Those from 4400 on are ours, and mean what HTTP's do."""
TOKEN_OVER, FORBIDDEN, SESSION_OVER, UNREACHABLE = 4401, 4403, 4409, 4503
_LONGEST_REASON: Final = 120
"""The protocol allows 123 bytes."""


class Socket:
    """One WebSocket. Sending raises ConnectionError once the client is gone."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._can_answer = "websocket.http.response" in scope.get("extensions", {})
        self.is_open = False

    async def accept(self) -> None:
        """Open it."""
        await self._receive()  # the client's wish to connect
        await self._send({"type": "websocket.accept"})
        self.is_open = True

    async def refuse(self, answer: Answer) -> None:
        """Answer instead of opening it; one that is open is closed, and so is one whose server can do no more."""
        if self.is_open or not self._can_answer:
            await self.close(BUG_MET, "an error of the server" if self.is_open else "")
            return
        start = {"type": "websocket.http.response.start", "status": answer.status, "headers": headers_of(answer)}
        await self._send(start)
        await self._send({"type": "websocket.http.response.body", "body": answer.body})

    async def receive(self) -> bytes | str | None:
        """Return the next message; None when the client has closed it."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return None
        data: bytes | None = message.get("bytes")
        return message["text"] if data is None else data

    async def send(self, data: bytes | str) -> None:
        """Send a message, and wait until the client has taken most of what was sent."""
        await self._send({"type": "websocket.send", "bytes" if isinstance(data, bytes) else "text": data})

    async def close(self, code: int, reason: str) -> None:
        """Close it, and say why. May be repeated."""
        short = reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
        await self._send({"type": "websocket.close", "code": code, "reason": short})
