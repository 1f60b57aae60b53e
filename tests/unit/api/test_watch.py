"""The watch over HTTP: lines in order, signs of life, what a caller may see, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from harness.api_world import Desk, document, opened, path, stock
from harness.asgi import AsgiTransport
from harness.plane_world import LIMITS, NOW, served
from harness.servers import free_port
from lcm.api.http.limits import ApiLimits
from lcm.control.plane.wire import EPOCH_HEADER, KEEPALIVE_SECONDS
from lcm.sim.time.loop import run
from lcm.store.memory import MemoryStore

SESSIONS = path("LabletSession")
SOON = 60.0


class Lines:
    """A stream as its reader sees it."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> Any:
        async with asyncio.timeout(SOON):
            return json.loads(await anext(self._lines))

    async def seen(self) -> list[tuple[str, bool]]:
        """Read until something was seen: the names, and whether they are there."""
        while not (line := await self.next())["seen"]:
            pass
        return [(one["name"], one["object"] is not None) for one in line["seen"]]

    async def ended(self) -> bool:
        async with asyncio.timeout(SOON):
            return [line async for line in self._lines] == []


@asynccontextmanager
async def watching(
    desk: Desk, who: str, kinds: str = "LabletSession", after: int = 0, client: httpx.AsyncClient | None = None
) -> AsyncIterator[Lines]:
    line = client or httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url="http://desk", timeout=SOON)
    query = {"kinds": kinds, "after": str(after)}
    async with line.stream("GET", "/api/watch", params=query, headers=desk.signed(who)) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Lines(answer)


def in_time(body: Callable[[Desk], Awaitable[None]], **options: Any) -> None:
    """Run a test's body at a desk in virtual time."""

    async def main() -> None:
        async with opened(**options) as desk:
            await stock(desk)
            await body(desk)

    run(main, start=NOW)


def test_every_commit_is_a_line_and_every_line_is_json() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "ada", "LabletSession,Reservation", await desk.revision()) as lines:
            assert lines.answer.headers["content-type"] == "application/x-ndjson"
            assert lines.answer.headers["cache-control"] == "no-store"
            assert lines.answer.headers[EPOCH_HEADER] == desk.core.epoch
            made = await desk.done("ada", "POST", SESSIONS, json=document("LabletSession", name="a"))
            await desk.done("ada", "POST", path("Reservation"), json=document("Reservation", name="b"))
            first = await lines.next()
            assert first["revision"] == made["metadata"]["resource_version"]
            assert first["seen"] == [{"kind": "LabletSession", "namespace": "default", "name": "a", "object": made}]
            assert (await lines.next())["seen"][0]["kind"] == "Reservation"
            await desk.done("ada", "DELETE", path("LabletSession", "a"))
            assert await lines.seen() == [("a", False)]

    in_time(body)


def test_a_stream_is_taken_up_where_it_was_left() -> None:
    async def body(desk: Desk) -> None:
        made = [
            await desk.done("ada", "POST", SESSIONS, json=document("LabletSession", name=f"s{number}"))
            for number in range(4)
        ]
        after = made[1]["metadata"]["resource_version"]
        async with watching(desk, "ada", after=after) as lines:
            assert [await lines.seen(), await lines.seen()] == [[("s2", True)], [("s3", True)]]

    in_time(body)


def test_people_see_their_own_bookings_only() -> None:
    async def body(desk: Desk) -> None:
        start = await desk.revision()
        async with watching(desk, "ada", after=start) as mine, watching(desk, "root", after=start) as all_of_them:
            for who in ("bob", "ada"):
                await desk.done(who, "POST", SESSIONS, json=document("LabletSession", name=f"of-{who}"))
            assert await mine.seen() == [("of-ada", True)]
            assert [await all_of_them.seen() for _ in range(2)] == [[("of-bob", True)], [("of-ada", True)]]

    in_time(body)


def test_a_quiet_stream_gives_signs_of_life() -> None:
    async def body(desk: Desk) -> None:
        start, loop = await desk.revision(), asyncio.get_running_loop()
        async with watching(desk, "ada", after=start) as lines:
            began = loop.time()
            assert await lines.next() == {"revision": start, "seen": []}
            assert await lines.next() == {"revision": start, "seen": []}
            assert loop.time() - began == pytest.approx(2 * KEEPALIVE_SECONDS, abs=0.1)

    in_time(body)


