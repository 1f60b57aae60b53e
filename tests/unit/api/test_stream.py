"""The event stream: what each caller is told, what a client that comes back is told, and when it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.api_world import Desk, opened
from harness.event_clients import Told, told
from lcm.api.openapi.description import DOCUMENTS
from lcm.api.routes import row_snapshots
from lcm.model.access.identity import Role

SOON = 60.0
DEFINITION = "/api/lablet-definitions/basics:1.0.0"
LABELS = {"metadata": {"labels": {"a": "b"}}}


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        for kind, path in (("WorkerTemplate", "worker-templates"), ("LabletDefinition", "lablet-definitions")):
            await desk.done("root", "POST", f"/api/{path}", json=DOCUMENTS[kind])
        yield desk


async def read(desk: Desk, who: str, count: int, *, last: str = "", **query: Any) -> list[Told]:
    """Read so many events and hang up."""
    headers = {"Last-Event-ID": last} if last else {}
    found: list[Told] = []
    async with asyncio.timeout(SOON), desk.streamed(who, "/api/events/stream", params=query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        async for one in told(answer.aiter_lines()):
            found.append(one)
            if len(found) == count:
                break
    return found


async def book(desk: Desk, who: str, name: str) -> str:
    document = DOCUMENTS["LabletSession"]
    made = await desk.done(who, "POST", "/api/lablet-sessions", json={**document, "metadata": {"name": name}})
    return str(made["metadata"]["uid"])


async def latest(desk: Desk, who: str = "root") -> str:
    """Where a client that has seen everything until now is."""
    return (await read(desk, who, 1, snapshot="false"))[0].id


async def test_a_new_client_is_told_how_things_stand_and_then_what_happens(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    uid = await book(desk, "ada", "mine")
    hello, workers, sessions = await read(desk, "root", 3)
    assert (hello.type, workers.type, sessions.type) == ("hello", "snapshot", "snapshot")
    assert [one["worker_name"] for one in workers.data["workers"]] == ["ccna-worker-1"]
    assert [(one["session_id"], one["state"]) for one in sessions.data["sessions"]] == [(uid, "PENDING")]


async def test_a_snapshot_has_what_the_filters_ask_for(desk: Desk) -> None:
    worker = await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    mine, other = await book(desk, "ada", "mine"), await book(desk, "bob", "other")

    async def begin_with(**filters: str) -> tuple[list[str], list[str]]:
        _, workers, sessions = await read(desk, "root", 3, **filters)
        return [one["worker_id"] for one in workers.data["workers"]], [
            one["session_id"] for one in sessions.data["sessions"]
        ]

    uid = worker["metadata"]["uid"]
    assert await begin_with(session_id=mine) == ([], [mine])
    assert await begin_with(owner_id="bob") == ([], [other])
    assert await begin_with(worker_id=uid) == ([uid], [])
    assert await begin_with(event_types="worker.*") == ([uid], [])
    assert await begin_with(event_types="lablet.session.created,alert.*") == ([], [mine, other])
    assert await begin_with(event_types="alert.raised") == ([], [])


async def test_a_client_that_is_cut_off_within_its_snapshot_gets_all_of_it_when_it_returns(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    await book(desk, "ada", "mine")
    *cut, last = await read(desk, "root", 3)
    assert [(one.type, one.id) for one in cut] == [("hello", ""), ("snapshot", "")]
    assert last.data["sessions"]
    uid = await book(desk, "ada", "next")
    (made,) = await read(desk, "root", 1, last=last.id)
    assert made.data["uid"] == uid


async def test_a_client_that_comes_back_is_told_exactly_what_it_missed(desk: Desk) -> None:
    last = await latest(desk)
    for name in ("one", "two", "three"):
        await book(desk, "ada", name)
    first, second, third = await read(desk, "root", 3, last=last)
    assert [one.type for one in (first, second, third)] == ["lablet.session.created"] * 3
    assert await read(desk, "root", 2, last=first.id) == [second, third]
    assert await read(desk, "root", 1, last_event_id=second.id) == [third]


async def test_nobody_is_told_of_what_is_another_s_also_not_by_another_s_id(desk: Desk) -> None:
    last = await latest(desk)
    await book(desk, "ada", "adas")
    await book(desk, "bob", "bobs")
    adas, bobs = await read(desk, "root", 2, last=last)
    assert await read(desk, "ada", 1, last=last) == [adas]
    assert await read(desk, "bob", 1, last=last) == [bobs]
    await book(desk, "bob", "later")
    assert (await read(desk, "bob", 1, last=adas.id)) == [bobs]
    assert [one.type for one in await read(desk, "bob", 2)] == ["hello", "snapshot"]
    snapshot = (await read(desk, "bob", 2))[1].data["sessions"]
    assert sorted(one["session_name"] for one in snapshot) == ["bobs", "later"]


async def test_learners_are_told_of_definitions_and_not_of_the_fleet(desk: Desk) -> None:
    last = await latest(desk)
    await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    await desk.done("root", "PATCH", DEFINITION, json=LABELS)
    assert [one.type for one in await read(desk, "ada", 1, last=last)] == ["definition.updated"]
    assert [one.type for one in await read(desk, "root", 2, last=last)] == ["worker.created", "definition.updated"]


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ({}, ["worker.created", "lablet.session.created", "lablet.session.created"]),
        ({"event_types": "worker.*"}, ["worker.created"]),
        ({"event_types": "lablet.session.created, worker.deleted"}, ["lablet.session.created"] * 2),
        ({"owner_id": "bob"}, ["lablet.session.created"]),
        ({"definition_id": "basics:1.0.0"}, ["lablet.session.created"] * 2),
        ({"session_id": "FIRST"}, ["lablet.session.created"]),
        ({"instance_id": "FIRST"}, ["lablet.session.created"]),
        ({"worker_id": "WORKER"}, ["worker.created"]),
    ],
)
async def test_a_client_is_told_what_it_asked_for(desk: Desk, query: dict[str, str], seen: list[str]) -> None:
    last = await latest(desk)
    worker = await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    uids = {"FIRST": await book(desk, "ada", "one"), "WORKER": worker["metadata"]["uid"]}
    await book(desk, "bob", "two")
    asked = {name: uids.get(value, value) for name, value in query.items()}
    found = await read(desk, "root", len(seen), last=last, **asked)
    assert [one.type for one in found] == seen
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await read(desk, "root", len(seen) + 1, last=last, **asked)


@pytest.mark.parametrize("last", ["0.1.0", "nonsense", "ffffffff.999999.0"])
async def test_an_id_of_another_history_is_answered_with_a_reset(desk: Desk, last: str) -> None:
    (reset,) = await read(desk, "root", 1, last=last, snapshot="false")
    assert reset.type == "reset"
    uid = await book(desk, "ada", "after")
    (made,) = await read(desk, "root", 1, last=reset.id)
    assert made.data["uid"] == uid


async def test_an_id_that_was_compacted_is_answered_with_a_reset(desk: Desk) -> None:
    last = await latest(desk)
    for name in ("one", "two"):
        await book(desk, "ada", name)
    (first,) = await read(desk, "root", 1, last=last)
    await desk.store.compact(await desk.revision())
    assert (await read(desk, "root", 1, last=first.id))[0].type == "reset"


async def test_an_invented_id_of_this_history_does_not_hang(desk: Desk) -> None:
    epoch = (await latest(desk)).split(".")[0]
    async with asyncio.timeout(SOON):
        headers = {"Last-Event-ID": f"{epoch}.1.0"}
        async with desk.streamed("root", "/api/events/stream", headers=headers) as answer:
            async for one in told(answer.aiter_lines()):
                assert one.type in {"reset", "template.created", "definition.created"}
                break


async def test_a_stream_ends_with_its_token(desk: Desk) -> None:
    secret, token = await desk.tokens.make("eve", Role.USER)
    desk.secrets["eve"] = secret.reveal()
    async with asyncio.timeout(SOON), desk.streamed("eve", "/api/events/stream") as answer:
        events = told(answer.aiter_lines())
        assert (await anext(events)).type == "hello"
        await anext(events)
        await desk.tokens.revoke(token.id)
        await desk.done(
            "root", "PATCH", "/api/lablet-definitions/basics:1.0.0", json={"metadata": {"labels": {"a": "b"}}}
        )
        assert [one async for one in events] == []


async def test_a_head_request_is_answered_at_once(desk: Desk) -> None:
    answer = await desk.ask("root", "HEAD", "/api/events/stream")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")


ROWS = {"rows": "true"}


async def rows_of(desk: Desk, who: str) -> dict[str, list[Any]]:
    """Read the snapshot of rows until it is complete, by kind."""
    found: dict[str, list[Any]] = {}
    for count in range(2, 20):
        *parts, last = await read(desk, who, count, **ROWS)
        if last.type == "ready":
            for part in parts[1:]:
                for row in part.data.get("rows", ()):
                    found.setdefault(row["kind"], []).append(row)
            assert last.id.split(".")[1] == str(last.data["revision"])
            return found
    raise AssertionError("no end of the snapshot")


async def test_a_client_that_asks_for_rows_is_sent_all_that_it_may_see_and_then_told_that_it_is_complete(
    desk: Desk,
) -> None:
    worker = await desk.done("root", "POST", "/api/workers", json=DOCUMENTS["LabWorker"])
    uid = await book(desk, "ada", "adas")
    await book(desk, "bob", "bobs")
    seen = await rows_of(desk, "root")
    assert sorted(seen) == ["LabWorker", "LabletDefinition", "LabletSession", "WorkerTemplate"]
    assert seen["LabWorker"][0]["resource_version"] == worker["metadata"]["resource_version"]
    assert {row["name"] for row in seen["LabletSession"]} == {"adas", "bobs"}
    mine = await rows_of(desk, "ada")
    assert sorted(mine) == ["LabletDefinition", "LabletSession"]
    assert [(row["uid"], row["owner"], row["phase"]) for row in mine["LabletSession"]] == [(uid, "ada", "PENDING")]


async def test_who_begins_with_a_snapshot_made_for_another_is_sent_what_happened_since(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_snapshots, "SHARED_SECONDS", SOON)
    *_, ready = await read(desk, "ada", 3, **ROWS)
    uid = await book(desk, "ada", "adas")
    hello, definitions, again, made = await read(desk, "ada", 4, **ROWS)
    assert (hello.type, definitions.type, again.id) == ("hello", "snapshot", ready.id)
    assert made.data["row"]["uid"] == uid


async def test_a_row_comes_with_each_event_and_is_what_a_new_snapshot_shows(desk: Desk) -> None:
    last = await latest(desk)
    uid = await book(desk, "ada", "adas")
    (plain,) = await read(desk, "ada", 1, last=last)
    (made,) = await read(desk, "ada", 1, last=last, **ROWS)
    assert (made.type, made.id, made.data["data"]) == (plain.type, plain.id, plain.data)
    row = made.data["row"]
    (shown,) = (await rows_of(desk, "ada"))["LabletSession"]
    assert row == {name: value for name, value in shown.items() if name != "resource_version"}
    assert shown["resource_version"] == int(made.id.split(".")[1])
    await desk.done("ada", "DELETE", f"/api/lablet-sessions/{uid}")
    *_, gone = await read(desk, "ada", 3, last=last, **ROWS)
    assert (gone.type, gone.data["row"]) == ("lablet.session.deleted", None)
