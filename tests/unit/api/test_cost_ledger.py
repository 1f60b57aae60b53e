"""Costs by groups, over HTTP and from the command line: who sees what, spans, pages."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from harness import given
from harness.api_world import ApiServer, Desk, opened, shell
from harness.stores import HandClock
from lcm.control.accounts.stays import STAYS
from lcm.control.objects.records import encode_checked
from lcm.control.upkeep.housekeeping import STAYS_KEPT, Housekeeping
from lcm.model.money.billing import BillingInterval
from lcm.model.money.split import WHOLE, Stay
from lcm.store.base import Put, scan_all

SIX, SEVEN = given.moment("06:00"), given.moment("07:00")
DAY = "since=2026-11-02T00:00:00Z&until=2026-11-03T00:00:00Z"


def stay(name: str, owner: str, share: int, **more: Any) -> Stay:
    fields = {"since": SIX, "until": SEVEN, "namespace": "default", "definition": "basics:1.0.0", **more}
    return Stay(session=name, session_id=f"uid-{name}", worker_id="uid-w1", owner=owner, share=share, **fields)


def records(bill: BillingInterval, *stays: Stay) -> list[Put]:
    puts = [Put(f"billing/20261102T070000.000000Z/{bill.worker_id}/0", encode_checked(bill))]
    for one in stays:
        key = f"{STAYS}{one.until:%Y%m}/{one.worker_id}/{one.until:%Y%m%dT%H%M%S.%fZ}/{one.session_id}"
        puts.append(Put(key, encode_checked(one)))
    return puts


HOUR_OF_TWO = records(
    given.interval(pool="mornings", since=SIX, until=SEVEN),
    stay("s1", "ada", WHOLE // 2, lab_track="ccna", reservation="math", reservation_id="uid-math"),
    stay("s2", "bob", WHOLE // 4, lab_track="ccnp"),
)


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await desk.store.commit(*HOUR_OF_TWO)
        yield desk


async def ledger(desk: Desk, query: str, who: str = "otto") -> Any:
    return await desk.done(who, "GET", f"/api/costs/ledger?{query}")


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("owner", {"ada": "0.500000", "bob": "0.250000"}),
        ("class", {"": "0.250000", "default/math": "0.500000"}),
        ("track", {"ccna": "0.500000", "ccnp": "0.250000"}),
        ("session", {"default/s1": "0.500000", "default/s2": "0.250000"}),
        ("pool", {"default/mornings": "0.750000"}),
        ("worker", {"default/w1": "0.750000"}),
        ("definition", {"default/basics:1.0.0": "0.750000"}),
        ("day", {"2026-11-02": "0.750000"}),
    ],
)
async def test_staff_see_all_groups_and_what_nobody_used(desk: Desk, by: str, rows: dict[str, str]) -> None:
    told = await ledger(desk, f"by={by}&{DAY}")
    assert {one["name"]: one["usd"] for one in told["rows"]} == rows
    assert (told["total_usd"], told["unused_usd"]) == ("1.000000", "0.250000")


async def test_an_owner_sees_the_own_sessions_only(desk: Desk) -> None:
    told = await ledger(desk, f"by=session&owner=bob&{DAY}", who="ada")
    assert [(one["name"], one["usd"]) for one in told["rows"]] == [("default/s1", "0.500000")]
    assert (told["total_usd"], told["unused_usd"]) == ("0.500000", "0.000000")
    for by in ("pool", "worker"):
        assert (await desk.ask("ada", "GET", f"/api/costs/ledger?by={by}&{DAY}")).status_code == 403
    assert (await ledger(desk, f"by=owner&owner=bob&{DAY}"))["total_usd"] == "0.250000"


async def test_pages_follow_one_another(desk: Desk) -> None:
    first = await ledger(desk, f"by=owner&limit=1&{DAY}")
    second = await ledger(desk, f"by=owner&limit=1&{DAY}&cursor={quote(first['next'])}")
    assert [one["name"] for one in (*first["rows"], *second["rows"])] == ["ada", "bob"]
    assert (second["next"], second["as_of"]) == ("", first["as_of"])


@pytest.mark.parametrize("by", ["class", "owner", "session", "definition", "pool"])
async def test_all_pages_together_add_up_whatever_the_names_are(desk: Desk, by: str) -> None:
    long = stay("l" * 63, "ö" * 128, 100_000, definition="d" * 63, reservation="r" * 63, namespace="n" * 63)
    await desk.store.commit(*records(given.interval(), long)[1:])
    found, cursor = list[tuple[str, str]](), ""
    for _ in range(5):
        told = await ledger(desk, f"by={by}&limit=1&{DAY}&cursor={quote(cursor)}")
        found += [(one["name"], one["usd"]) for one in told["rows"]]
        cursor = told["next"]
        if not cursor:
            break
    whole = await ledger(desk, f"by={by}&{DAY}")
    assert found == [(one["name"], one["usd"]) for one in whole["rows"]]
    assert sum(Decimal(usd) for _, usd in found) + Decimal(whole["unused_usd"]) == Decimal(whole["total_usd"])


async def test_a_month_begins_where_its_zone_says(desk: Desk) -> None:
    told = await ledger(desk, "by=day&month=2026-11&time_zone=Pacific/Auckland")
    assert (told["since"], told["until"]) == ("2026-10-31T11:00:00Z", "2026-11-30T11:00:00Z")
    assert [one["name"] for one in told["rows"]] == ["2026-11-02"]
    past = await ledger(desk, "by=day&month=2026-10")
    assert (past["total_usd"], past["stays_since"]) == ("0.000000", "2026-11-01T00:00:00Z")


@pytest.mark.parametrize(
    "query",
    [
        "by=planet",
        "month=2026-13",
        "month=november",
        "month=2026-11&until=2026-11-05T00:00:00Z",
        "since=2024-01-01T00:00:00Z",
        "by=day&since=2026-01-01T00:00:00Z",
        "since=2026-11-02T00:00:00Z&until=2026-11-01T00:00:00Z",
        "until=2060-01-01T00:00:00Z",
        "time_zone=Nowhere/Land",
        "cursor=nonsense",
        "until=0001-01-03T00:00:00Z",
        "by=day&time_zone=Pacific/Kiritimati&since=9999-12-30T00:00:00Z&until=9999-12-31T23:00:00Z",
        "by=day&time_zone=America/Adak&since=0001-01-01T00:00:00Z&until=0001-01-02T00:00:00Z",
        "cursor=0001-01-01T00:00:00%2B00:00~x",
        "cursor=0001-01-01T00:00:00%2B14:00~x",
        "cursor=2060-01-01T00:00:00%2B00:00~x",
        "limit=0",
    ],
)
async def test_what_cannot_be_answered_is_refused(desk: Desk, query: str) -> None:
    assert (await desk.ask("otto", "GET", f"/api/costs/ledger?{query}")).status_code == 422


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("month=2026-13", "write for example 2026-11"),
        ("by=planet", "use one of session, class, owner, track, definition, pool, worker, day"),
        ("limit=0", "write a whole number from 1 to 5000"),
        ("since=today", "write a moment with its offset, such as 2026-11-02T09:00:00Z"),
    ],
)
async def test_a_wrong_parameter_is_answered_with_what_to_write(desk: Desk, query: str, remedy: str) -> None:
    told = (await desk.ask("otto", "GET", f"/api/costs/ledger?{query}")).json()
    assert [one["remedy"] for one in told["faults"]] == [remedy]


async def test_stays_are_kept_for_a_year_and_the_bill_for_ever(desk: Desk) -> None:
    for days, left in ((0, 2), (27, 2), (31, 0)):
        clock = HandClock()
        clock.moment = SEVEN + STAYS_KEPT + timedelta(days=days)
        await Housekeeping(desk.store, clock=clock).tidy()
        assert len((await scan_all(desk.store, STAYS)).entries) == left, days
    assert len((await scan_all(desk.store, "billing/")).entries) == 1


def test_the_command_prints_a_table_that_adds_up_and_other_formats(api: ApiServer, tmp_path: Path) -> None:
    api.commit(*HOUR_OF_TWO)
    desk = shell(api, tmp_path, columns=80)
    span = ["--since", "2026-11-02", "--until", "2026-11-03", "--utc"]
    table = desk.out("cost", "--by", "owner", *span)
    assert [line.split() for line in table.splitlines()] == [
        ["OWNER", "USD"],
        ["ada", "0.50"],
        ["bob", "0.25"],
        ["unused", "0.25"],
        ["total", "1.00"],
    ]
    lines = desk.out("cost", "--by", "class", *span, "-o", "csv").splitlines()
    assert lines[0] == "class,usd,unused_usd,forecast_usd"
    assert lines[-1] == "unused,0.250000,0,0.000000"
    (pool,) = json.loads(desk.out("cost", "--by", "pool", *span, "-o", "json"))["rows"]
    assert (pool["name"], pool["unused_usd"]) == ("default/mornings", "0.250000")
    until = desk.out("cost", "--by", "owner", "--until", "2026-11-02", "--utc").splitlines()
    assert until[-1].split() == ["total", "0.00"], "what came later is not in it"
