"""Sign-ins that fail: limited by address, told to the log, and no harm to those who are let in."""

import asyncio

import pytest
from structlog.testing import capture_logs

from harness.api_world import Desk, opened
from harness.credentials import OTHER_RSA, RSA, Issuer
from harness.plane_world import NOW
from lcm.api.http.limits import ApiLimits, SignInFailures
from lcm.api.http.problems import UNAUTHORIZED
from lcm.sim.time.loop import run

TIGHT = ApiLimits(requests_per_second=1e9, burst=10**9, failures_per_minute=6, failure_burst=3)
WHOAMI = "/api/whoami"
BAD = {"Authorization": "Bearer lcm_guessed"}


async def tried(desk: Desk, count: int, path: str = WHOAMI, headers: dict[str, str] | None = None) -> list[int]:
    return [(await desk.ask("", "GET", path, headers=headers or {})).status_code for _ in range(count)]


def test_a_guesser_is_told_when_to_come_back_and_others_are_let_in() -> None:
    async def main() -> None:
        async with opened(limits=TIGHT) as desk:
            assert await tried(desk, 5, headers=BAD) == [401, 401, 401, 429, 429]
            answer = await desk.ask("", "GET", WHOAMI, headers=BAD)
            assert answer.json()["reason"] == "RateLimited"
            assert answer.json()["retry_after_seconds"] == pytest.approx(10, abs=0.1)
            assert answer.headers["retry-after"] == "10"
            assert (await desk.ask("ada", "GET", WHOAMI)).status_code == 200
            assert await tried(desk, 2) == [401, 401]
            await asyncio.sleep(10)
            assert await tried(desk, 2, headers=BAD) == [401, 429]

    run(main, start=NOW)


@pytest.mark.parametrize("headers", [{"X-API-Key": "guessed"}, {"Cookie": "lcm_session=guessed"}])
def test_every_way_to_guess_counts(headers: dict[str, str]) -> None:
    async def main() -> None:
        async with opened(limits=TIGHT) as desk:
            assert (await tried(desk, 4, headers=headers))[:3] == [401, 401, 401]
            assert await tried(desk, 1, headers=BAD) == [429]

    run(main, start=NOW)


async def test_the_pages_of_a_class_all_hear_in_the_morning_that_their_sessions_are_over() -> None:
    async with opened(limits=TIGHT) as desk:
        assert await tried(desk, 30, headers={"Cookie": "lcm_session=of_yesterday"}) == [401] * 30


def test_codes_of_links_count_too_and_a_good_one_works_whatever_others_tried() -> None:
    async def main() -> None:
        async with opened(limits=TIGHT) as desk:
            link = (await desk.done("ada", "POST", "/api/sign-in"))["path"]
            site = {"Origin": "http://desk"}
            guesses = [await desk.ask("", "POST", "/sign-in?code=guessed", headers=site) for _ in range(4)]
            assert [one.status_code for one in guesses] == [401, 401, 401, 429]
            assert (await desk.ask("", "POST", link, headers=site)).status_code == 303

    run(main, start=NOW)


async def test_an_issuers_good_token_is_accepted_whatever_others_at_its_address_present() -> None:
    issuer = Issuer(RSA)
    async with opened(clock=issuer.clock, verifier=issuer.verifier(), limits=TIGHT) as desk:
        good = {"Authorization": f"Bearer {issuer.token()}"}
        assert await tried(desk, 1, headers=good) == [200]
        bad = {"Authorization": f"Bearer {issuer.token(OTHER_RSA)}"}
        assert await tried(desk, 4, headers=bad) == [401, 401, 401, 429]
        unseen = {"Authorization": f"Bearer {issuer.token(email='bob@example.org')}"}
        assert await tried(desk, 1, headers=unseen) == [200]
        assert await tried(desk, 1, headers=good) == [200]


async def test_failures_are_logged_without_what_was_presented() -> None:
    with capture_logs() as logs:
        async with opened(limits=TIGHT) as desk:
            await tried(desk, 5, headers=BAD)
    failed = [line for line in logs if line["event"] == "sign-in failed"]
    assert [(line["address"], line["reason"]) for line in failed] == [("in-memory", "Unauthorized")] * 3
    assert "guessed" not in str(logs)


async def test_an_ipv6_household_is_one_address() -> None:
    failures = SignInFailures(ApiLimits(failures_per_minute=1, failure_burst=2))
    for number, status in enumerate([401, 401, 429, 429]):
        assert failures.count(f"2001:db8::{number:x}", UNAUTHORIZED, "no").reason.status == status
    assert failures.count("2001:db8:0:1::1", UNAUTHORIZED, "no").reason.status == 401
    assert failures.count("192.0.2.1", UNAUTHORIZED, "no").reason.status == 401
