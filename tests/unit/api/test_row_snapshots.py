"""Snapshots of rows: made once for many, given to each as far as it may see, and never too many of them."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harness import given
from harness.api_world import Desk, opened
from harness.credentials import given_keys
from harness.plane_world import hand_clock
from harness.suite import longest_turn
from lcm.api.http.limits import ApiLimits
from lcm.api.routes import stream
from lcm.api.routes.row_snapshots import (
    MOST_HELD,
    MOST_OF_ONE,
    OLDEST_SECONDS,
    PAUSE_FACTOR,
    SHARED_SECONDS,
    EncodedRows,
    RowSnapshots,
)
from lcm.api.routes.stream import frame
from lcm.control.delivery.feed import Feed
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Throttled
from lcm.model.kinds.registry import KINDS
from lcm.sim.time.loop import run
from lcm.store.base import Page, Store
from lcm.store.memory import MemoryStore

SESSIONS, CLIENTS = 900, 100
MOST_SECONDS = 0.1
OWNERS = ("ada", "bob", "cleo")
ROOT = Caller(name="root", role=Role.ADMIN)
LIMITS = ApiLimits(requests_per_second=1e9, burst=10**9, streams=CLIENTS)


async def put_sessions(store: Store) -> None:
    for number in range(SESSIONS):
        one = given.session(name=f"s{number}", uid=f"u{number}", owner=OWNERS[number % 3])
        await store.commit(*creation_ops(one))


async def read_snapshot(desk: Desk, who: str, last: str = "") -> list[bytes]:
    """Read the frames of a snapshot from the application itself, and hang up."""
    frames, complete = list[bytes](), asyncio.Event()

    async def receive() -> dict[str, Any]:
        await complete.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        if body.startswith(b"event: snapshot"):
            frames.append(body)
        if b"event: ready" in body:
            complete.set()

    signed = [(name.lower().encode(), text.encode()) for name, text in desk.signed(who).items()]
    signed.append((b"last-event-id", last.encode()))
    path = "/api/events/stream"
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"rows=true", "headers": signed}
    await desk.api(scope, receive, send)
    return frames


def sessions_in(frames: list[bytes]) -> set[str]:
    parts = [json.loads(one.partition(b"data: ")[2]) for one in frames]
    return {row["name"] for part in parts for row in part.get("rows", ()) if row["kind"] == "LabletSession"}


async def test_many_who_come_at_once_share_one_snapshot_and_each_sees_what_is_its_own() -> None:
    async with opened(limits=LIMITS) as desk:
        await put_sessions(desk.store)
        found: dict[str, list[list[bytes]]] = {"root": [], "ada": []}

        async def ask(who: str) -> None:
            found[who].append(await read_snapshot(desk, who))

        longest = await longest_turn(asyncio.gather(*(ask(who) for who in found for _ in range(CLIENTS))))
    assert longest < MOST_SECONDS
    first, *others = found["root"]
    assert sessions_in(first) == {f"s{number}" for number in range(SESSIONS)}
    assert len(others) == CLIENTS - 1
    assert all(mine is same for other in others for mine, same in zip(first, other, strict=True))
    first, *others = found["ada"]
    assert sessions_in(first) == {f"s{number}" for number in range(0, SESSIONS, 3)}
    assert all(other == first for other in others)


@asynccontextmanager
async def opened_snapshots(store: Store | None = None) -> AsyncIterator[RowSnapshots]:
    store = store or MemoryStore()
    snapshots = RowSnapshots(ControlPlane(store, clock=hand_clock(), sealer=given_keys()), Feed(store, frame))
    yield snapshots
    await snapshots.end()


def test_a_snapshot_is_shared_for_a_moment_and_longer_while_many_are_still_sent() -> None:
    async def story() -> None:
        async with opened_snapshots() as snapshots:
            held = list[EncodedRows]()
            for _ in range(MOST_HELD):
                await asyncio.sleep(SHARED_SECONDS)
                held.append(await snapshots.find(ROOT))
                assert await snapshots.find(ROOT) is held[-1]
            assert len(set(held)) == MOST_HELD
            await asyncio.sleep(OLDEST_SECONDS - 1)
            assert await snapshots.find(ROOT) is held[-1]
            await asyncio.sleep(1)
            with pytest.raises(Throttled):
                snapshots.find(ROOT)
            held.clear()
            await snapshots.find(ROOT)

    run(story)


def test_a_snapshot_that_took_long_is_shared_for_longer() -> None:
    async def story() -> None:
        store = SlowStore()
        async with opened_snapshots(store) as snapshots:
            asyncio.get_running_loop().call_later(SHARED_SECONDS, store.go_on.set)
            made = await snapshots.find(ROOT)
            await asyncio.sleep(PAUSE_FACTOR * SHARED_SECONDS - 1)
            assert await snapshots.find(ROOT) is made
            await asyncio.sleep(1)
            assert await snapshots.find(ROOT) is not made

    run(story)


def test_only_the_snapshot_whose_events_are_gone_is_forgotten_and_that_makes_no_more_of_them() -> None:
    async def story() -> None:
        async with opened_snapshots() as snapshots:
            first = await snapshots.find(ROOT)
            snapshots.forget(first.revision + 1)
            assert await snapshots.find(ROOT) is first
            held = [first]
            while len(held) < MOST_HELD:
                snapshots.forget(first.revision)
                held.append(await snapshots.find(ROOT))
            assert len(set(held)) == MOST_HELD
            snapshots.forget(first.revision)
            with pytest.raises(Throttled):
                snapshots.find(ROOT)

    run(story)


def test_whoever_does_not_see_all_holds_no_snapshot_while_reading_its_part() -> None:
    async def story() -> None:
        async with opened_snapshots() as snapshots:
            reading = list[Iterator[bytes]]()
            for number in range(2 * MOST_HELD):
                await asyncio.sleep(SHARED_SECONDS)
                rows = await snapshots.find(ROOT)
                reading.append(snapshots.frames_for(Caller(name=f"u{number}", role=Role.USER), rows))
                del rows

    run(story)


def test_slow_clients_of_one_caller_hold_few_snapshots_and_others_get_theirs() -> None:
    async def read_as(snapshots: RowSnapshots, caller: Caller) -> Iterator[bytes]:
        await asyncio.sleep(SHARED_SECONDS)
        return snapshots.frames_for(caller, await snapshots.find(caller))

    async def story() -> None:
        async with opened_snapshots() as snapshots:
            reading = [await read_as(snapshots, ROOT) for _ in range(MOST_OF_ONE)]
            assert all(next(one) for one in reading)
            with pytest.raises(Throttled, match="your other clients"):
                await read_as(snapshots, ROOT)
            await read_as(snapshots, Caller(name="otto", role=Role.OPERATOR))
            reading.pop()
            await read_as(snapshots, ROOT)

    run(story)


async def test_clients_who_return_with_an_id_of_the_past_share_one_snapshot() -> None:
    async with opened(limits=LIMITS) as desk:
        await put_sessions(desk.store)
        past = f"{desk.store.epoch}.1.0"
        await desk.store.compact(await desk.revision())
        first, *others = [await read_snapshot(desk, "root", past) for _ in range(10)]
    assert sessions_in(first) == {f"s{number}" for number in range(SESSIONS)}
    assert all(mine is same for other in others for mine, same in zip(first, other, strict=True))


class SlowStore(MemoryStore):
    """Answers pages of sessions when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.is_asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def scan(self, prefix: str, **how: Any) -> Page:
        if prefix.startswith(KINDS["LabletSession"].prefix):
            self.asked += 1
            self.is_asked.set()
            await self.go_on.wait()
        return await super().scan(prefix, **how)


