"""Signing in with a browser: a link that works once, cookies out of reach of scripts, and requests that are ours."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.api_world import Desk, document, opened, path, served, shell, stock
from harness.asgi import AsgiTransport
from harness.plane_world import hand_clock
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import SIGN_INS_PREFIX, digest_of
from lcm.model.access.address import TrustedProxies
from lcm.model.access.webhook import parse_networks
from lcm.model.base.errors import Unreachable

SESSIONS = path("LabletSession")
OURS = {"Sec-Fetch-Site": "same-origin", "Origin": "http://desk"}


class Browser:
    """A browser that signed in, or is about to."""

    def __init__(self, desk: Desk, base: str = "http://desk", address: str = "in-memory") -> None:
        self.client = httpx.AsyncClient(transport=AsgiTransport(desk.api, address=address), base_url=base)

    async def confirm(self, link: str, **headers: str) -> httpx.Response:
        """Press the button of the page that a link leads to."""
        site = {"Sec-Fetch-Site": "same-origin", "Origin": str(self.client.base_url).rstrip("/")}
        return await self.client.post(link, headers={**site, **headers})

    def cookie(self, name: str) -> str:
        return next((one.value or "" for one in self.client.cookies.jar if one.name.endswith(name)), "")

    @property
    def ours(self) -> dict[str, str]:
        """What our own pages send with a request that changes something."""
        return {**OURS, "Origin": str(self.client.base_url).rstrip("/"), "X-CSRF-Token": self.cookie("lcm_csrf")}


async def link_of(desk: Desk, who: str) -> str:
    return str((await desk.done(who, "POST", "/api/sign-in"))["path"])


@asynccontextmanager
async def signed_in(desk: Desk, who: str = "ada", base: str = "http://desk") -> AsyncIterator[Browser]:
    browser = Browser(desk, base)
    async with browser.client:
        assert (await browser.confirm(await link_of(desk, who))).status_code == 303
        yield browser


async def test_a_link_is_exchanged_for_cookies_and_shows_nothing() -> None:
    async with opened() as desk:
        link = await link_of(desk, "ada")
        answer = await Browser(desk).confirm(link)
        assert (answer.status_code, answer.headers["location"], answer.content) == (303, "/", b"")
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        session, csrf = answer.headers.get_list("set-cookie")
        assert session.startswith("lcm_session=")
        assert csrf.startswith("lcm_csrf=")
        assert "; Path=/; Max-Age=43200; SameSite=Strict" in session
        assert "HttpOnly" in session
        assert "HttpOnly" not in csrf
        assert "SameSite=Strict" in csrf
        assert "Secure" not in session + csrf


@pytest.mark.parametrize(
    ("base", "more"),
    [
        ("https://desk", {}),
        ("http://desk", {"X-Forwarded-Proto": "https", "Origin": "https://desk"}),
        ("http://desk", {"Forwarded": "for=192.0.2.1;proto=https", "Origin": "https://desk"}),
    ],
)
async def test_over_https_the_cookies_are_for_https_and_this_host_alone(base: str, more: dict[str, str]) -> None:
    proxies = TrustedProxies(parse_networks(["10.0.0.0/8"]), rfc7239="Forwarded" in more)
    async with opened(proxies=proxies) as desk:
        browser = Browser(desk, base, "10.0.0.1")
        answer = await browser.confirm(await link_of(desk, "ada"), **more)
        for line in answer.headers.get_list("set-cookie"):
            assert line.startswith("__Host-lcm_")
            assert "; Secure" in line
        jar: SimpleCookie = SimpleCookie()
        for line in answer.headers.get_list("set-cookie"):
            jar.load(line)
        sent = {"Cookie": "; ".join(f"{one.key}={one.value}" for one in jar.values()), **more}
        assert (await Browser(desk, base, "10.0.0.1").client.get("/api/whoami", headers=sent)).json()["name"] == "ada"
        plain = {"Cookie": sent["Cookie"].replace("__Host-", ""), **more}
        assert (await Browser(desk, base, "10.0.0.1").client.get("/api/whoami", headers=plain)).status_code == 401


async def test_a_proxy_that_nobody_trusts_says_nothing_about_encryption() -> None:
    async with opened() as desk:
        answer = await Browser(desk).confirm(await link_of(desk, "ada"), **{"X-Forwarded-Proto": "https"})
        assert not any("Secure" in line for line in answer.headers.get_list("set-cookie"))
        assert "strict-transport-security" not in answer.headers


async def test_a_link_works_once_whoever_comes_first() -> None:
    async with opened() as desk:
        link = await link_of(desk, "ada")
        answers = await asyncio.gather(*(Browser(desk).confirm(link) for _ in range(5)))
        assert sorted(one.status_code for one in answers) == [303, 401, 401, 401, 401]
        again = await Browser(desk).confirm(link)
        assert (again.status_code, again.headers["referrer-policy"]) == (401, "no-referrer")
        assert "set-cookie" not in again.headers
        assert "lcm sign-in" in again.json()["detail"]
        sessions = [one for one in await desk.tokens.list() if one.session]
        assert [one.name for one in sessions] == ["ada"]


async def test_a_link_ends_after_ten_minutes() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        early, late = await link_of(desk, "ada"), await link_of(desk, "ada")
        clock.step(minutes=10, seconds=-1)
        assert (await Browser(desk).confirm(early)).status_code == 303
        clock.step(seconds=1)
        assert (await Browser(desk).confirm(late)).status_code == 401


async def test_one_person_has_so_many_links_and_sessions_and_no_more() -> None:
    """A user made as many links as requests were allowed, and a session that lasts half a day of each."""
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        links = [await link_of(desk, "ada") for _ in range(20)]
        more = await desk.ask("ada", "POST", "/api/sign-in")
        assert (more.status_code, more.json()["reason"]) == (409, "NoRoom")
        assert "ada has 20 sign-in links" in more.json()["detail"]
        await link_of(desk, "bob")
        clock.step(minutes=10)
        for link in [await link_of(desk, "ada") for _ in range(20)]:
            assert (await Browser(desk).confirm(link)).status_code == 303
        assert (await Browser(desk).confirm(links[0])).status_code == 401
        for _ in range(79):
            await desk.done("ada", "POST", "/api/tokens", json={"role": "user"})
        full = await desk.ask("ada", "POST", "/api/sign-in")
        assert (full.status_code, full.json()["detail"]) == (409, "ada has 100 tokens; revoke one first")


@pytest.mark.parametrize("code", ["x" * 201, "", "lcm_nobodys", "a&code=b"])
async def test_what_is_no_code_is_no_way_in(code: str) -> None:
    async with opened() as desk:
        assert (await Browser(desk).confirm(f"/sign-in?code={code}")).status_code in {401, 422}


async def test_opening_a_link_changes_nothing_and_shows_a_page_that_asks() -> None:
    async with opened() as desk:
        link, before = await link_of(desk, "ada"), await desk.revision()
        page = await Browser(desk).client.get(link, headers={"Sec-Fetch-Site": "cross-site"})
        assert (page.status_code, "set-cookie" in page.headers) == (200, False)
        assert '<form method="post">' in page.text
        assert link.partition("code=")[2] not in page.text
        assert page.headers["content-security-policy"] == (
            "default-src 'none'; form-action 'self'; frame-ancestors 'none'"
        )
        assert page.headers["referrer-policy"] == "same-origin", "else a browser says that its origin is null"
        assert (await Browser(desk).client.head(link)).status_code == 200
        assert await desk.revision() == before
        assert (await Browser(desk).confirm(link)).status_code == 303


@pytest.mark.parametrize("more", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_a_page_of_others_signs_nobody_in(more: dict[str, str]) -> None:
    async with opened() as desk:
        link = await link_of(desk, "ada")
        assert (await Browser(desk).confirm(link, **more)).status_code == 403
        assert (await Browser(desk).confirm(link)).status_code == 303


async def test_a_code_is_stored_as_its_hash() -> None:
    async with opened() as desk:
        code = (await link_of(desk, "ada")).partition("code=")[2]
        entries = (await desk.store.scan("")).entries
        assert not any(code.encode() in entry.key.encode() + entry.value for entry in entries)
        assert SIGN_INS_PREFIX + digest_of(code) in {entry.key for entry in entries}


async def test_a_session_is_its_makers_reads_and_ends_after_twelve_hours() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk, signed_in(desk, "otto") as browser:
        assert (await browser.client.get("/api/whoami")).json() == {"name": "otto", "role": "operator"}
        assert (await browser.client.get("/api/workers")).status_code == 200
        assert (await browser.client.get("/api/audit")).status_code == 403
        session = next(one for one in (await desk.done("otto", "GET", "/api/tokens"))["items"] if one["session"])
        assert session["name"] == "otto"
        clock.step(hours=12, seconds=-1)
        assert (await browser.client.get("/api/whoami")).status_code == 200
        clock.step(seconds=1)
        assert (await browser.client.get("/api/whoami")).status_code == 401


async def test_a_revoked_session_is_over_at_once() -> None:
    async with opened() as desk, signed_in(desk) as browser:
        session = next(one for one in await desk.tokens.list() if one.session)
        await desk.done("root", "DELETE", f"/api/tokens/{session.id}")
        assert (await browser.client.get("/api/whoami")).status_code == 401


async def test_our_own_pages_change_things() -> None:
    async with opened() as desk, signed_in(desk) as browser:
        await stock(desk)
        wanted = document("LabletSession", name="mine")
        answer = await browser.client.post(SESSIONS, json=wanted, headers=browser.ours)
        assert (answer.status_code, answer.json()["spec"]["owner"]) == (201, "ada")


WITHOUT: dict[str, dict[str, str | None]] = {
    "no header at all": {"X-CSRF-Token": None, "Origin": None, "Sec-Fetch-Site": None},
    "no token": {"X-CSRF-Token": None},
    "a wrong token": {"X-CSRF-Token": "0" * 64},
    "an empty token": {"X-CSRF-Token": ""},
    "no origin": {"Origin": None, "Sec-Fetch-Site": None},
    "another site": {"Sec-Fetch-Site": "cross-site", "Origin": None},
    "another port of this host": {"Sec-Fetch-Site": "same-site", "Origin": "http://desk:9999"},
    "another origin": {"Sec-Fetch-Site": None, "Origin": "http://evil.example.org"},
    "an origin that begins like ours": {"Sec-Fetch-Site": None, "Origin": "http://desk.evil.example.org"},
    "an origin that nobody knows": {"Sec-Fetch-Site": None, "Origin": "null"},
    "an origin that contradicts": {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example.org"},
}


@pytest.mark.parametrize("case", WITHOUT)
async def test_what_others_make_a_browser_send_changes_nothing(case: str) -> None:
    async with opened() as desk, signed_in(desk) as browser:
        await stock(desk)
        merged: dict[str, Any] = {**browser.ours, **WITHOUT[case]}
        headers = {name: value for name, value in merged.items() if value is not None}
        before = await desk.revision()
        for method, where in (("POST", SESSIONS), ("DELETE", f"{SESSIONS}/ada-monday"), ("POST", "/api/sign-out")):
            answer = await browser.client.request(method, where, json={}, headers=headers)
            assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden"), (method, case)
        assert await desk.revision() == before
        assert (await browser.client.get("/api/whoami", headers=headers)).status_code == 200


@pytest.mark.parametrize("keep", ["Origin", "Sec-Fetch-Site"])
async def test_one_of_the_two_headers_is_enough(keep: str) -> None:
    async with opened() as desk, signed_in(desk) as browser:
        headers = {keep: OURS[keep], "X-CSRF-Token": browser.cookie("lcm_csrf")}
        assert (await browser.client.post("/api/sign-out", headers=headers)).status_code == 204


async def test_the_token_of_another_session_is_not_ours() -> None:
    async with opened() as desk, signed_in(desk) as browser, signed_in(desk, "bob") as other:
        csrf = other.cookie("lcm_csrf")
        sent = {**browser.ours, "X-CSRF-Token": csrf, "Cookie": f"lcm_session={browser.cookie('lcm_session')}"}
        browser.client.cookies.clear()
        for planted in ("", f"; lcm_csrf={csrf}"):
            headers = sent | {"Cookie": sent["Cookie"] + planted}
            assert (await browser.client.post("/api/sign-out", headers=headers)).status_code == 403


async def test_signing_out_ends_the_session_and_takes_the_cookies() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk, signed_in(desk) as browser:
        clock.step(seconds=1)
        kept = {"Cookie": f"lcm_session={browser.cookie('lcm_session')}"}
        answer = await browser.client.post("/api/sign-out", headers=browser.ours)
        assert answer.status_code == 204
        assert all("Max-Age=0" in line for line in answer.headers.get_list("set-cookie"))
        assert not list(browser.client.cookies.jar)
        assert (await desk.ask("", "GET", "/api/whoami", headers=kept)).status_code == 401
        verbs = [one["deeds"][0]["verb"] for one in (await desk.done("root", "GET", "/api/audit?who=ada"))["items"]]
        assert sorted(verbs[:2]) == ["create", "sign-in"]
        assert verbs[2:] == ["sign-out"]


async def test_a_bearer_needs_no_proof_and_does_not_sign_out() -> None:
    async with opened() as desk:
        assert (await desk.ask("ada", "POST", "/api/tokens")).status_code == 201
        answer = await desk.ask("ada", "POST", "/api/sign-out")
        assert (answer.status_code, answer.json()["reason"]) == (409, "Refused")


async def test_cookies_and_bearers_do_not_stand_in_for_each_other() -> None:
    async with opened() as desk, signed_in(desk) as browser:
        session = browser.cookie("lcm_session")
        as_bearer = await desk.ask("", "GET", "/api/whoami", headers={"Authorization": f"Bearer {session}"})
        assert as_bearer.status_code == 401
        as_cookie = await desk.ask("", "GET", "/api/whoami", headers={"Cookie": f"lcm_session={desk.secrets['ada']}"})
        assert as_cookie.status_code == 401
        worse = await browser.client.get("/api/whoami", headers={"Authorization": "Bearer nobody"})
        assert worse.status_code == 401
        twice = {"Cookie": f"lcm_session=planted; lcm_session={session}"}
        assert (await desk.ask("", "GET", "/api/whoami", headers=twice)).status_code == 401


async def test_services_and_strangers_get_no_link() -> None:
    async with opened() as desk:
        assert (await desk.ask("service", "POST", "/api/sign-in")).status_code == 403
        assert (await desk.ask("", "POST", "/api/sign-in")).status_code == 401


async def test_a_store_that_is_away_is_no_bad_link() -> None:
    async with opened() as desk:
        link = await link_of(desk, "ada")

        class Away:
            async def get(self, _: str) -> None:
                raise Unreachable("the store is away")

        desk.api._shared.sign_ins = SignIns(Away(), desk.tokens, clock=hand_clock())  # type: ignore[arg-type]
        assert (await Browser(desk).confirm(link)).status_code == 503


def test_the_command_line_prints_a_link_that_works(tmp_path: Path) -> None:
    with served() as api:
        link = shell(api, tmp_path, "ada").out("sign-in").splitlines()[-1]  # the API logs to the same place here
        assert link.startswith(f"{api.url}/sign-in?code=")
        with httpx.Client(trust_env=False) as browser:
            assert browser.post(link, headers={"Origin": api.url}).status_code == 303
            assert browser.get(f"{api.url}/api/whoami").json() == {"name": "ada", "role": "user"}
            ours = {"X-CSRF-Token": browser.cookies["lcm_csrf"], "Origin": api.url}
            assert browser.post(f"{api.url}/api/sign-out", headers=ours).status_code == 204
            assert browser.get(f"{api.url}/api/whoami").status_code == 401
