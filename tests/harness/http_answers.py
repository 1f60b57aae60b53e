"""HTTP servers that answer as a test tells them to: late, wrong, half, endlessly, or not at all."""

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from harness.servers import LOOPBACK, stop_listening

TOKEN = {"username": "admin", "id": "1", "token": "secret-token-1", "admin": True, "error": None}


@dataclass(frozen=True)
class Say:
    """One answer. `cut` ends the connection after that many bytes of the body; `hang` never begins it."""

    status: int = 200
    body: bytes = b""
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False
    endless: bool = False
    after: float = 0.0


def says(value: object, status: int = 200, **more: Any) -> Say:
    """Answer with a JSON value."""
    return Say(status, json.dumps(value).encode(), **more)


def refusal(status: int, description: str, **more: Any) -> Say:
    """Refuse in CML's words."""
    return says({"code": status, "description": description}, status, **more)


EXPIRED = refusal(401, "401: Unauthorized")
PAGE = Say(200, b"<html><body>It works!</body></html>", "text/html; charset=utf-8")


@dataclass(frozen=True)
class Asked:
    """One request that arrived."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class AnswerServer:
    """Answers each path as it was told; the last answer told stays, and signing in works unless told otherwise."""

    def __init__(self, certificate: "SelfSigned | None" = None) -> None:
        self.asked: list[Asked] = []
        self.connections = 0
        self.expired: set[str] = set()
        """Tokens that are refused from now on."""
        self._answers: dict[str, deque[Say]] = defaultdict(deque)
        self._certificate = certificate
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self.tell("auth_extended", says(TOKEN))

    def tell(self, path: str, *answers: Say) -> None:
        self._answers[f"/api/v0/{path}"] = deque(answers)

    def count(self, path: str) -> int:
        return sum(one.path == f"/api/v0/{path}" for one in self.asked)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://{LOOPBACK}:{self.port}"

    async def __aenter__(self) -> Self:
        context = self._certificate.server() if self._certificate else None
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=context)
        return self

    def hang_up(self) -> None:
        """Close all connections, as a server does that has waited long enough."""
        for talk in self._talks:
            talk.cancel()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        self.hang_up()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted connection is closed a turn later

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)
        # Who is hung up on before the first word never comes to the end of its talk.
        talk.add_done_callback(lambda _: writer.transport.abort())

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _request(reader)
                self.asked.append(request)
                waiting = self._answers[request.path]
                say = waiting.popleft() if len(waiting) > 1 else waiting[0] if waiting else refusal(404, "nothing told")
                if request.headers.get("authorization", "").removeprefix("Bearer ") in self.expired:
                    say = EXPIRED
                if not await _answer(writer, say):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    path, _, query = target.partition("?")
    return Asked(method, path, query, headers, body)


async def _answer(writer: asyncio.StreamWriter, say: Say) -> bool:
    if say.hang:
        await asyncio.sleep(3600)
    await asyncio.sleep(say.after)
    headers = {"Content-Type": say.media_type, "Content-Length": str(len(say.body)), **say.headers}
    if say.endless:
        headers["Content-Length"] = "1000000000"
    lines = [f"HTTP/1.1 {say.status} Something", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + say.body[: say.cut])
    await writer.drain()
    while say.endless:
        writer.write(b" " * 65536)
        await writer.drain()
    return say.cut is None and say.headers.get("Connection") != "close"


class SelfSigned:
    """A certificate that a machine signed for itself, with its key."""

    def __init__(self, folder: Path, name: str = "cml-controller", *, days: tuple[int, int] = (-1, 1)) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        first, last = (datetime.now(UTC) + timedelta(days=day) for day in days)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(first)
        certificate = builder.not_valid_after(last).sign(key, hashes.SHA256())
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._file = folder / f"{certificate.serial_number}.pem"
        self._file.write_text(self.pem + private.decode())

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._file)
        return context


HANG = b"hang"
"""An answer, or the rest of one, that never comes."""


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[[ScriptedRequest], bytes]


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
        self.asked: list[ScriptedRequest] = []
        self._answers = list(answers)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, ssl=self._tls, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await stop_listening(self._server)
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

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ScriptedRequest:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        method, path, _ = lines[0].split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-1])}
        if "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return ScriptedRequest(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
