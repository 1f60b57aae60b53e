"""The way to an application without a network: answers in parts, time-outs, broken answers, hosts. In virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import httpx
import pytest

from harness.asgi import AsgiTransport
from lcm.sim.time.host import HOST, Host
from lcm.sim.time.loop import UnobservedFailure, run
from lcm.system.serving import Receive, Scope, Send

Start = {"type": "http.response.start", "status": 200, "headers": [(b"x-name", b"value")]}


def part(body: bytes, *, more: bool) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def play(app: Any, body: Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(transport=AsgiTransport(app, **options), base_url="http://memory") as client:
            await body(client)

    run(main)


def test_a_request_and_its_answer_come_through_whole() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        got = (await receive())["body"]
        assert (scope["method"], scope["path"], scope["raw_path"]) == ("POST", "/a/b c", b"/a%2Fb%20c")
        assert scope["query_string"] == b"x=1"
        assert (b"x-asked", b"yes") in scope["headers"]
        await send(Start)
        await send(part(got + b"!", more=False))

    async def body(client: httpx.AsyncClient) -> None:
        answer = await client.post("/a%2Fb%20c?x=1", content=b"hello", headers={"X-Asked": "yes"})
        assert (answer.status_code, answer.headers["x-name"], answer.content) == (200, "value", b"hello!")

    play(app, body)


def test_parts_are_read_as_they_come() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send(Start)
        for n in range(3):
            await asyncio.sleep(1)
            await send(part(b"%d" % n, more=True))
        await send(part(b"", more=False))

    async def body(client: httpx.AsyncClient) -> None:
        time = asyncio.get_running_loop().time
        async with client.stream("GET", "/") as answer:
            seen = [(time(), piece) async for piece in answer.aiter_raw() if piece]
        assert seen == [(1, b"0"), (2, b"1"), (3, b"2")]

    play(app, body)


@pytest.mark.parametrize("started", [True, False])
def test_silence_is_a_time_out(started: bool) -> None:  # noqa: FBT001
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send(Start)
            await send(part(b"x", more=True))
        await receive()
        assert (await receive())["type"] == "http.disconnect"

    async def body(client: httpx.AsyncClient) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=7)
        assert asyncio.get_running_loop().time() - began == 7

    play(app, body)


@pytest.mark.parametrize("parts", [0, 1])
def test_an_answer_that_breaks_off_is_an_error(parts: int) -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        for n in range(parts):
            await send(Start)
            await send(part(b"%d" % n, more=True))

    async def body(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")

    play(app, body)


def test_a_bug_of_the_application_is_raised_in_its_client() -> None:
    async def app(_: Scope, __: Receive, ___: Send) -> None:
        raise AssertionError("a bug")

    async def body(client: httpx.AsyncClient) -> None:
        with pytest.raises(AssertionError, match="a bug"):
            await client.get("/")

    play(app, body)


def test_a_bug_after_the_client_left_is_noticed() -> None:
    async def app(_: Scope, receive: Receive, __: Send) -> None:
        await receive()
        await receive()
        raise ValueError("a bug")

    async def body(client: httpx.AsyncClient) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=1)
        await asyncio.sleep(1)

    with pytest.raises(UnobservedFailure, match="a bug"):
        play(app, body)
    play(app, body, refusal=ValueError)


def test_who_does_not_read_holds_the_writer_up() -> None:
    sent = 0

    async def app(_: Scope, __: Receive, send: Send) -> None:
        nonlocal sent
        await send(Start)
        for _n in range(100):
            await send(part(10_000 * b"x", more=True))
            sent += 1
        await send(part(b"", more=False))

    async def body(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/") as answer:
            await asyncio.sleep(1)
            assert sent == 6
            assert len(await answer.aread()) == 1_000_000

    play(app, body)


def test_a_writer_that_is_held_up_learns_that_its_reader_left() -> None:
    ended = asyncio.Event()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send(Start)
        for _n in range(100):
            await send(part(10_000 * b"x", more=True))
        ended.set()

    async def body(client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/"):
            await asyncio.sleep(1)
        async with asyncio.timeout(1):
            await ended.wait()

    play(app, body)


def test_an_application_on_a_host_of_its_own_survives_its_client() -> None:
    done: list[str] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await asyncio.sleep(5)
        host = HOST.get()
        done.append(host.name if host else "world")
        await send(Start)
        await send(part(b"", more=False))

    async def main() -> None:
        server, caller = Host("server"), Host("caller")
        place = Context()
        place.run(HOST.set, server)
        client = httpx.AsyncClient(transport=AsgiTransport(app, context=place), base_url="http://memory")
        caller.spawn(client.get("/"))
        await asyncio.sleep(1)
        caller.kill()
        await asyncio.sleep(10)
        assert done == ["server"]

    run(main)


def test_the_streams_of_a_dead_process_end() -> None:
    left: list[float] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        async def tell() -> None:
            await send(Start)
            while True:
                await send(part(b".", more=True))
                await asyncio.sleep(5)

        telling = asyncio.create_task(tell())
        while (await receive())["type"] != "http.disconnect":
            pass
        telling.cancel()
        left.append(asyncio.get_running_loop().time())

    async def main() -> None:
        caller = Host("caller")
        client = httpx.AsyncClient(transport=AsgiTransport(app, context=Context()), base_url="http://memory")
        caller.spawn(client.get("/", timeout=60))
        await asyncio.sleep(21)
        caller.kill()
        await asyncio.sleep(30)
        assert left == [25]

    run(main)
