"""Serving on a real port: what happens to streams, slow requests and idle connections when the server stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from lcm.system.limits import ConnectionLimits
from lcm.system.serving import Receive, Scope, Send, listen, serve

LOOPBACK = "127.0.0.1"
SOON = 60.0
"""Far more than anything here takes, so that only a hang is one."""
PROMPT = 9.0
"""Less than any limit that holds where a test sets no other, so that it is the test's own that is kept."""

LINE = b'{"revision":1}\n'


@dataclass
class App:
    """Answers in the ways a server meets: at once, slowly, as a stream, and never."""

    ended: list[str] = field(default_factory=list)
    slow: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        try:
            if path == "/stream":
                await self.stream(receive, send)
            elif path == "/never":
                await asyncio.Event().wait()
            else:
                if path == "/slow":
                    await self.slow.wait()
                await answer(send, path.encode())
        finally:
            self.ended.append(path)

    async def stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": LINE, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass


async def answer(send: Send, body: bytes) -> None:
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Served:
    app: App
    client: httpx.AsyncClient
    port: int
    stop: asyncio.Event
    serving: asyncio.Task[None]

    async def stopped(self) -> float:
        """Stop the server and return the seconds that it took."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self.stop.set()
        await asyncio.wait_for(self.serving, SOON)
        return loop.time() - begun


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[Served]:
    app, stop, listening = App(), asyncio.Event(), listen(LOOPBACK, 0)
    port = listening.getsockname()[1]
    serving = asyncio.create_task(serve(app, listening, None, stop, **limits))
    async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", trust_env=False, timeout=SOON) as client:
        yield Served(app, client, port, stop, serving)
    stop.set()
    await asyncio.wait_for(serving, SOON)


@pytest.fixture(name="long_grace")
def a_grace_longer_than_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who waits for the end of the grace be told from who does not, on slow machines too."""
    monkeypatch.setattr("lcm.system.serving._GRACE_SECONDS", 2 * PROMPT)


@pytest.mark.usefixtures("long_grace")
async def test_a_stream_ends_at_once_when_the_server_stops() -> None:
    async with served() as it, it.client.stream("GET", "/stream") as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == LINE
        took = await it.stopped()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(chunks)
        assert it.app.ended == ["/stream"]
    assert took < PROMPT


@pytest.mark.usefixtures("long_grace")
async def test_a_request_that_is_under_way_is_still_answered() -> None:
    async with served() as it:
        asked = asyncio.create_task(it.client.get("/slow"))
        while not it.app.slow._waiters:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(it.stopped())
        await asyncio.sleep(0.3)
        it.app.slow.set()
        assert (await asked).content == b"/slow"
        assert await stopping < PROMPT


async def test_a_request_without_an_end_does_not_keep_the_server_up() -> None:
    async with served() as it:
        asked = asyncio.create_task(it.client.get("/never"))
        await it.client.get("/")
        await it.stopped()
        await asyncio.gather(asked, return_exceptions=True)
        assert "/never" in it.app.ended


@pytest.mark.usefixtures("long_grace")
async def test_an_idle_connection_does_not_keep_the_server_up() -> None:
    async with served() as it:
        assert (await it.client.get("/idle")).content == b"/idle"
        assert await it.stopped() < PROMPT


@pytest.mark.parametrize("head", [b"GET /%s HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nx: %s\r\n"])
async def test_a_request_head_has_a_largest_size(head: bytes) -> None:
    async with served() as it:
        reader, writer = await asyncio.open_connection(LOOPBACK, it.port)
        writer.write(head % (b"a" * 70_000))
        assert b"400" in await asyncio.wait_for(reader.readline(), SOON)
        writer.close()
        assert it.app.ended == []


async def test_a_body_may_be_larger_than_a_head() -> None:
    async with served() as it:
        for _ in range(3):
            assert (await it.client.post("/", content=b"x" * 300_000)).status_code == 200


async def ended(reader: asyncio.StreamReader) -> float:
    """Wait until the server closes a connection; gives the seconds that it took."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await asyncio.wait_for(reader.read(), SOON)
    return loop.time() - begun


@pytest.mark.parametrize("said", [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nx: y\r\n"])
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(said: bytes) -> None:
    async with served(limits=ConnectionLimits(head_seconds=0.3)) as it:
        reader, writer = await asyncio.open_connection(LOOPBACK, it.port)
        writer.write(said)
        assert 0.2 < await ended(reader) < PROMPT
        writer.close()


async def test_a_head_that_trickles_in_is_not_waited_for_and_neither_is_a_second_one() -> None:
    async with served(limits=ConnectionLimits(head_seconds=0.3)) as it:
        reader, writer = await asyncio.open_connection(LOOPBACK, it.port)
        writer.write(b"GET /a HTTP/1.1\r\n\r\nGET /b")
        assert (await asyncio.wait_for(reader.readuntil(b"/a"), SOON)).startswith(b"HTTP/1.1 200")
        closing = asyncio.create_task(ended(reader))
        for _ in range(100):
            if closing.done():
                break
            writer.write(b"b")
            await asyncio.sleep(0.05)
        assert await closing < PROMPT
        writer.close()


async def test_what_is_not_a_head_has_the_time_it_needs() -> None:
    async with served(limits=ConnectionLimits(head_seconds=0.2)) as it:
        assert (await it.client.get("/idle")).content == b"/idle"
        asked = asyncio.create_task(it.client.get("/slow"))
        async with it.client.stream("GET", "/stream") as response:
            chunks = response.aiter_raw()
            assert await anext(chunks) == LINE
            await asyncio.sleep(0.7)
            assert not asked.done()
        it.app.slow.set()
        assert (await asked).content == b"/slow"
        assert (await it.client.get("/again")).content == b"/again"


async def test_a_connection_too_many_is_turned_away_and_a_place_that_is_left_is_given_again() -> None:
    async with served(limits=ConnectionLimits(most=2)) as it:
        held = [await asyncio.open_connection(LOOPBACK, it.port) for _ in range(2)]
        await asyncio.sleep(0.05)
        answer = await it.client.get("/")
        assert (answer.status_code, answer.json()["reason"], answer.headers["retry-after"]) == (503, "Throttled", "5")
        silent, writer = await asyncio.open_connection(LOOPBACK, it.port)
        assert await ended(silent) < PROMPT
        held[0][1].close()
        await held[0][1].wait_closed()
        await asyncio.sleep(0.05)
        assert (await it.client.get("/")).status_code == 200
        writer.close()
        held[1][1].close()
