"""A stream ends when its token does, and costs next to nothing until then."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from harness.api_world import Desk, opened
from harness.asgi import AsgiTransport
from harness.credentials import RSA, Issuer
from harness.plane_world import NOW
from lcm.api.http.auth import TokenWatch
from lcm.api.http.request import Request
from lcm.control.access.tokens import Credential
from lcm.control.plane.wire import KEEPALIVE_SECONDS
from lcm.model.access.identity import Caller, Role
from lcm.sim.time.loop import VirtualClock, run

WATCH = "/api/watch?kinds=LabletSession&after=0"
STREAMS = [WATCH, "/api/events/stream"]
SOON = 60.0


async def last_of(desk: Desk, path: str, headers: dict[str, str]) -> str:
    """Read a stream to its end; gives its last line."""
    line = httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url="http://desk", timeout=SOON)
    async with asyncio.timeout(200), line.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines()]
    return next(line for line in reversed(lines) if line)


def ended(path: str, last: str) -> bool:
    return path != WATCH or json.loads(last)["problem"]["reason"] == "Unauthorized"


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_ends_when_its_token_is_revoked(path: str) -> None:
    async def main() -> None:
        async with opened(clock=VirtualClock()) as desk:
            reading = asyncio.create_task(last_of(desk, path, desk.signed("ada")))
            await asyncio.sleep(3 * KEEPALIVE_SECONDS)
            assert not reading.done()
            await desk.tokens.revoke(next(one.id for one in await desk.tokens.list() if one.name == "ada"))
            assert ended(path, await reading)

    run(main, start=NOW)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_ends_when_its_token_expires(path: str) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with opened(clock=clock) as desk:
            until = clock.now() + timedelta(seconds=30)
            secret, _ = await desk.tokens.make("ada", Role.USER, expires_at=until)
            assert ended(path, await last_of(desk, path, {"Authorization": f"Bearer {secret.reveal()}"}))
            assert until <= clock.now() <= until + timedelta(seconds=2 * KEEPALIVE_SECONDS)

    run(main, start=NOW)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_ends_when_an_issuers_token_expires(path: str) -> None:
    async def main() -> None:
        issuer, clock = Issuer(RSA), VirtualClock()
        issuer.clock = clock  # type: ignore[assignment]
        async with opened(clock=clock, verifier=issuer.verifier()) as desk:
            token = issuer.token(exp=int(clock.now().timestamp()) + 30)
            assert ended(path, await last_of(desk, path, {"Authorization": f"Bearer {token}"}))
            assert NOW + timedelta(seconds=90) <= clock.now() <= NOW + timedelta(seconds=90 + 2 * KEEPALIVE_SECONDS)

    run(main, start=NOW)


class Counting:
    """Tokens that count how often they are asked."""

    version = 0
    asked = 0
    good = True

    def is_unchanged(self, _: Credential) -> bool:
        self.asked += 1
        return self.good


def vigil(desk: Desk, tokens: Any, **more: Any) -> TokenWatch:
    request = Request({"headers": ()}, None, desk.api._shared)  # type: ignore[arg-type]
    request.shared.tokens = tokens
    request.credential = Credential(Caller(name="ada", role=Role.USER), digest="d", **more)
    return TokenWatch(request)


async def test_a_token_is_looked_up_again_only_when_some_token_changed() -> None:
    tokens = Counting()
    async with opened() as desk:
        real, kept = desk.api._shared.tokens, vigil(desk, tokens)
        assert all(kept.is_valid() for _ in range(100))
        assert tokens.asked == 1
        tokens.version += 1
        assert kept.is_valid()
        assert kept.is_valid()
        assert tokens.asked == 2
        tokens.version, tokens.good = 9, False
        assert not kept.is_valid()
        assert not kept.is_valid()
        desk.api._shared.tokens = real


async def test_what_was_revoked_before_the_first_look_is_noticed() -> None:
    tokens = Counting()
    tokens.good = False
    async with opened() as desk:
        assert not vigil(desk, tokens).is_valid()
