"""Tokens of an issuer at the door: who is let in by one, who is told why not, and what they cost."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey

from harness.api_world import Desk, opened
from harness.credentials import ISSUER, OTHER_RSA, RSA, Issuer, part, signed, signed_with_public_key
from harness.plane_world import served
from harness.servers import LOOPBACK, free_port
from lcm.api.http.app import Api
from lcm.api.http.auth import IssuedTokens
from lcm.api.http.limits import ApiLimits
from lcm.compose.api import make_verifier
from lcm.control.access.oidc import IssuerTrust, TokenRefusal
from lcm.control.access.tokens import Tokens
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Role
from lcm.model.base.errors import Invalid
from lcm.settings.load import load_settings
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock

WHOAMI = "/api/whoami"
ADA = {"name": "ada@example.org", "role": "operator"}


@asynccontextmanager
async def behind(issuer: Issuer) -> AsyncIterator[Desk]:
    """Open a desk that accepts an issuer's tokens."""
    async with opened(clock=issuer.clock, verifier=issuer.verifier()) as desk:
        yield desk


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def unsigned(issuer: Issuer) -> str:
    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(issuer.claims())}."


def with_public_key(form: Callable[[], bytes]) -> Callable[[Issuer], str]:
    return lambda issuer: signed_with_public_key(RSA, issuer.claims(), form())


def der() -> bytes:
    return base64.b64decode(b"".join(pem().splitlines()[1:-1]))


def pem() -> bytes:
    assert isinstance(RSA, RSAKey)
    return bytes(RSA.as_pem(private=False))


