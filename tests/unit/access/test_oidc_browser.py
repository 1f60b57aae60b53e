"""Signing in at a provider with a browser: what comes of it, and everything that must not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from harness.api_world import Desk, opened
from harness.asgi import AsgiTransport
from harness.credentials import OTHER_RSA, P256
from harness.plane_world import LIMITS
from harness.provider import CLIENT_ID, Provider, huge, run_provider, slow
from harness.stores import FallibleStore, HandClock
from lcm.api.http.limits import ApiLimits
from lcm.api.routes.oidc import CALLBACK_PATH, SIGN_IN_OIDC_PATH
from lcm.compose.api import make_browser_sign_in, make_verifier
from lcm.control.access.oidc import IssuerTrust, Verifier
from lcm.control.access.oidc_browser import BrowserSignIn, ProviderClient
from lcm.control.access.oidc_keys import HttpFetch
from lcm.control.access.tokens import USED_SIGN_INS_PREFIX
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Unreachable
from lcm.settings.load import load_settings
from lcm.store.base import Store, scan_all

SITE = {"Sec-Fetch-Site": "same-origin", "Origin": "http://desk"}


class Visit:
    """A browser, a provider and an API."""

    def __init__(self, desk: Desk, provider: Provider, clock: HandClock, base: str) -> None:
        self.desk, self.provider, self.clock = desk, provider, clock
        self.browser = httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url=base)

    async def begin(self, path: str = "/sessions?phase=RUNNING") -> dict[str, str]:
        """Begin to sign in, and return what the provider is asked."""
        answer = await self.browser.get(SIGN_IN_OIDC_PATH, params={"path": path})
        assert answer.status_code == 303, answer.text
        url = urlsplit(answer.headers["location"])
        assert f"{url.scheme}://{url.netloc}{url.path}" == f"{self.provider.url}/authorize", url
        return dict(parse_qsl(url.query))

    async def come_back(self, url: str) -> httpx.Response:
        assert url.startswith(f"{self.browser.base_url}".rstrip("/") + CALLBACK_PATH)
        return await self.browser.get(url)

    async def sign_in(self, who: str = "ada") -> httpx.Response:
        return await self.come_back(self.provider.sign_in(await self.begin(), who))

    async def whoami(self) -> Any:
        return (await self.browser.get("/api/whoami")).json()


@asynccontextmanager
async def visit(
    provider: Provider,
    *,
    base: str = "http://desk",
    seconds: float = 5.0,
    limits: ApiLimits = LIMITS,
    store: Store | None = None,
    **client: Any,
) -> AsyncIterator[Visit]:
    clock = HandClock()
    provider.now = clock.now
    fetch = HttpFetch(limit_seconds=seconds)
    trust = IssuerTrust(issuer=provider.url, audiences=frozenset({"lcm"}))
    verifier = Verifier(trust, fetch=fetch, clock=clock)
    known = ProviderClient(issuer=provider.url, client_id=CLIENT_ID, **client)
    browser = BrowserSignIn(known, verifier, fetch=fetch, clock=clock)
    async with opened(store=store, clock=clock, limits=limits, verifier=verifier, provider=browser) as desk:
        it = Visit(desk, provider, clock, base)
        async with it.browser:
            yield it


@pytest.fixture
def provider() -> Iterator[Provider]:
    with run_provider() as it:
        yield it


def reason_of(answer: httpx.Response) -> str:
    """Return what the sign-in page is told."""
    assert answer.status_code == 303, answer.text
    where = urlsplit(answer.headers["location"])
    assert (where.scheme, where.netloc, where.path) == ("", "", "/"), where
    assert not any("lcm_session" in line for line in answer.headers.get_list("set-cookie"))
    return dict(parse_qsl(where.query))["sign_in"]


@pytest.mark.parametrize("key", [None, P256], ids=["RS256", "ES256"])
async def test_who_signs_in_at_the_provider_has_a_session_like_any_other(provider: Provider, key: Any) -> None:
    provider.key = key or provider.key
    async with visit(provider) as it:
        ways = (await it.browser.get("/api/sign-in/ways")).json()
        assert ways == {"link": True, "provider": {"name": "127.0.0.1", "path": SIGN_IN_OIDC_PATH}}
        answer = await it.sign_in()
        assert (answer.status_code, answer.headers["location"]) == (303, "/sessions?phase=RUNNING")
        session, csrf, pending = answer.headers.get_list("set-cookie")
        assert session.startswith("lcm_session=")
        assert "; Max-Age=3660; SameSite=Strict; HttpOnly" in session  # an hour, and the leeway of the token
        assert csrf.startswith("lcm_csrf=")
        assert pending.startswith("lcm_sign_in=; Path=/; Max-Age=0; SameSite=Lax; HttpOnly")
        assert await it.whoami() == {"name": "ada@example.org", "role": "operator"}
        ours = {**SITE, "X-CSRF-Token": it.browser.cookies["lcm_csrf"]}
        done = await it.browser.post("/api/sign-out", headers=ours)
        assert (done.status_code, "location" in done.headers) == (204, False)
        assert (await it.browser.get("/api/whoami")).status_code == 401
        audit = await it.desk.done("root", "GET", "/api/audit?who=ada@example.org")
        assert sorted(deed["verb"] for one in audit["items"] for deed in one["deeds"]) == ["sign-in", "sign-out"]


async def test_the_cookie_on_the_way_is_sealed_lax_and_short_lived_and_for_https_only_there(provider: Provider) -> None:
    async with visit(provider, base="https://desk") as it:
        answer = await it.browser.get(SIGN_IN_OIDC_PATH)
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-lcm_sign_in=sealed:")
        assert cookie.endswith("; Path=/; Max-Age=600; SameSite=Lax; HttpOnly; Secure")
        asked = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
        assert asked["redirect_uri"] == f"https://desk{CALLBACK_PATH}"
        assert not [text for text in (asked["state"], asked["nonce"]) if text in cookie]
        assert (await it.come_back(provider.sign_in(asked, "bob"))).headers["location"] == "/"
        assert await it.whoami() == {"name": "bob@example.org", "role": "user"}


async def test_the_session_ends_with_the_token_and_later_only_if_the_settings_say_so(provider: Provider) -> None:
    provider.claims = {"exp": int(HandClock().now().timestamp()) + 120}
    async with visit(provider) as it:
        await it.sign_in()
        it.clock.step(seconds=179)
        assert (await it.whoami())["name"] == "ada@example.org"
        it.clock.step(seconds=1)
        assert (await it.browser.get("/api/whoami")).status_code == 401


async def test_another_s_answer_and_an_answer_to_nothing_are_refused(provider: Provider) -> None:
    async with visit(provider) as it, visit(provider) as other:
        url = provider.sign_in(await other.begin(), "ada")
        assert reason_of(await it.come_back(url)) == "unfinished"  # no sign-in was begun here
        asked = await it.begin()
        assert reason_of(await it.come_back(url)) == "unfinished"  # another one was
        assert reason_of(await it.browser.get(f"{CALLBACK_PATH}?code=x&state=y&state=y")) == "unfinished"
        assert "/token" not in provider.asked
        done = await it.come_back(provider.sign_in(asked, "ada"))
        assert done.headers["location"].startswith("/sessions"), "what was begun here is not disturbed"


async def test_a_sign_in_works_once_even_if_the_provider_would_repeat_it(provider: Provider) -> None:
    async with visit(provider) as it:
        asked = await it.begin()
        kept = dict(it.browser.cookies)
        assert (await it.come_back(provider.sign_in(asked, "ada"))).headers["location"].startswith("/sessions")
        it.browser.cookies.update(kept)
        assert reason_of(await it.come_back(provider.sign_in(asked, "ada"))) == "used"
        uses = (await scan_all(it.desk.store, USED_SIGN_INS_PREFIX)).entries
        assert len(uses) == 1
        it.clock.step(minutes=11)
        await Housekeeping(it.desk.store, clock=it.clock).tidy()
        assert not (await scan_all(it.desk.store, USED_SIGN_INS_PREFIX)).entries


async def test_a_code_that_was_used_is_refused_by_the_provider(provider: Provider) -> None:
    async with visit(provider) as it:
        url = provider.sign_in(await it.begin(), "ada")
        kept = dict(it.browser.cookies)
        await it.come_back(url)
        it.browser.cookies.update(kept)
        assert reason_of(await it.come_back(url)) == "used"


async def test_who_takes_too_long_begins_again(provider: Provider) -> None:
    async with visit(provider) as it:
        asked = await it.begin()
        it.clock.step(seconds=timedelta(minutes=10).total_seconds())
        assert reason_of(await it.come_back(provider.sign_in(asked, "ada"))) == "unfinished"


FAULTS: dict[str, tuple[Callable[[Provider], object], str]] = {
    "another nonce": (lambda it: it.claims.update(nonce="other"), "identity"),
    "another audience": (lambda it: it.claims.update(aud="somebody-else"), "identity"),
    "the audience of programs": (lambda it: it.claims.update(aud="lcm"), "identity"),
    "shared with another": (lambda it: it.claims.update(aud=[CLIENT_ID, "other"]), "identity"),
    "meant for another party": (lambda it: it.claims.update(azp="other"), "identity"),
    "expired": (lambda it: it.claims.update(exp=int(it.now().timestamp()) - 61), "identity"),
    "another issuer in the token": (lambda it: it.claims.update(iss="https://evil.example.org"), "identity"),
    "a key that it does not have": (lambda it: setattr(it, "key", OTHER_RSA), "identity"),
    "another issuer in the answer": (lambda it: it.answer.update(iss="https://evil.example.org"), "identity"),
    "no issuer in the answer": (lambda it: it.answer.update(iss=""), "identity"),
    "no role": (lambda it: it.claims.update(roles=["guest"]), "no-role"),
    "an address that nobody verified": (lambda it: it.claims.update(email_verified=False), "no-name"),
    "no code": (lambda it: it.answer.update(code=""), "provider"),
    "a code without end": (lambda it: it.answer.update(code="x" * 5000), "provider"),
    "an error of its own": (lambda it: it.answer.update(error="server_error"), "provider"),
    "an error made up": (lambda it: it.answer.update(error="<script>"), "provider"),
    "no id token": (lambda it: it.broken.update({"/token": lambda: (200, b"{}")}), "setup"),
    "an answer that is no JSON": (lambda it: it.broken.update({"/token": lambda: (200, b"<html>")}), "provider"),
    "a broken token endpoint": (lambda it: it.broken.update({"/token": lambda: (500, b"{}")}), "unreachable"),
    "a slow token endpoint": (lambda it: it.broken.update({"/token": slow}), "unreachable"),
    "a huge answer": (lambda it: it.broken.update({"/token": huge}), "unreachable"),
    "keys that cannot be read": (lambda it: it.broken.update({"/jwks": lambda: (500, b"")}), "unreachable"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_does_not_prove_who_it_is_begins_no_session(provider: Provider, fault: str) -> None:
    break_it, want = FAULTS[fault]
    async with visit(provider, seconds=0.5) as it:
        asked = await it.begin()
        break_it(provider)
        assert reason_of(await it.come_back(provider.sign_in(asked, "ada"))) == want
        assert not [one for one in await it.desk.tokens.list() if one.session]


async def test_failures_of_others_and_foreign_links_do_not_use_up_what_an_address_has(provider: Provider) -> None:
    async with visit(provider, limits=replace(LIMITS, failures_per_minute=1, failure_burst=3)) as it:
        for _ in range(5):
            assert reason_of(await it.browser.get(f"{CALLBACK_PATH}?code=x&state=y")) == "unfinished"
        provider.broken["/token"] = lambda: (500, b"{}")
        for _ in range(5):
            assert reason_of(await it.sign_in()) == "unreachable"
        provider.broken.clear()
        assert (await it.browser.get("/api/whoami", headers={"Authorization": "Bearer lcm_wrong"})).status_code == 401
        provider.claims.update(nonce="other")
        told = {reason_of(await it.sign_in()) for _ in range(5)}
        assert told == {"identity", "busy"}, "who brings another's identity is limited, and led to the page"
        answer = await it.browser.get("/api/whoami", headers={"Authorization": "Bearer lcm_wrong"})
        assert answer.status_code == 429


async def test_whoever_comes_back_from_nowhere_again_and_again_is_logged_once(provider: Provider) -> None:
    async with visit(provider) as it:
        with capture_logs() as logs:
            for _ in range(20):
                assert reason_of(await it.browser.get(f"{CALLBACK_PATH}?code=x&state=y")) == "unfinished"
    assert [(line["route"], line["reason"]) for line in logs] == [(CALLBACK_PATH, "unfinished")]


async def test_codes_that_one_address_brings_back_are_asked_about_within_bounds(provider: Provider) -> None:
    asked = 0

    def refuse() -> tuple[int, bytes]:
        nonlocal asked
        asked += 1
        return 400, b'{"error": "invalid_grant"}'

    provider.broken["/token"] = refuse
    async with visit(provider, limits=replace(LIMITS, exchanges_per_second=0.01, exchange_burst=3)) as it:
        for _ in range(5):
            assert reason_of(await it.browser.get(f"{CALLBACK_PATH}?code=x&state=y")) == "unfinished"
        told = [reason_of(await it.sign_in()) for _ in range(5)]
        assert (told, asked) == (["used"] * 3 + ["busy"] * 2, 3)


async def test_a_browser_that_names_no_host_is_led_to_the_page_unless_the_settings_name_it(provider: Provider) -> None:
    nowhere = {"Host": "no host"}
    async with visit(provider) as it:
        assert reason_of(await it.browser.get(SIGN_IN_OIDC_PATH, headers=nowhere)) == "setup"
    async with visit(provider, redirect_url=f"https://lcm.example.org{CALLBACK_PATH}", ends_session=True) as it:
        answer = await it.browser.get(SIGN_IN_OIDC_PATH, headers=nowhere)
        asked = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
        assert asked["redirect_uri"] == f"https://lcm.example.org{CALLBACK_PATH}"
        back = provider.sign_in(asked, "ada").replace("https://lcm.example.org", "http://desk")
        assert (await it.come_back(back)).headers["location"] == "/"
        ours = {**SITE, "X-CSRF-Token": it.browser.cookies["lcm_csrf"]}
        where = (await it.browser.post("/api/sign-out", headers=ours)).headers["location"]
        asked = dict(parse_qsl(urlsplit(where).query))
        assert asked["post_logout_redirect_uri"] == "https://lcm.example.org/"


async def test_a_store_that_does_not_answer_leads_to_the_page(provider: Provider) -> None:
    store = FallibleStore()
    async with visit(provider, store=store) as it:
        url = provider.sign_in(await it.begin(), "ada")
        store.down = Unreachable("the store does not answer")
        try:
            assert reason_of(await it.come_back(url)) == "busy"
        finally:
            store.down = None


async def test_the_session_is_over_before_the_provider_is_asked_where_to_sign_out(provider: Provider) -> None:
    async with visit(provider, ends_session=True) as it:
        await it.sign_in()
        kept = {"Cookie": f"lcm_session={it.browser.cookies['lcm_session']}"}
        ours = {**SITE, "X-CSRF-Token": it.browser.cookies["lcm_csrf"]}
        it.clock.step(minutes=11)
        provider.broken["/.well-known/openid-configuration"] = slow
        leaving = asyncio.create_task(it.browser.post("/api/sign-out", headers=ours))
        async with asyncio.timeout(5), httpx.AsyncClient(transport=AsgiTransport(it.desk.api)) as other:
            while (await other.get("http://desk/api/whoami", headers=kept)).status_code != 401:
                assert not leaving.done()
                await asyncio.sleep(0.01)
        assert not leaving.done()
        assert (await leaving).status_code == 204


async def test_who_declines_is_told_so_in_our_words(provider: Provider) -> None:
    async with visit(provider) as it:
        assert reason_of(await it.sign_in("")) == "denied"


@pytest.mark.parametrize(
    ("path", "answer", "want"),
    [
        ("/.well-known/openid-configuration", slow, "unreachable"),
        ("/.well-known/openid-configuration", huge, "unreachable"),
        ("/.well-known/openid-configuration", lambda: (200, b'{"issuer": "https://evil.example.org"}'), "setup"),
        ("/.well-known/openid-configuration", lambda: (404, b""), "unreachable"),
    ],
)
async def test_a_provider_that_cannot_be_asked_is_said_so_and_asked_seldom(
    provider: Provider, path: str, answer: Callable[[], tuple[int, bytes]], want: str
) -> None:
    provider.broken[path] = answer
    async with visit(provider, seconds=0.3) as it:
        for _ in range(3):
            assert reason_of(await it.browser.get(SIGN_IN_OIDC_PATH)) == want
        assert provider.asked == [path]
        provider.broken.clear()
        it.clock.step(seconds=5)
        await it.begin()


@pytest.mark.parametrize("url", ["http://evil.example.org/authorize", "javascript:alert(1)", None])
async def test_browsers_are_sent_to_addresses_that_can_be_trusted_only(provider: Provider, url: str | None) -> None:
    provider.discovery["authorization_endpoint"] = url
    async with visit(provider) as it:
        assert reason_of(await it.browser.get(SIGN_IN_OIDC_PATH)) == "setup"


@pytest.mark.parametrize(
    "path",
    ["/\n", "https://evil.example.org", "//evil.example.org", "/\\evil.example.org", "\\\\evil", "/a\r\nX: y", "/ä"],
)
async def test_a_sign_in_leads_to_our_own_pages_only(provider: Provider, path: str) -> None:
    async with visit(provider) as it:
        answer = await it.browser.get(f"{SIGN_IN_OIDC_PATH}?{urlencode({'path': path})}")
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid")
        assert "location" not in answer.headers


@pytest.mark.parametrize("place", ["header", "form"])
async def test_the_client_s_secret_is_sent_as_the_provider_wants_it(provider: Provider, place: str) -> None:
    provider.client_secret, provider.secret_in_form = "a%b:c ä", place == "form"
    async with visit(provider, client_secret=Secret("a%b:c ä")) as it:
        assert (await it.sign_in()).headers["location"].startswith("/sessions")
    async with visit(provider, client_secret=Secret("wrong")) as it:
        assert reason_of(await it.sign_in()) == "setup"


async def test_signing_out_leads_to_the_provider_only_if_wished_and_if_one_came_from_there(provider: Provider) -> None:
    async with visit(provider, ends_session=True) as it:
        await it.sign_in()
        ours = {**SITE, "X-CSRF-Token": it.browser.cookies["lcm_csrf"]}
        where = (await it.browser.post("/api/sign-out", headers=ours)).headers["location"]
        assert where.startswith(f"{provider.url}/end?")
        assert dict(parse_qsl(urlsplit(where).query)) == {
            "client_id": CLIENT_ID,
            "post_logout_redirect_uri": "http://desk/",
        }
        link = (await it.desk.done("ada", "POST", "/api/sign-in"))["path"]
        await it.browser.post(link, headers=SITE)
        ours = {**SITE, "X-CSRF-Token": it.browser.cookies["lcm_csrf"]}
        assert "location" not in (await it.browser.post("/api/sign-out", headers=ours)).headers


async def test_without_a_provider_there_is_only_the_link() -> None:
    async with opened() as desk:
        assert await desk.done("", "GET", "/api/sign-in/ways") == {"link": True, "provider": None}
        assert reason_of(await desk.ask("", "GET", SIGN_IN_OIDC_PATH)) == "setup"
        assert reason_of(await desk.ask("", "GET", f"{CALLBACK_PATH}?code=1&state=2")) == "setup"


def test_settings_name_a_client_completely_or_not_at_all() -> None:
    issuer = {"OIDC_ISSUER": "https://login.example.org", "OIDC_AUDIENCE": "lcm"}
    settings = load_settings({**issuer, "OIDC_CLIENT_ID": "pages", "OIDC_SCOPES": "email,groups"})
    made = make_browser_sign_in(settings, make_verifier(settings))
    assert made is not None
    assert (made.client.label, made.client.scopes) == ("login.example.org", ("email", "groups"))
    assert make_browser_sign_in(load_settings(issuer), make_verifier(load_settings(issuer))) is None
    for wrong in ({"OIDC_CLIENT_ID": "pages"}, {**issuer, "OIDC_CLIENT_SECRET": "hush"}):
        with pytest.raises(Invalid, match="OIDC_CLIENT"):
            load_settings(wrong)