async def test_a_snapshot_is_finished_also_if_all_who_asked_for_it_have_left() -> None:
    store = SlowStore()
    async with opened(store=store, limits=LIMITS) as desk:
        for _ in range(3):
            leaving = asyncio.create_task(read_snapshot(desk, "root"))
            await store.is_asked.wait()
            leaving.cancel()
            await asyncio.wait({leaving})
        store.go_on.set()
        await read_snapshot(desk, "root")
        assert store.asked == 1


async def test_who_waits_for_a_snapshot_hears_that_the_server_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.001)
    store = SlowStore()
    asked = {"params": {"rows": "true"}}
    async with opened(store=store) as desk, desk.streamed("root", "/api/events/stream", **asked) as answer:
        lines = answer.aiter_lines()
        while await anext(lines) != ": alive":
            pass
        store.go_on.set()
        while await anext(lines) != "event: ready":
            pass


async def test_a_snapshot_ends_with_the_token_of_whoever_reads_it() -> None:
    store = SlowStore()
    async with opened(store=store, limits=LIMITS) as desk:
        secret, token = await desk.tokens.make("eve", Role.ADMIN)
        desk.secrets["eve"] = secret.reveal()
        async with desk.streamed("eve", "/api/events/stream", params={"rows": "true"}) as answer:
            await store.is_asked.wait()
            await desk.tokens.revoke(token.id)
            store.go_on.set()
            assert [line async for line in answer.aiter_lines() if line.startswith("event")] == []


@pytest.mark.parametrize("filters", [{"session_id": "x"}, {"owner_id": "ada"}, {"event_types": "worker.*"}])
async def test_a_snapshot_of_rows_is_not_asked_for_with_filters(filters: dict[str, str]) -> None:
    async with opened() as desk:
        refused = await desk.ask("root", "GET", "/api/events/stream", params={"rows": "true", **filters})
        assert (refused.status_code, refused.json()["faults"][0]["path"]) == (422, "rows")
        allowed = {"rows": "true", "snapshot": "false", **filters}
        assert (await desk.ask("root", "HEAD", "/api/events/stream", params=allowed)).status_code == 200
