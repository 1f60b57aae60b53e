"""An answer that is sent in one piece is the one that is sent in two, whatever state the connection is in."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from harness.api_world import opened, path, stock
from harness.http_answers import SelfSigned
from lcm.system.connection import WHOLE_ANSWER
from lcm.system.serving import Application, Receive, Scope, Send, listen, serve
from lcm.system.tls import ServerTls

LOOPBACK = "127.0.0.1"
SOON = 60.0
LARGE = 5_000_000
"""More bytes than a connection's buffers hold."""
WORKER = path("LabWorker", "ccna-worker-1")


async def answer_whole(scope: Scope, _: Receive, __: Send) -> None:
    """Answer in one piece: with the path, or with many bytes for /large."""
    body = b"x" * LARGE if scope["path"] == "/large" else scope["path"].encode()
    await scope["extensions"][WHOLE_ANSWER](b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n" % len(body), body)


@asynccontextmanager
async def served(app: Application, tls: ServerTls | None = None) -> AsyncIterator[int]:
    stop, listening = asyncio.Event(), listen(LOOPBACK, 0)
    port = listening.getsockname()[1]
    serving = asyncio.create_task(serve(app, listening, tls, stop))
    try:
        yield port
    finally:
        stop.set()
        await asyncio.wait_for(serving, SOON)


async def exchange(port: int, *requests: bytes) -> bytes:
    """Send requests at once, the last of which closes the connection, and read all answers."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"".join(requests))
    await asyncio.sleep(0.2)
    answers = await asyncio.wait_for(reader.read(), SOON)
    writer.close()
    return answers


def ask(target: str, *, close: bool = False) -> bytes:
    end = "Connection: close\r\n\r\n" if close else "\r\n"
    return f"GET {target} HTTP/1.1\r\nHost: x\r\n{end}".encode()


async def test_answers_to_one_connection_come_in_order_and_the_last_closes_it() -> None:
    async with served(answer_whole) as port:
        answers = await exchange(port, ask("/1"), ask("/2"), ask("/3", close=True))
    dated = re.compile(rb"date: [^\r]+\r\n")
    assert len(dated.findall(answers)) == 3
    plain = b"".join(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n/%d" % number for number in (1, 2))
    last = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n/3"
    assert dated.sub(b"", answers) == plain + last


async def test_an_answer_waits_for_a_client_that_reads_slowly() -> None:
    async with served(answer_whole) as port:
        answers = await exchange(port, ask("/large"), ask("/large"), ask("/end", close=True))
    assert answers.count(b"x" * LARGE) == 2
    assert answers.endswith(b"/end")


async def test_a_client_that_leaves_before_its_answer_is_no_error() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def answer_late(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        await answer_whole(scope, receive, send)
        left.set()

    async with served(answer_late) as port:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(ask("/"))
        await asyncio.wait_for(asked.wait(), SOON)
        writer.close()
        await asyncio.wait_for(left.wait(), SOON)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_object_is_answered_alike_in_one_piece_and_in_two(tmp_path: Path, scheme: str, method: str) -> None:
    known = SelfSigned(tmp_path, LOOPBACK)
    async with opened() as desk, served(desk.api, known.server if scheme == "https" else None) as port:
        await stock(desk)
        in_two = await desk.ask("root", method, f"{scheme}://desk{WORKER}")
        trusting = ssl.create_default_context(cadata=known.pem)
        trusting.check_hostname = False
        async with httpx.AsyncClient(base_url=f"{scheme}://{LOOPBACK}:{port}", verify=trusting) as client:
            for _ in range(2):
                answer = await client.request(method, WORKER, headers=desk.signed("root"))
                assert (answer.status_code, answer.content) == (in_two.status_code, in_two.content)
                assert answer.headers.pop("date")
                assert sorted(answer.headers.raw) == sorted(in_two.headers.raw)
                assert ("strict-transport-security" in answer.headers) is (scheme == "https")
