"""No client keeps a connection for ever: every state of one has its time, and their number has its limits."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from harness.http_answers import SelfSigned
from lcm.system.limits import ConnectionLimits
from lcm.system.serving import Receive, Scope, Send, listen, serve

LOOPBACK = "127.0.0.1"
SOON = 60.0
SHORT = 0.3
PROMPT = 9.0
"""Less than any limit that holds where a test sets no other, so that it is the test's own that is kept."""
POST = b"POST /unread HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HUGE = 30_000_000
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App:
    """Answers without reading a body; `/huge` with more than a socket holds, `/read` with the headers at the end."""

    def __init__(self) -> None:
        self.open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.open += 1
        try:
            body = b"x" * HUGE if scope["path"] == "/huge" else b"done"
            while scope["path"] == "/read" and (message := await receive()).get("more_body"):
                assert message["type"] == "http.request"
            length = str(len(body)).encode()
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", length)]})
            await send({"type": "http.response.body", "body": body})
        finally:
            self.open -= 1


@asynccontextmanager
async def served(app: App | None = None, tls: Any = None, **limits: Any) -> AsyncIterator[int]:
    stop, listening = asyncio.Event(), listen(LOOPBACK, 0)
    port = listening.getsockname()[1]
    serving = asyncio.create_task(serve(app or App(), listening, tls, stop, limits=ConnectionLimits(**limits)))
    try:
        yield port
    finally:
        stop.set()
        await asyncio.wait_for(serving, SOON)


async def answered(port: int, request: bytes) -> Pipe:
    """Send a request and read its answer."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(request)
    assert b"401" in await asyncio.wait_for(reader.readuntil(b"done"), SOON)
    return reader, writer


async def seconds_open(reader: asyncio.StreamReader) -> float:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), SOON)
    return loop.time() - begun


@pytest.mark.parametrize("more", [b"", b"x"])
async def test_a_body_that_nobody_reads_closes_the_connection(more: bytes) -> None:
    async with served(unread_seconds=SHORT, head_seconds=SHORT) as port:
        reader, writer = await answered(port, POST)
        writer.write(more)
        assert await seconds_open(reader) < PROMPT
        writer.close()


async def test_a_body_that_trickles_in_after_its_answer_closes_the_connection() -> None:
    async with served(unread_seconds=SHORT, head_seconds=SHORT) as port:
        reader, writer = await answered(port, POST.replace(b": 9", b": 900"))
        closing = asyncio.create_task(seconds_open(reader))
        for _ in range(100):
            if closing.done():
                break
            writer.write(b"x")
            await asyncio.sleep(0.05)
        assert await closing < PROMPT
        writer.close()


async def test_a_body_that_comes_soon_after_its_answer_costs_nothing() -> None:
    async with served(unread_seconds=SHORT) as port:
        reader, writer = await answered(port, POST)
        writer.write(b"123456789")
        await asyncio.sleep(3 * SHORT)
        writer.write(GET)
        assert b"401" in await asyncio.wait_for(reader.readuntil(b"done"), SOON)
        writer.close()


async def test_line_breaks_between_requests_do_not_keep_a_connection() -> None:
    async with served(idle_seconds=SHORT, head_seconds=SHORT) as port:
        reader, writer = await answered(port, GET)
        closing = asyncio.create_task(seconds_open(reader))
        for _ in range(100):
            if closing.done():
                break
            writer.write(b"\r\n")
            await asyncio.sleep(0.05)
        assert await closing < PROMPT
        writer.close()


@pytest.mark.parametrize("requests", [1, 5])
async def test_a_client_that_does_not_take_its_answer_is_left(requests: int) -> None:
    app = App()
    async with served(app, send_seconds=SHORT, head_seconds=SHORT, idle_seconds=SHORT) as port, asyncio.timeout(SOON):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=1)
        writer.write(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n" * requests)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # it has one, as it reads
        await asyncio.sleep(4 * SHORT)
        while app.open:
            await asyncio.sleep(0.05)
        writer.transport.resume_reading()  # type: ignore[attr-defined]  # likewise
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(HUGE * requests)
        writer.close()


async def test_one_address_has_its_share_of_the_connections_and_a_proxy_has_all() -> None:
    async with served(per_address=2) as port:
        held = [await answered(port, GET) for _ in range(2)]
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        assert b"503" in await asyncio.wait_for(reader.readline(), SOON)
        for _, one in (*held, (reader, writer)):
            one.close()
    async with served(per_address=2, is_proxy=lambda address: address == LOOPBACK) as port:
        for _, one in [await answered(port, GET) for _ in range(4)]:
            one.close()


async def test_a_place_that_was_left_is_given_again_however_it_was_left(tmp_path: Path) -> None:
    secure = SelfSigned(tmp_path).server()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    async with served(tls=lambda: secure, most=1, handshake_seconds=SHORT) as port:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n"):  # neither is a handshake
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            writer.write(said)
            assert await seconds_open(reader) < PROMPT
            writer.close()
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection(LOOPBACK, port, ssl=trusting)
        writer.write(GET)
        assert b"401" in await asyncio.wait_for(reader.readline(), SOON)
        writer.close()


@pytest.mark.parametrize("turns", range(8))
async def test_who_connects_while_the_server_stops_is_not_left_waiting(
    turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def connect(port: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        with suppress(ConnectionError), socket.create_connection((LOOPBACK, port), PROMPT) as client:
            assert await asyncio.to_thread(client.recv, 1) == b""

    async with served() as port:
        await asyncio.sleep(0.01)
        client = asyncio.create_task(connect(port))
    await client
    assert caplog.messages == []


async def test_a_trailer_is_refused_and_never_becomes_a_header() -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        head = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n0\r\nAuthorization: Bearer other\r\n\r\n")
        assert b"400" in await asyncio.wait_for(reader.readline(), SOON)
        assert await seconds_open(reader) < PROMPT
        writer.close()


CHUNKED = b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [
        (GET * 16, GET * 5_000),
        (GET[:-2] + b"a:\r\n" * 99 + b"\r\n", GET[:-2] + b"a:\r\n" * 5_000 + b"\r\n"),
        (CHUNKED + b"1\r\na\r\n" * 1_000 + b"0\r\n\r\n", CHUNKED + b"1\r\na\r\n" * 20_000 + b"0\r\n\r\n"),
        (CHUNKED + (b"100\r\n" + b"a" * 256 + b"\r\n") * 5_000 + b"0\r\n\r\n", CHUNKED + b"3\r\nabc\r\n" * 20_000),
    ],
    ids=["requests", "headers", "chunks", "large chunks"],
)
async def test_what_takes_long_to_parse_is_limited_in_number(accepted: bytes, refused: bytes) -> None:
    """Sixty connections with 260 kB of tiny requests each stopped everything for half a minute."""
    async with served() as port:
        _, writer = await answered(port, accepted)
        writer.close()
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(refused)
        with suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), PROMPT)
            assert answer.count(b"HTTP/1.1 401") <= 1
            assert b"400 Bad Request" in answer
        writer.close()
