"""Two learners of one class: neither sees, hears of, uses or connects to the other's seat, by any way there is."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from harness.api_world import path
from harness.event_clients import told
from harness.gateway import Gateway, gateway, read_until
from lcm.api.http.routing import GET, Route
from lcm.api.routes.table import ROUTES
from lcm.model.access.identity import Reach, Role

SESSIONS = path("LabletSession")
LEARNERS = ("lea", "leo", "gus", "gil")
SEAT_OF = {"lea": "s1", "gus": "s1", "leo": "s2", "gil": "s2"}
"""Lea and leo have addresses; gus and gil were invited to their seats."""
SOON = 60.0
SEAT_ROUTES = [one for one in ROUTES if one.path.startswith(f"{SESSIONS}/{{id}}")]


@pytest.fixture(name="gate")
async def open_gate() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        await it.put(it.session("s2"))
        for who, seat in SEAT_OF.items():
            email = f"{'lea' if seat == 's1' else 'leo'}@example.org"
            await it.desk.done("ada", "PATCH", f"{SESSIONS}/{seat}", json={"spec": {"student_email": email}})
            is_guest = who in {"gus", "gil"}
            reach = Reach(email=email, seat=f"uid-{seat}" if is_guest else "")
            made = await it.desk.tokens.make(who, Role.GUEST if is_guest else Role.USER, reach=reach)
            it.desk.secrets[who] = made[0].reveal()
        yield it


def other_seat(who: str) -> str:
    return "s1" if SEAT_OF[who] == "s2" else "s2"


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", SEAT_ROUTES, ids=called)
async def test_no_verb_reaches_the_other_seat(gate: Gateway, route: Route) -> None:
    where = route.path.replace("{file}", "lab.yaml").replace("{port}", "R1_serial")
    for who in LEARNERS:
        for name in (other_seat(who), f"uid-{other_seat(who)}"):
            body: Any = {} if route.method == GET or route.body is None else {"json": {}}
            answer = await gate.desk.ask(who, route.method, where.replace("{id}", name), **body)
            assert answer.status_code in {403, 404, 415, 422}, (who, answer.text)
            assert b"example.org" not in answer.content
            assert b"ada" not in answer.content
    for seat in ("s1", "s2"):
        assert (await gate.desk.done("ada", "GET", f"{SESSIONS}/{seat}"))["status"]["phase"] == "RUNNING"


async def test_lists_and_events_that_were_hold_the_own_seat_alone(gate: Gateway) -> None:
    for who in LEARNERS:
        mine = SEAT_OF[who]
        listed = await gate.desk.done(who, "GET", SESSIONS)
        assert [one["metadata"]["name"] for one in listed["items"]] == [mine]
        events = await gate.desk.done(who, "GET", "/api/events")
        assert {one["name"] for one in events["items"] if "session" in one["type"]} <= {mine}


async def change_both(gate: Gateway, mine: str, other: str) -> None:
    """Change the other seat, then the own one: what comes of the first would come first."""
    for seat in (other, mine):
        await gate.desk.done("ada", "PATCH", f"{SESSIONS}/{seat}", json={"metadata": {"labels": {"seen": "now"}}})


@pytest.mark.parametrize("who", LEARNERS)
@pytest.mark.parametrize("query", ["", "?rows=true", "?snapshot=false"])
async def test_the_stream_tells_of_the_own_seat_alone(gate: Gateway, who: str, query: str) -> None:
    mine, other = SEAT_OF[who], other_seat(who)
    async with asyncio.timeout(SOON), gate.desk.streamed(who, f"/api/events/stream{query}") as answer:
        changed = False
        async for one in told(answer.aiter_lines()):
            text = json.dumps(one.data)
            assert f"uid-{other}" not in text
            assert "example.org" not in text.replace(f"{'lea' if mine == 's1' else 'leo'}@example.org", "")
            if not changed:
                changed = True
                await change_both(gate, mine, other)
            elif f"uid-{mine}" in text and one.type not in {"snapshot", "rows"}:
                return


@pytest.mark.parametrize("who", LEARNERS)
async def test_the_watch_shows_the_own_seat_alone(gate: Gateway, who: str) -> None:
    mine, other = SEAT_OF[who], other_seat(who)
    revision = (await gate.desk.done(who, "GET", SESSIONS))["revision"]
    where = f"/api/watch?kinds=LabletSession&after={revision}"
    async with asyncio.timeout(SOON), gate.desk.streamed(who, where) as answer:
        await change_both(gate, mine, other)
        async for line in answer.aiter_lines():
            assert f"uid-{other}" not in line
            if f"uid-{mine}" in line:
                return


@pytest.mark.parametrize("who", LEARNERS)
async def test_the_gateway_connects_to_the_own_seat_alone(gate: Gateway, who: str) -> None:
    for query in ("", "?look=true"):
        for name in (other_seat(who), f"uid-{other_seat(who)}"):
            with pytest.raises(InvalidStatus) as caught:
                async with gate.open(who, session=name, query=query):
                    pass
            assert caught.value.response.status_code == 404
    async with gate.open(who, session=SEAT_OF[who]) as socket:
        await read_until(socket, b"R1>")
