"""Invitations: a link for one seat, until it is over, revoked, or somebody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import given
from harness.api_world import ROOT, Desk, document, name_of, opened, path, served, shell, stock
from harness.asgi import AsgiTransport
from harness.plane_world import NOW
from lcm.control.access.invitations import MOST_INVITATIONS, invite
from lcm.control.access.sign_in import MOST_BROWSERS
from lcm.control.access.tokens import TOKENS_PREFIX, digest_of
from lcm.control.plane.wire import KEEPALIVE_SECONDS
from lcm.model.base.errors import Refused
from lcm.model.kinds.session import SessionPhase
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import scan_all
from lcm.system.clock import SystemClock

SESSIONS = path("LabletSession")
NAME = name_of("LabletSession")
SEAT = f"{SESSIONS}/{NAME}"
OURS = {"Sec-Fetch-Site": "same-origin", "Origin": "http://desk"}


async def prepare(desk: Desk) -> None:
    """Make the example session one of ines, for lea; and another of hers."""
    await stock(desk, owner="ines")
    await desk.done("ines", "PATCH", SEAT, json={"spec": {"student_email": "lea@example.org"}})
    await desk.done("ines", "POST", SESSIONS, json=document("LabletSession", name="other", owner=""))


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await prepare(desk)
        yield desk


async def invited(desk: Desk, who: str = "ines", seat: str = SEAT, **wish: Any) -> dict[str, Any]:
    made: dict[str, Any] = await desk.done(who, "POST", f"{seat}/invitation", json=wish)
    return made


@asynccontextmanager
async def browser_at(desk: Desk, link: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url="http://desk") as browser:
        assert (await browser.post(link, headers=OURS)).status_code == 303
        yield browser


async def test_whoever_opens_the_link_uses_this_session_and_nothing_else(desk: Desk) -> None:
    link = (await invited(desk))["path"]
    async with browser_at(desk, link) as browser:
        listed = (await browser.get(SESSIONS)).json()["items"]
        assert [one["metadata"]["name"] for one in listed] == [NAME]
        assert (await browser.get(SEAT)).status_code == 200
        assert (await browser.get(f"{SESSIONS}/other")).status_code == 404
        for hidden in ("Reservation", "LabletDefinition", "LabWorker", "LabWorkerPool", "SystemSettings"):
            assert (await browser.get(path(hidden))).status_code == 403
        for where in ("/api/tokens", "/api/calendar", "/api/quotas", "/api/costs/ledger"):
            assert (await browser.get(where)).status_code == 403
        assert (await browser.get("/api/whoami")).json()["role"] == "guest"
    async with browser_at(desk, link):
        pass  # a second device


async def test_only_its_hash_is_stored(desk: Desk) -> None:
    code = (await invited(desk))["path"].partition("code=")[2]
    stored = (await scan_all(desk.store, TOKENS_PREFIX)).entries
    assert TOKENS_PREFIX + digest_of(code) in {one.key for one in stored}
    assert not any(code.encode() in one.value for one in stored)


@pytest.mark.parametrize("who", ["ada", "anna", "bob"])
async def test_nobody_invites_to_what_is_anothers(desk: Desk, who: str) -> None:
    assert (await desk.ask(who, "POST", f"{SEAT}/invitation")).status_code == 404


async def test_a_guest_invites_nobody_and_makes_no_tokens(desk: Desk) -> None:
    desk.secrets["gus"] = (await invited(desk))["path"].partition("code=")[2]
    for where in (f"{SEAT}/invitation", "/api/tokens", "/api/sign-in"):
        assert (await desk.ask("gus", "POST", where)).status_code == 403


async def test_it_ends_with_the_slot_and_the_clean_up_or_sooner(desk: Desk) -> None:
    end = datetime.fromisoformat((await desk.done("ines", "GET", SEAT))["spec"]["timeslot_end"])
    assert datetime.fromisoformat((await invited(desk))["info"]["expires_at"]) == end + timedelta(minutes=10)
    sooner = await invited(desk, expires_in_seconds=3600)
    assert datetime.fromisoformat(sooner["info"]["expires_at"]) == NOW + timedelta(hours=1)
    brief = await desk.done("ines", "POST", "/api/tokens", json={"expires_in_seconds": 60})
    desk.secrets["brief"] = brief["token"]
    bounded = await invited(desk, "brief")
    assert bounded["info"]["expires_at"] == brief["info"]["expires_at"], "no longer than what it was made with"


async def test_it_is_listed_and_revoked_with_the_browsers_that_it_opened(desk: Desk) -> None:
    made = await invited(desk)
    async with browser_at(desk, made["path"]) as browser:
        mine = (await desk.done("ines", "GET", "/api/tokens"))["items"]
        assert made["info"] in mine
        assert made["info"] not in (await desk.done("anna", "GET", "/api/tokens"))["items"]
        assert (await desk.ask("anna", "DELETE", f"/api/tokens/{made['info']['id']}")).status_code == 404
        await desk.done("ines", "DELETE", f"/api/tokens/{made['info']['id']}")
        assert (await browser.get(SEAT)).status_code == 401
        assert (await browser.post(made["path"], headers=OURS)).status_code == 401


async def test_it_is_revoked_with_the_token_that_it_was_made_with(desk: Desk) -> None:
    own = await desk.done("ines", "POST", "/api/tokens")
    desk.secrets["own"] = own["token"]
    async with browser_at(desk, (await invited(desk, "own"))["path"]) as browser:
        await desk.done("ines", "DELETE", f"/api/tokens/{own['info']['id']}")
        assert (await browser.get(SEAT)).status_code == 401


async def test_it_opens_nothing_once_the_seat_is_for_somebody_else(desk: Desk) -> None:
    async with browser_at(desk, (await invited(desk))["path"]) as browser:
        await desk.done("ines", "PATCH", SEAT, json={"spec": {"student_email": "leo@example.org"}})
        assert (await browser.get(SEAT)).status_code == 404
        assert not (await browser.get(SESSIONS)).json()["items"]


async def test_invitations_to_a_seat_and_browsers_that_use_them_are_bounded(desk: Desk) -> None:
    links = [(await invited(desk))["path"] for _ in range(MOST_INVITATIONS)]
    surplus = await desk.ask("ines", "POST", f"{SEAT}/invitation")
    assert (surplus.status_code, surplus.json()["reason"]) == (409, "NoRoom")
    async with httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url="http://desk") as browser:
        opened_at = [(await browser.post(links[n % 10], headers=OURS)).status_code for n in range(MOST_BROWSERS + 1)]
    assert opened_at == [303] * MOST_BROWSERS + [409]


async def test_a_token_that_is_no_invitation_signs_no_browser_in(desk: Desk) -> None:
    for who in ("root", "ines"):
        assert (await desk.ask("", "POST", f"/sign-in?code={desk.secrets[who]}", headers=OURS)).status_code == 401


async def test_ten_thousand_invitations_delay_nobody(desk: Desk) -> None:
    writer = desk.core.writer_for(ROOT)
    for number in range(1000):
        ends = NOW + timedelta(days=1)
        session = given.session(name=f"s{number}", uid=f"uid-{number}", owner="root", timeslot_end=ends)
        for _ in range(MOST_INVITATIONS):
            await invite(desk.tokens, session, writer=writer, made_with=None)
    link = (await invited(desk))["path"]
    async with browser_at(desk, link) as browser:
        assert (await browser.get(SEAT)).status_code == 200


@pytest.mark.parametrize("phase", [SessionPhase.COMPLETED, SessionPhase.TERMINATED])
async def test_nobody_is_invited_to_what_is_over(desk: Desk, phase: SessionPhase) -> None:
    writer = desk.core.writer_for(ROOT)
    for over in (given.session(phase=phase), given.session(timeslot_end=NOW - timedelta(hours=1))):
        with pytest.raises(Refused, match="is over"):
            await invite(desk.tokens, over, writer=writer, made_with=None)


@pytest.mark.parametrize("stream", ["/api/watch?kinds=LabletSession&after=0", "/api/events/stream"])
@pytest.mark.parametrize("way", ["revoked", "expired"])
def test_an_open_stream_of_a_guest_ends_with_the_invitation(stream: str, way: str) -> None:
    async def main() -> None:
        async with opened(clock=VirtualClock()) as desk:
            await prepare(desk)
            made = await invited(desk, expires_in_seconds=300)
            async with browser_at(desk, made["path"]) as browser:
                reading = asyncio.create_task(read_to_end(browser, stream))
                await asyncio.sleep(2 * KEEPALIVE_SECONDS)
                assert not reading.done()
                if way == "revoked":
                    await desk.done("ines", "DELETE", f"/api/tokens/{made['info']['id']}")
                text = await asyncio.wait_for(reading, 400)
            assert NAME in text
            assert "other" not in text

    run(main, start=NOW)


async def read_to_end(browser: httpx.AsyncClient, where: str) -> str:
    async with browser.stream("GET", where, timeout=600) as answer:
        return "\n".join([line async for line in answer.aiter_lines()])


def test_the_command_prints_a_link_that_works(tmp_path: Path) -> None:
    with served() as api:
        api.put(given.session(name=NAME, owner="root", timeslot_end=SystemClock().now() + timedelta(hours=2)))
        link = shell(api, tmp_path).out("invite", NAME).splitlines()[-1]
        assert httpx.post(link, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 303
        assert "invitation" in shell(api, tmp_path).out("token", "list")
