"""Recent events over HTTP: what each caller may see, the newest last, bounded, and where to go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.api_world import ROLES, Desk, opened, path, stock
from harness.api_world import document as document_of
from harness.event_clients import happen as happened_at
from harness.suite import here, longest_turn
from lcm.api.routes import events as page_of_events
from lcm.control.delivery.feed import WHOLE_COMMIT
from lcm.sim.time.loop import START
from lcm.store.base import Put, Store

WHERE = "/api/events"
MOST_SECONDS = 0.06


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        yield desk


async def happen(store: Store, count: int, **fields: Any) -> list[str]:
    return await happened_at(store, count, time=START, **fields)


async def ids(desk: Desk, who: str = "root", **query: Any) -> list[str]:
    page = await desk.done(who, "GET", WHERE, params=query)
    return [one["id"] for one in page["items"]]


async def test_before_anything_happened_there_is_nothing_to_tell(desk: Desk) -> None:
    page = await desk.done("root", "GET", WHERE)
    assert (page["items"], page["more"]) == ([], False)
    told = await happen(desk.store, 3)
    assert await ids(desk, after=page["last"]) == told


async def test_the_newest_events_come_last_and_no_more_than_wanted(desk: Desk) -> None:
    told = await happen(desk.store, 20)
    assert await ids(desk) == told
    assert await ids(desk, limit=7) == told[-7:]


async def test_what_follows_an_event_is_read_page_by_page_without_gap_or_duplicate(desk: Desk) -> None:
    told = await happen(desk.store, 20)
    found, after, more = [told[0]], told[0], True
    while more:
        page = await desk.done("root", "GET", WHERE, params={"after": after, "limit": 3})
        found += [one["id"] for one in page["items"]]
        after, more = page["last"], page["more"]
    assert found == told
    assert await ids(desk, after=after) == []


@pytest.mark.parametrize("query", [{}, {"after": "{}.0.1000000"}])
async def test_many_who_search_the_whole_history_keep_nobody_waiting(desk: Desk, query: dict[str, str]) -> None:
    await happen(desk.store, page_of_events.SPANS[-1])
    wanted = {name: text.format(desk.store.epoch) for name, text in query.items()} | {"owner_id": "nobody"}
    longest = await longest_turn(asyncio.gather(*(ids(desk, **wanted) for _ in range(30))))
    assert longest < here(MOST_SECONDS)


async def test_a_filter_that_leaves_out_everything_still_goes_on(desk: Desk) -> None:
    told = await happen(desk.store, 6)
    page = await desk.done("root", "GET", WHERE, params={"after": told[0], "event_types": "pool.*"})
    assert (page["items"], page["more"]) == ([], False)
    epoch, revision, place = page["last"].split(".")
    assert (epoch, int(place)) == (desk.store.epoch, WHOLE_COMMIT)
    assert int(revision) >= int(told[-1].split(".")[1])


async def test_events_are_filtered_as_on_the_stream(desk: Desk) -> None:
    await happen(desk.store, 2)
    mine = await happen(desk.store, 1, type="lablet.session.created", session_id="s-1", owner="ada")
    other = await happen(desk.store, 1, type="worker.created", worker_id="w-1")
    assert await ids(desk, session_id="s-1") == await ids(desk, instance_id="s-1") == mine
    assert await ids(desk, owner_id="ada") == await ids(desk, event_types="lablet.*") == mine
    assert await ids(desk, worker_id="w-1") == await ids(desk, event_types="worker.created,pool.scaled") == other


async def test_people_see_their_own_and_what_is_public_and_staff_all(desk: Desk) -> None:
    await stock(desk, owner="bob")
    await desk.done("ada", "POST", path("LabletSession"), json=document_of("LabletSession", name="of-ada"))
    seen = {who: (await desk.done(who, "GET", WHERE))["items"] for who in ROLES}
    assert seen["root"] == seen["otto"] == seen["service"]
    names = {who: {(one["kind"], one["name"]) for one in items} for who, items in seen.items()}
    assert {("LabWorker", "ccna-worker-1"), ("LabletSession", "ada-monday")} <= names["root"]
    assert names["ada"] == {("LabletDefinition", "basics:1.0.0"), ("LabletSession", "of-ada")}
    assert names["anna"] == {("LabletDefinition", "basics:1.0.0")}


async def test_going_on_after_anothers_event_shows_nothing_of_it(desk: Desk) -> None:
    (secret,) = await happen(desk.store, 1, owner="bob")
    (mine,) = await happen(desk.store, 1, owner="ada")
    assert await ids(desk, "ada", after=secret) == [mine]
    assert secret not in (await desk.ask("ada", "GET", WHERE)).text


@pytest.mark.parametrize("after", ["00000000.1.0", "nonsense", "1.2", ""])
async def test_an_id_of_another_history_is_told_so(desk: Desk, after: str) -> None:
    await happen(desk.store, 1)
    answer = await desk.ask("root", "GET", WHERE, params={"after": after or f"{desk.store.epoch}.99999.0"})
    assert (answer.status_code, answer.json()["reason"]) == (410, "Relist")


async def test_after_a_compaction_what_is_left_is_told(desk: Desk) -> None:
    told = await happen(desk.store, 30)
    cut = int(told[20].split(".")[1])
    await desk.store.compact(cut)
    left = [one for one in told if int(one.split(".")[1]) > cut]
    assert left
    assert await ids(desk) == left
    assert (await desk.ask("root", "GET", WHERE, params={"after": told[0]})).status_code == 410
    assert await ids(desk, after=left[0]) == left[1:]


async def test_only_so_much_of_history_is_looked_through(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_of_events, "SPANS", (4, 8))
    old = await happen(desk.store, 1, owner="ada")
    for number in range(20):
        await desk.store.commit(Put(f"x/{number}", b""))
    (new,) = await happen(desk.store, 1, owner="ada")
    assert await ids(desk, "ada") == [new]
    page = await desk.done("ada", "GET", WHERE, params={"after": old[0]})
    assert [one["id"] for one in page["items"]] == [new]


async def test_limits_are_held(desk: Desk) -> None:
    for query in ({"limit": 0}, {"limit": 1001}, {"sort": "x"}):
        assert (await desk.ask("root", "GET", WHERE, params=query)).status_code == 422
