"""Signing in to CML: one token for all, renewed once for all; refused credentials are not hammered."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator

import pytest

from harness.http_answers import EXPIRED, TOKEN, AnswerServer, Say, refusal, says
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Throttled, Unreachable
from lcm.providers.cml.connection import CmlLimits
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import CmlAnswerError, CmlAuthenticationError

MANY = 20


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with AnswerServer() as server:
        server.tell("labs", says([]))
        server.tell("nodes", says([]))
        server.tell("system_information", says({"version": "2.9.0", "ready": True}))
        yield server


@pytest.fixture
async def host(server: AnswerServer) -> AsyncIterator[CmlHost]:
    host = CmlHost(server.url, "admin", Secret("swordfish"), limits=CmlLimits(refusal_seconds=0.3))
    yield host
    await host.close()


async def test_one_token_serves_all_calls(server: AnswerServer, host: CmlHost) -> None:
    await asyncio.gather(*(host.all_nodes() for _ in range(MANY)))
    assert server.count("auth_extended") == 1
    assert {one.headers["authorization"] for one in server.asked if one.path.endswith("nodes")} == {
        f"Bearer {TOKEN['token']}"
    }


async def test_what_is_open_to_all_needs_no_sign_in(server: AnswerServer, host: CmlHost) -> None:
    await host.system()
    assert server.count("auth_extended") == 0
    assert "authorization" not in server.asked[0].headers


async def test_an_expired_token_is_renewed_and_the_call_repeated(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", says(TOKEN), says(TOKEN | {"token": "second"}))
    server.tell("nodes", says([]), EXPIRED, says([]))
    await host.all_nodes()
    await host.all_nodes()
    assert server.count("auth_extended") == 2
    assert server.asked[-1].headers["authorization"] == "Bearer second"


async def test_many_calls_with_an_expired_token_sign_in_once(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", says(TOKEN), says(TOKEN | {"token": "second"}))
    await host.all_nodes()
    server.expired.add("secret-token-1")
    await asyncio.gather(*(host.all_nodes() for _ in range(MANY)))
    assert server.count("auth_extended") == 2


async def test_a_token_refused_twice_is_not_renewed_for_ever(server: AnswerServer, host: CmlHost) -> None:
    server.tell("nodes", EXPIRED)
    with pytest.raises(CmlAuthenticationError):
        await host.all_nodes()
    assert (server.count("auth_extended"), server.count("nodes")) == (2, 2)


async def test_wrong_credentials_are_final_and_tried_once(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", refusal(403, "Authentication failed for admin: swordfish"))
    got = await asyncio.gather(*(host.all_nodes() for _ in range(MANY)), return_exceptions=True)
    assert {type(one) for one in got} == {CmlAuthenticationError}
    assert server.count("auth_extended") == 1
    with pytest.raises(CmlAuthenticationError) as raised:
        await host.sign_in()
    assert server.count("auth_extended") == 1
    assert "swordfish" not in str(raised.value)


async def test_corrected_credentials_are_tried_after_a_while(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", refusal(403, "no"), says(TOKEN))
    with pytest.raises(CmlAuthenticationError):
        await host.sign_in()
    await asyncio.sleep(0.35)
    await host.sign_in()


async def test_a_throttled_sign_in_waits_as_long_as_it_was_told(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", Say(429, headers={"Retry-After": "60"}), says(TOKEN))
    for _ in range(3):
        with pytest.raises(Throttled):
            await host.all_nodes()
    assert server.count("auth_extended") == 1


async def test_an_outage_at_sign_in_fails_those_who_waited_and_nobody_later(
    server: AnswerServer, host: CmlHost
) -> None:
    server.tell("auth_extended", Say(500, after=0.05), says(TOKEN))
    got = await asyncio.gather(*(host.all_nodes() for _ in range(MANY)), return_exceptions=True)
    assert {type(one) for one in got} == {Unreachable}
    await host.all_nodes()
    assert server.count("auth_extended") == 2


async def test_a_caller_who_gives_up_while_signing_in_leaves_that_to_the_next(
    server: AnswerServer, host: CmlHost
) -> None:
    server.tell("auth_extended", Say(hang=True), says(TOKEN))
    first = asyncio.create_task(host.all_nodes())
    while not server.count("auth_extended"):
        await asyncio.sleep(0.01)
    second = asyncio.create_task(host.all_nodes())
    await asyncio.sleep(0.01)
    first.cancel()
    assert await second == {}


async def test_a_user_who_cannot_see_all_labs_is_refused(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", says(TOKEN | {"admin": False}))
    with pytest.raises(CmlAuthenticationError, match="administrator"):
        await host.labs()


async def test_an_odd_token_is_an_error_that_does_not_show_it(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", says({"token": ["hidden-token"], "admin": True}))
    with pytest.raises(CmlAnswerError) as raised:
        await host.sign_in()
    assert "hidden-token" not in str(raised.value)


@pytest.mark.parametrize("token", ["hidden\ntoken", "hidden token", "hidden-tök", "hidden\x7f", "hidden\n", ""])
async def test_a_token_that_no_header_can_carry_is_not_sent(
    server: AnswerServer, host: CmlHost, caplog: pytest.LogCaptureFixture, token: str
) -> None:
    caplog.set_level(logging.DEBUG)
    server.tell("auth_extended", says(TOKEN | {"token": token}))
    with pytest.raises(CmlAnswerError) as raised:
        await host.all_nodes()
    assert "hidden" not in f"{raised.value!r} {caplog.text}"
    assert server.count("nodes") == 0


async def test_a_refusal_told_many_times_does_not_grow(server: AnswerServer, host: CmlHost) -> None:
    server.tell("auth_extended", refusal(403, "no"))
    lengths = []
    for _ in range(5):
        with pytest.raises(CmlAuthenticationError) as raised:
            await host.all_nodes()
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert server.count("auth_extended") == 1
    assert len(set(lengths[1:])) == 1


async def test_no_secret_shows_in_logs_or_representations(
    server: AnswerServer, host: CmlHost, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await host.labs()
    server.tell("labs", refusal(400, "no"))
    with pytest.raises(Exception, match="no") as raised:
        await host.labs()
    shown = f"{caplog.text} {host!r} {vars(host._client)!r} {raised.value!r}"
    assert "swordfish" not in shown
    assert str(TOKEN["token"]) not in shown
