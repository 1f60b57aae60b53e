"""Limits: how often one may ask, how much one may send, and for how long."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from harness.api_world import Desk, document, opened
from harness.plane_world import NOW, served
from harness.servers import LOOPBACK, free_port
from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.limits import ApiLimits, CallerTurns, HeldBodies, OpenStreams, TokenBuckets
from lcm.api.http.problems import Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import SIGNED_IN, Route
from lcm.api.routes.table import ROUTES
from lcm.sim.time.loop import run

SLOW = ApiLimits(requests_per_second=2, burst=3)
TINY = ApiLimits(body_bytes=2_000, apply_bytes=6_000, requests_per_second=1e9, burst=10**9, body_seconds=0.3)
SOON = 60.0


async def statuses(desk: Desk, who: str, count: int, path: str = "/api/whoami") -> list[int]:
    return [(await desk.ask(who, "GET", path)).status_code for _ in range(count)]


def test_a_caller_who_asks_too_often_is_told_when_to_come_back() -> None:
    async def main() -> None:
        async with opened(limits=SLOW) as desk:
            assert await statuses(desk, "ada", 3) == [200, 200, 200]
            refused = await desk.ask("ada", "GET", "/api/whoami")
            assert refused.status_code == 429
            assert refused.json()["reason"] == "RateLimited"
            assert refused.json()["retry_after_seconds"] == pytest.approx(0.5, abs=0.01)
            assert refused.headers["retry-after"] == "1"
            await asyncio.sleep(0.6)
            assert await statuses(desk, "ada", 2) == [200, 429]
            await asyncio.sleep(3600)
            assert await statuses(desk, "ada", 4) == [200, 200, 200, 429]

    run(main, start=NOW)


def test_one_callers_haste_costs_no_other_and_services_have_no_limit() -> None:
    async def main() -> None:
        async with opened(limits=SLOW) as desk:
            assert 429 in await statuses(desk, "ada", 10)
            assert await statuses(desk, "bob", 3) == [200] * 3
            assert await statuses(desk, "service", 50) == [200] * 50

    run(main, start=NOW)


def test_strangers_are_limited_by_address_and_do_not_starve_health_checks() -> None:
    async def main() -> None:
        async with opened(limits=SLOW) as desk:
            assert await statuses(desk, "", 5) == [401, 401, 401, 429, 429]
            assert await statuses(desk, "", 9, "/healthz") == [200] * 9
            assert await statuses(desk, "", 4, "/api/openapi.json") == [200, 200, 200, 429]
            assert await statuses(desk, "ada", 1) == [200]

    run(main, start=NOW)


def test_the_memory_of_callers_is_bounded_and_forgets_the_longest_silent() -> None:
    buckets = TokenBuckets(ApiLimits(requests_per_second=1, burst=1, remembered=3))
    assert buckets.take("first", 0) == 0
    assert buckets.take("first", 0) == 1
    for number in range(100):
        buckets.take(f"caller-{number}", 0)
    assert len(buckets) == 3
    assert buckets.take("first", 0) == 0


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    buckets = TokenBuckets(ApiLimits(requests_per_second=10, burst=2))
    assert [buckets.take("a", 1e6 + number / 1e9) == 0 for number in range(3)] == [True, True, False]
    assert [buckets.take("a", 2e6) == 0 for _ in range(3)] == [True, True, False]


def test_a_user_changes_only_so_much_an_hour_and_reads_on() -> None:
    """A user wrote as often as one may read: at 53 kB a change, the disk was full in an afternoon."""

    async def main() -> None:
        async with opened(limits=ApiLimits(writes_per_hour=60, write_burst=3)) as desk:

            async def written(who: str, count: int) -> list[int]:
                return [(await desk.ask(who, "POST", "/api/tokens")).status_code for _ in range(count)]

            assert await written("ada", 5) == [201, 201, 201, 429, 429]
            told = await desk.ask("ada", "POST", "/api/tokens")
            assert (told.json()["reason"], told.headers["retry-after"]) == ("RateLimited", "60")
            assert await statuses(desk, "ada", 5) == [200] * 5
            # A question that needs a body is no change.
            assert (await desk.ask("ada", "POST", "/api/placement/preview", json={})).status_code == 422
            assert await written("bob", 1) == [201]
            assert await written("otto", 9) == [201] * 9
            await asyncio.sleep(60)
            assert await written("ada", 2) == [201, 429]

    run(main, start=NOW)


def test_a_batch_is_as_many_changes_as_it_has_items() -> None:
    async def main() -> None:
        async with opened(limits=ApiLimits(writes_per_hour=60, write_burst=3)) as desk:
            items = [{"op": "delete", "kind": "LabletSession", "name": f"s{number}"} for number in range(10)]
            assert (await desk.ask("ada", "POST", "/api/batch", json={"items": items})).status_code == 200
            told = await desk.ask("ada", "POST", "/api/batch", json={"items": []})
            assert (told.status_code, told.headers["retry-after"]) == (429, "480")
            assert (await desk.ask("otto", "POST", "/api/batch", json={"items": items})).status_code == 200
            assert (await desk.ask("otto", "POST", "/api/batch", json={"items": []})).status_code == 200

    run(main, start=NOW)


async def test_a_burst_of_one_caller_waits_for_its_turn_and_delays_no_other() -> None:
    """Forty long requests of one user ran side by side, so that everybody waited for all of them."""
    going, free = list[str](), asyncio.Event()

    async def work(request: Request) -> Answer:
        going.append(request.signed_in.name)
        await free.wait()
        return json_answer({})

    limits = ApiLimits(at_once=2, burst=5)
    route = Route("GET", "/api/work", work, "work", "Work", policy=SIGNED_IN, answer=dict)
    async with opened(limits=limits, routes=[*ROUTES, route]) as desk, asyncio.timeout(SOON):
        asked = [asyncio.create_task(desk.ask("ada", "GET", "/api/work")) for _ in range(5)]
        others = [asyncio.create_task(desk.ask(who, "GET", "/api/work")) for who in ("bob", "otto", "otto", "otto")]
        while len(going) < 6:
            await asyncio.sleep(0)
        assert sorted(going) == ["ada", "ada", "bob", "otto", "otto", "otto"]
        free.set()
        answers = await asyncio.gather(*asked, *others)
        assert [one.status_code for one in answers] == [200] * 9
        assert going.count("ada") == 5


async def test_those_who_wait_are_limited_in_number() -> None:
    turns, free = CallerTurns(ApiLimits(at_once=1, burst=2)), asyncio.Event()

    async def wait() -> None:
        async with turns.take("ada"):
            await free.wait()

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Declined):
        await wait()
    free.set()
    await asyncio.gather(*waiting)
    await wait()
    assert not turns._turns


def test_streams_are_counted_until_they_are_left() -> None:
    streams = OpenStreams(ApiLimits(streams=1))
    assert streams.enter("ada", limited=True)
    assert not streams.enter("ada", limited=True)
    assert streams.enter("service", limited=False)
    assert streams.enter("service", limited=False)
    assert streams.total == 3
    for name in ("ada", "service", "service"):
        streams.leave(name)
    assert streams.total == 0
    assert streams.enter("ada", limited=True)


def padded(size: int, **more: Any) -> bytes:
    """Return a worker of exactly so many bytes."""
    bare = msgspec.json.encode(document("LabWorker", **more))
    return bare[:-1] + b" " * (size - len(bare)) + b"}"


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened(limits=TINY) as desk:
        yield desk


@pytest.fixture(name="line")
async def open_line(desk: Desk) -> AsyncIterator[httpx.AsyncClient]:
    """Reach the API through a real port."""
    async with (
        served(desk.api, free_port()) as url,
        httpx.AsyncClient(base_url=url, headers=desk.signed("root"), trust_env=False, timeout=SOON) as client,
    ):
        yield client


JSON = {"Content-Type": "application/json"}


async def post(line: httpx.AsyncClient, content: Any, path: str = "/api/workers") -> httpx.Response:
    return await line.post(path, content=content, headers=JSON)


async def chunks(body: bytes, size: int = 100) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def test_a_body_may_have_as_many_bytes_as_the_limit_says_and_not_one_more(line: httpx.AsyncClient) -> None:
    assert (await post(line, padded(2_000, name="fits"))).status_code == 201
    assert (await post(line, chunks(padded(2_000, name="fits-in-chunks")))).status_code == 201
    for body in (padded(2_001), chunks(padded(2_001)), chunks(padded(3_900), 1_000)):
        refused = await post(line, body)
        assert (refused.status_code, refused.json()["reason"]) == (413, "TooLarge")
    assert [one["metadata"]["name"] for one in (await line.get("/api/workers")).json()["items"]] == [
        "fits",
        "fits-in-chunks",
    ]


async def test_what_is_applied_may_be_larger(line: httpx.AsyncClient) -> None:
    documents = [document("LabWorker", name=f"w{number}") for number in range(25)]
    body = msgspec.json.encode({"documents": documents})
    assert 2_000 < len(body) < 6_000
    assert (await post(line, body, "/api/apply")).status_code == 200
    assert (await post(line, body[:-1] + b" " * 6_000 + b"}", "/api/apply")).status_code == 413


def endless() -> Iterator[bytes]:
    while True:
        yield b"1000\r\n" + b" " * 4096 + b"\r\n"


async def test_a_body_without_end_is_cut_off(desk: Desk) -> None:
    async def flood(writer: asyncio.StreamWriter) -> None:
        for chunk in endless():
            writer.write(chunk)
            await writer.drain()

    await cut_off(desk, flood, b"413")


async def test_a_body_that_trickles_in_is_cut_off(desk: Desk) -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"1\r\n \r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    await cut_off(desk, trickle, b"408")


async def test_a_body_that_never_comes_is_not_waited_for(desk: Desk) -> None:
    await cut_off(desk, lambda _: asyncio.sleep(SOON), b"408")


async def cut_off(desk: Desk, write: Any, status: bytes) -> None:
    """Send a body in chunks that a writer makes, and see the answer and the end of the connection."""
    port = free_port()
    async with served(desk.api, port), asyncio.timeout(SOON):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        head = f"POST /api/workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {desk.secrets['root']}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        writing = asyncio.create_task(write(writer))
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            writer.close()
        assert answer.split()[1] == status
        assert b"connection: close" in answer.lower()


async def test_a_length_far_beyond_the_limit_is_turned_down_unread(desk: Desk) -> None:
    port = free_port()
    async with served(desk.api, port), asyncio.timeout(SOON):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        head = f"POST /api/workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {desk.secrets['root']}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 1000000000000\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()


async def test_a_client_that_leaves_in_the_middle_of_its_body_has_asked_for_nothing(desk: Desk) -> None:
    port = free_port()
    before = await desk.revision()
    async with served(desk.api, port):
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        body = padded(1_500)
        head = f"POST /api/workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {desk.secrets['root']}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:700])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert await desk.revision() == before


async def test_bodies_that_stall_hold_no_more_bytes_than_one_caller_may_and_give_them_back() -> None:
    limits = ApiLimits(body_bytes=100_000, apply_bytes=100_000, bodies_bytes=1_000_000, requests_per_second=1e9)
    port = free_port()
    async with opened(limits=limits) as desk, served(desk.api, port), asyncio.timeout(SOON):
        head = f"POST /api/workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {desk.secrets['ada']}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 99000\r\n\r\n"
        pipes = [await asyncio.open_connection(LOOPBACK, port) for _ in range(20)]
        for _, writer in pipes:
            writer.write(head.encode().replace(b"/api/workers", b"/api/lablet-sessions") + b" " * 98_000)
        held = desk.api._shared.bodies
        told = [asyncio.create_task(reader.readuntil(b"}")) for reader, _ in pipes]
        while sum(one.done() for one in told) < 18:
            await asyncio.sleep(0.01)
            assert held.total <= 250_000
        assert {(one.result().split()[1], b"RateLimited" in one.result()) for one in told if one.done()} == {
            (b"429", True)
        }
        other = await desk.ask("root", "POST", "/api/workers", json=document("LabWorker"))
        assert other.status_code == 201
        for one, (_, writer) in zip(told, pipes, strict=True):
            one.cancel()
            writer.close()
        while held.total:
            await asyncio.sleep(0.01)


def test_all_callers_together_hold_a_bounded_number_of_bytes() -> None:
    bodies = HeldBodies(ApiLimits(apply_bytes=10, bodies_bytes=40))
    for name in "abcd":
        bodies.hold(name, 10)
    with pytest.raises(Declined, match="all requests together"):
        bodies.hold("e", 1)
    with pytest.raises(Declined, match="your other requests"):
        bodies.hold("a", 1)
    bodies.release("a", 10)
    bodies.hold("e", 10)
    assert bodies.total == 40