BAD: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "alg none": (unsigned, "TokenAlgorithm"),
    "HS256 with the public key as PEM": (with_public_key(pem), "TokenAlgorithm"),
    "HS256 with the public key as DER": (with_public_key(der), "TokenAlgorithm"),
    "wrong audience": (lambda issuer: issuer.token(aud="somebody-else"), "TokenAudience"),
    "wrong issuer": (lambda issuer: issuer.token(iss="https://evil.example.org"), "TokenIssuer"),
    "expired": (lambda issuer: issuer.token(exp=int(issuer.clock.now().timestamp()) - 61), "TokenExpired"),
    "not yet valid": (lambda issuer: issuer.token(nbf=int(issuer.clock.now().timestamp()) + 61), "TokenNotYetValid"),
    "unknown key": (lambda issuer: issuer.token(OTHER_RSA), "TokenKeyUnknown"),
    "another's key under a known name": (
        lambda issuer: signed(OTHER_RSA, issuer.claims(), kid=RSA.kid),
        "TokenSignature",
    ),
    "no role": (lambda issuer: issuer.token(roles=["guest"]), "TokenRole"),
    "unverified address": (lambda issuer: issuer.token(email_verified=False), "TokenSubject"),
    "garbage": (lambda _: "a.b.c", "TokenMalformed"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_token_is_refused_with_its_reason(case: str) -> None:
    make, reason = BAD[case]
    issuer = Issuer(RSA)
    async with behind(issuer) as desk:
        token = make(issuer)
        for _ in range(2):
            answer = await desk.ask("", "GET", WHOAMI, headers=bearer(token))
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["reason"] == reason
            assert token not in answer.text


async def test_a_good_token_lets_its_holder_in_and_one_of_a_rotated_key_too() -> None:
    issuer = Issuer(RSA)
    async with behind(issuer) as desk:
        assert await desk.done("", "GET", WHOAMI, headers=bearer(issuer.token())) == ADA
        issuer.keys = (OTHER_RSA,)
        issuer.clock.step(minutes=10)
        assert await desk.done("", "GET", WHOAMI, headers=bearer(issuer.token(OTHER_RSA))) == ADA
        issuer.clock.step(minutes=10)
        refused = await desk.ask("", "GET", WHOAMI, headers=bearer(issuer.token(RSA)))
        assert (refused.status_code, refused.json()["reason"]) == (401, "TokenKeyUnknown")


async def test_a_role_from_a_claim_is_held_against_the_routes() -> None:
    issuer = Issuer(RSA)
    async with behind(issuer) as desk:
        for role, status in (("admin", 200), ("operator", 403), ("user", 403)):
            sent = bearer(issuer.token(roles=[role]))
            assert (await desk.ask("", "GET", "/api/audit", headers=sent)).status_code == status
        posing = bearer(issuer.token(roles=["admin"])) | {"Lcm-Actor": "scheduler"}
        assert (await desk.ask("", "GET", WHOAMI, headers=posing)).status_code == 403
        serving = await desk.ask("", "GET", WHOAMI, headers=bearer(issuer.token(roles=["service"])))
        assert (serving.status_code, serving.json()["reason"]) == (401, "TokenRole")


async def test_our_own_tokens_and_keys_work_beside_an_issuers() -> None:
    async with behind(Issuer(RSA)) as desk:
        assert (await desk.done("ada", "GET", WHOAMI))["name"] == "ada"
        assert (await desk.done("service", "GET", WHOAMI))["role"] == "service"


async def test_without_an_issuer_its_tokens_are_strangers() -> None:
    issuer = Issuer(RSA)
    async with opened(clock=issuer.clock) as desk:
        answer = await desk.ask("", "GET", WHOAMI, headers=bearer(issuer.token()))
        assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")


async def test_an_issuer_that_is_away_is_no_refusal_and_who_was_known_stays() -> None:
    issuer = Issuer(RSA)
    async with behind(issuer) as desk:
        known = bearer(issuer.token())
        await desk.done("", "GET", WHOAMI, headers=known)
        issuer.go_away()
        issuer.keys = (OTHER_RSA,)
        issuer.clock.step(minutes=10)
        answer = await desk.ask("", "GET", WHOAMI, headers=bearer(issuer.token(OTHER_RSA)))
        assert (answer.status_code, answer.json()["reason"]) == (503, "Unreachable")
        assert int(answer.headers["retry-after"]) >= 1
        assert await desk.done("", "GET", WHOAMI, headers=known) == ADA


async def test_a_token_is_verified_once_and_ends_when_it_expires() -> None:
    issuer, verified = Issuer(RSA), list[str]()
    verifier = issuer.verifier()

    class Counting:
        async def verify(self, token: str) -> object:
            verified.append(token)
            return await verifier.verify(token)

    async with opened(clock=issuer.clock, verifier=Counting()) as desk:  # type: ignore[arg-type]
        token = issuer.token()
        for _ in range(5):
            await desk.done("", "GET", WHOAMI, headers=bearer(token))
        assert verified == [token]
        issuer.clock.step(seconds=3600 + 59)
        await desk.done("", "GET", WHOAMI, headers=bearer(token))
        issuer.clock.step(seconds=1)
        answer = await desk.ask("", "GET", WHOAMI, headers=bearer(token))
        assert (answer.status_code, answer.json()["reason"]) == (401, "TokenExpired")


async def test_the_memory_of_verified_tokens_is_bounded_and_forgets_the_longest_unused() -> None:
    issuer = Issuer(RSA)
    issued = IssuedTokens(issuer.verifier(), issuer.clock, remembered=2)
    for name in ("a", "b"):
        assert not isinstance(await issued.verify(issuer.token(email=f"{name}@example.org"), name), TokenRefusal)
    assert issued.find_verified("a")
    await issued.verify(issuer.token(), "c")
    assert [bool(issued.find_verified(name)) for name in ("a", "b", "c")] == [True, False, True]


async def test_what_is_made_with_an_issuers_token_ends_with_it_or_so_many_hours_later() -> None:
    for outlive in (timedelta(0), timedelta(hours=12)):
        issuer = Issuer(RSA)
        async with opened(clock=issuer.clock, verifier=issuer.verifier(outlive=outlive)) as desk:
            sent = bearer(issuer.token(roles=["admin"]))
            until = issuer.clock.now() + timedelta(seconds=3600 + 60) + outlive
            for wish in ({}, {"expires_in_seconds": 0}, {"name": "eve"}):
                info = (await desk.done("", "POST", "/api/tokens", json=wish, headers=sent))["info"]
                assert datetime.fromisoformat(info["expires_at"]) == until
            link = await desk.done("", "POST", "/api/sign-in", headers=sent)
            await desk.ask("", "POST", link["path"], headers={"Sec-Fetch-Site": "same-origin"})
            session = next(one for one in await desk.tokens.list() if one.session)
            assert session.bound == until
            assert session.expires_at == min(until, issuer.clock.now() + timedelta(hours=12))


class Login:
    """An issuer on a real port of this machine."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{LOOPBACK}:{port}"
        self.keys = [RSA]

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        keys = {"keys": [key.as_dict(private=False) for key in self.keys]}
        found = {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"}
        body = json.dumps(keys if scope["path"] == "/jwks" else found).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    def token(self, key: Any = RSA, **changes: Any) -> str:
        now = int(SystemClock().now().timestamp())
        usual = {"iss": self.url, "aud": "lcm", "exp": now + 600, "iat": now, "sub": "ada", "roles": ["lab-ops"]}
        return signed(key, usual | changes)


async def test_it_works_over_real_connections_from_settings_to_answers() -> None:
    login = Login(free_port())
    said = {"OIDC_ISSUER": login.url, "OIDC_AUDIENCE": "lcm", "OIDC_ROLES": "lab-ops=operator"}
    store, clock = MemoryStore(), SystemClock()
    tokens = Tokens(store, clock=clock)
    limits = ApiLimits(failures_per_minute=6, failure_burst=3)
    api = Api(
        ControlPlane(store, clock=clock),
        tokens,
        clock=clock,
        limits=limits,
        verifier=make_verifier(load_settings(said)),
    )

    async def asked(client: httpx.AsyncClient, token: str) -> tuple[int, str]:
        answer = await client.get(WHOAMI, headers=bearer(token))
        return answer.status_code, answer.json().get("reason") or answer.json()["name"]

    port = httpx.URL(login.url).port or 0
    async with served(login, port), served(api, free_port()) as url, httpx.AsyncClient(trust_env=False) as client:  # type: ignore[arg-type]
        client.base_url = httpx.URL(url)
        assert await asked(client, login.token()) == (200, "oidc+ada")
        assert await asked(client, login.token(aud="else")) == (401, "TokenAudience")
        assert await asked(client, login.token(exp=1)) == (401, "TokenExpired")
        assert await asked(client, login.token(iss="https://evil.example.org")) == (401, "TokenIssuer")
        limited = await client.get(WHOAMI, headers=bearer(login.token(aud="else")))
        assert (limited.status_code, limited.json()["reason"]) == (429, "RateLimited")
        assert 1 <= int(limited.headers["retry-after"]) <= 10
    await store.close()


def trust(**said: str) -> IssuerTrust:
    verifier = make_verifier(load_settings(said))
    assert verifier is not None
    return verifier._trust


def test_settings_make_the_trust() -> None:
    assert make_verifier(load_settings({})) is None
    usual = trust(OIDC_ISSUER=ISSUER, OIDC_AUDIENCE="lcm,lcm-cli")
    assert usual == IssuerTrust(ISSUER, frozenset({"lcm", "lcm-cli"}))
    told = trust(
        OIDC_ISSUER=ISSUER,
        OIDC_AUDIENCE="lcm",
        OIDC_ROLES="lab-ops=operator,cn=staff=author",
        OIDC_DEFAULT_ROLE="user",
        OIDC_LEEWAY_SECONDS="0",
    )
    assert told.roles == {"lab-ops": Role.OPERATOR, "cn=staff": Role.AUTHOR}
    assert (told.default_role, told.leeway.total_seconds()) == (Role.USER, 0)


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ({"OIDC_ISSUER": ISSUER}, "OIDC_AUDIENCE"),
        ({"OIDC_ISSUER": "http://login.example.org", "OIDC_AUDIENCE": "lcm"}, "OIDC_ISSUER"),
        ({"OIDC_ROLES": "ops=service"}, "OIDC_ROLES"),
        ({"OIDC_ROLES": "ops"}, "OIDC_ROLES"),
        ({"OIDC_DEFAULT_ROLE": "service"}, "OIDC_DEFAULT_ROLE"),
        ({"OIDC_LEEWAY_SECONDS": "601"}, "OIDC_LEEWAY_SECONDS"),
    ],
)
def test_a_wrong_setting_stops_the_start(said: dict[str, str], about: str) -> None:
    with pytest.raises(Invalid, match=about):
        make_verifier(load_settings(said))