def test_history_that_is_gone_ends_the_stream_with_its_reason() -> None:
    async def body(desk: Desk) -> None:
        await desk.store.compact(await desk.revision())
        for after in (1, 10**6):
            async with watching(desk, "ada", after=after) as lines:
                last = await lines.next()
                assert (last["problem"]["reason"], last["problem"]["status"]) == ("Relist", 410)
                assert await lines.ended()

    in_time(body)


def test_a_token_that_is_revoked_ends_the_stream() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "ada", after=await desk.revision()) as lines:
            await desk.tokens.revoke(next(one.id for one in await desk.tokens.list() if one.name == "ada"))
            assert (await lines.next())["problem"]["reason"] == "Unauthorized"
            assert await lines.ended()

    in_time(body)


def test_a_token_that_is_revoked_shows_nothing_more_of_what_happens() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "root", after=await desk.revision()) as lines:
            await desk.tokens.revoke(next(one.id for one in await desk.tokens.list() if one.name == "root"))
            await desk.done("bob", "POST", SESSIONS, json=document("LabletSession", name="of-bob"))
            assert "problem" in await lines.next()

    in_time(body)


@pytest.mark.parametrize(
    ("who", "query", "status"),
    [
        ("ada", "kinds=LabWorker&after=0", 403),
        ("ada", "kinds=LabletSession,LabWorker&after=0", 403),
        ("anna", "kinds=SystemSettings&after=0", 403),
        ("ada", "after=0", 422),
        ("ada", "kinds=LabletSession", 422),
        ("ada", "kinds=&after=0", 422),
        ("ada", "kinds=LabletSession,&after=0", 422),
        ("ada", "kinds=Nothing&after=0", 422),
        ("ada", "kinds=LabletSession&after=-1", 422),
        ("ada", "kinds=LabletSession&after=now", 422),
        ("ada", "kinds=LabletSession&after=99999999999999999999", 422),
        ("", "kinds=LabletSession&after=0", 401),
    ],
)
async def test_a_watch_that_cannot_be_is_refused_before_it_begins(who: str, query: str, status: int) -> None:
    async with opened() as desk:
        assert (await desk.ask(who, "GET", f"/api/watch?{query}")).status_code == status


def test_a_person_may_have_so_many_streams_and_a_service_any_number() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "ada"), watching(desk, "ada"):
            refused = await desk.ask("ada", "GET", "/api/watch?kinds=LabletSession&after=0")
            assert (refused.status_code, refused.json()["reason"]) == (429, "RateLimited")
            assert refused.headers["retry-after"] == "5"
            async with watching(desk, "bob"), watching(desk, "service"), watching(desk, "service"):
                assert desk.api._streams.total > 4
            async with watching(desk, "service"), watching(desk, "service"), watching(desk, "service"):
                pass
        await asyncio.sleep(1)
        async with watching(desk, "ada"):
            pass

    in_time(body, limits=ApiLimits(streams=2))


async def test_a_client_that_leaves_is_forgotten() -> None:
    async with (
        opened() as desk,
        served(desk.api, free_port()) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        async with watching(desk, "ada", client=client):
            assert desk.api._streams.total == 1
        async with asyncio.timeout(SOON):
            while desk.api._streams.total:
                await asyncio.sleep(0.01)


async def test_a_client_that_left_before_the_answer_began_is_forgotten() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        raise ConnectionResetError

    async with opened() as desk:
        secret = desk.signed("ada")["Authorization"].encode()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/watch",
            "raw_path": b"/api/watch",
            "query_string": b"kinds=LabletSession&after=0",
            "headers": [(b"authorization", secret)],
        }
        await desk.api(scope, receive, send)
        assert desk.api._streams.total == 0


def test_a_reader_that_stops_reading_is_cut_off() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "root", "LabWorker", await desk.revision()) as lines:
            for number in range(60):
                await desk.done("root", "POST", "/api/workers", json=document("LabWorker", name=f"w{number}"))
            await asyncio.sleep(LIMITS.send_seconds + 1)
            assert desk.api._streams.total == 0
            with pytest.raises(httpx.RemoteProtocolError):
                await lines.ended()

    in_time(body)


def test_a_reader_who_falls_too_far_behind_must_list_again() -> None:
    async def body(desk: Desk) -> None:
        async with watching(desk, "root", "LabWorker", await desk.revision()) as lines:
            for number in range(200):
                await desk.done("root", "POST", "/api/workers", json=document("LabWorker", name=f"w{number}"))
            line = await lines.next()
            while "problem" not in line:
                line = await lines.next()
            assert line["problem"]["reason"] == "Relist"

    in_time(body, store=MemoryStore(backlog=5))
