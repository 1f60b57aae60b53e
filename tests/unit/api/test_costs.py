"""What workers cost, over HTTP: spans, filters, totals."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness import given
from harness.api_world import Desk, opened
from lcm.control.objects.records import encode_checked
from lcm.store.base import Put

DAY = "since=2026-11-02T00:00:00Z&until=2026-11-03T00:00:00Z"


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        for number, one in enumerate(
            [
                given.interval(pool="mornings"),
                given.interval(worker_id="uid-w2", worker_name="w2", lab_track="ccnp"),
                given.interval(worker_id="uid-w2", worker_name="w2", lab_track="", usd_hourly=None),
            ]
        ):
            await desk.store.commit(
                Put(f"billing/20261102T090000.000000Z/{one.worker_id}/{number}", encode_checked(one))
            )
        yield desk


async def costs(desk: Desk, query: str) -> Any:
    return await desk.done("otto", "GET", f"/api/costs?{query}")


async def test_intervals_are_added_up_by_worker_and_track(desk: Desk) -> None:
    told = await costs(desk, DAY)
    assert told["total"] == {
        "name": "all",
        "usd": "2.000000",
        "seconds": 10800,
        "unpriced_seconds": 3600,
        "saved_usd": "0.000000",
    }
    assert [(one["name"], one["usd"]) for one in told["by_worker"]] == [
        ("default/w1", "1.000000"),
        ("default/w2", "1.000000"),
    ]
    assert [(one["name"], one["usd"]) for one in told["by_track"]] == [
        ("", "0.000000"),
        ("ccna", "1.000000"),
        ("ccnp", "1.000000"),
    ]
    assert [one["usd_hourly"] for one in told["intervals"]] == ["1", "1", None]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("worker=w2", 2),
        ("worker=uid-w1", 1),
        ("worker=w3", 0),
        ("lab_track=ccna", 1),
        ("lab_track=", 1),
        ("lab_track=ccnp&worker=w1", 0),
        ("pool=mornings", 1),
        ("pool=evenings", 0),
    ],
)
async def test_only_what_is_asked_for_is_told(desk: Desk, query: str, count: int) -> None:
    assert len((await costs(desk, f"{DAY}&{query}"))["intervals"]) == count


async def test_without_a_span_it_is_the_last_thirty_days(desk: Desk) -> None:
    told = await costs(desk, "")
    assert (told["since"], told["until"]) == ("2026-10-03T08:00:00Z", "2026-11-02T08:00:00Z")
    answer = await desk.ask("otto", "GET", "/api/costs?since=2026-11-02T09:00:00Z")
    assert (answer.status_code, answer.json()["faults"][0]["path"]) == (422, "since")


async def test_days_of_a_zone_are_told_without_the_intervals(desk: Desk) -> None:
    told = await costs(desk, "since=2026-10-30T12:00:00Z&time_zone=Pacific/Auckland&with_intervals=false")
    assert [one["name"] for one in told["by_day"]] == ["2026-10-31", "2026-11-01", "2026-11-02"]
    assert told["intervals"] == []
    assert (await costs(desk, DAY))["by_day"] == []


@pytest.mark.parametrize(
    "query", ["time_zone=Nowhere/Land", "time_zone=../etc", "since=2026-01-01T00:00:00Z&time_zone=UTC"]
)
async def test_a_zone_that_is_none_or_too_many_days_are_refused(desk: Desk, query: str) -> None:
    answer = await desk.ask("otto", "GET", f"/api/costs?{query}")
    assert (answer.status_code, answer.json()["faults"][0]["path"]) == (422, "time_zone")
