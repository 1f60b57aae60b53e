"""An HTTP server that gives programmed answers, good and bad, and remembers what it was asked."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from servers import LOOPBACK

HANG = b"hang"
"""An answer, or the rest of one, that never comes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[[Asked], bytes]


def http(
    status: int, body: bytes = b"", *, length: int | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    """Write an answer; a `length` of one's own may be wrong."""
    lines = {"Content-Length": str(len(body) if length is None else length), "Connection": "close", **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


class Scripted:
    """Answers one request a connection: the first answers in turn, then always the last one."""

    def __init__(self, *answers: bytes | Answer, tls: ssl.SSLContext | None = None) -> None:
        self.most_at_once = 0
        self.say(*answers)
        self._tls = tls
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"{'https' if self._tls else 'http'}://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def say(self, *answers: bytes | Answer) -> None:
        """Change the answers, and forget what was asked."""
        self.asked: list[Asked] = []
        self._answers = list(answers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._tls, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.sleep(0)  # a connection is closed a turn later

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await self._listen(reader, writer)
            self.asked.append(asked)
            self.most_at_once = max(self.most_at_once, len(self._open))
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            said = answer if isinstance(answer, bytes) else answer(asked)
            if asked.method == "HEAD" and said.startswith(b"HTTP/"):
                said = said.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            writer.write(said.removesuffix(HANG))
            await writer.drain()
            if said.endswith(HANG):
                await asyncio.Event().wait()
        except (OSError, EOFError):
            return
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Asked:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        method, path, _ = lines[0].split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-1])}
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
