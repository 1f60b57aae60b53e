"""Each token is accepted or refused as it should be, and its holder is who the issuer says."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import strategies

from harness import credentials
from harness.credentials import AUDIENCE, ED25519, ISSUER, OTHER_RSA, P256, P384, P521, RSA, Issuer, part, signed
from harness.suite import for_all
from lcm.control.access.oidc import (
    MAX_TOKEN_LENGTH,
    IssuerTrust,
    TokenRefusal,
    TokenRefusalReason,
    VerifiedCaller,
    Verifier,
)
from lcm.model.access.identity import Caller, Reach, Role
from lcm.model.base.errors import Invalid

DEEP = b'{"alg":' + b"[" * 3000


async def refused(verifier: Verifier, token: str) -> TokenRefusalReason:
    answer = await verifier.verify(token)
    assert isinstance(answer, TokenRefusal), answer
    assert not any(piece in answer.message for piece in ("ada", *token.split(".")) if len(piece) > 2)
    return answer.reason


async def accepted(verifier: Verifier, token: str) -> Caller:
    answer = await verifier.verify(token)
    assert isinstance(answer, VerifiedCaller), answer
    return answer.caller


async def test_a_good_token_says_who_holds_it_and_until_when() -> None:
    issuer = Issuer()
    answer = await issuer.verifier().verify(issuer.token())
    ada = Caller(name="ada@example.org", role=Role.OPERATOR, reach=Reach(email="ada@example.org"))
    until = issuer.clock.now() + timedelta(hours=1, minutes=1)
    assert answer == VerifiedCaller(ada, until, until)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA, name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (P256, "ES256"),
        (P384, "ES384"),
        (P521, "ES512"),
        (ED25519, "EdDSA"),
        (ED25519, "Ed25519"),
    ],
)
async def test_every_way_to_sign_that_its_verifier_cannot_is_accepted(key: Any, algorithm: str) -> None:
    issuer = Issuer(RSA, P256, P384, P521, ED25519)
    await accepted(issuer.verifier(), issuer.token(key, header={"alg": algorithm}))


@pytest.mark.parametrize(
    "name", ["none", "None", "NONE", "", "HS256", "HS384", "HS512", "ES256K", "RS1", "dir", 5, None, ["RS256"], {}]
)
async def test_no_other_way_to_sign_is(name: object) -> None:
    issuer = Issuer()
    _, claims, signature = issuer.token().split(".")
    named = {"typ": "JWT", "kid": "rsa"} | ({"alg": name} if name is not None else {})
    for end in ("", signature):
        assert await refused(issuer.verifier(), f"{part(named)}.{claims}.{end}") is TokenRefusalReason.ALGORITHM
    assert issuer.asked == [], "nobody is asked about it"


@pytest.mark.parametrize("form", ["pem", "der", "json", "n"])
async def test_a_public_key_is_no_password(form: str) -> None:
    issuer = Issuer()
    forms = {
        "pem": RSA.as_pem(private=False),  # type: ignore[union-attr]
        "der": RSA.as_der(private=False),  # type: ignore[union-attr]
        "json": json.dumps(RSA.as_dict(private=False)).encode(),
        "n": str(RSA.as_dict(private=False)["n"]).encode(),
    }
    token = credentials.signed_with_public_key(RSA, issuer.claims(), forms[form])
    assert await refused(issuer.verifier(), token) is TokenRefusalReason.ALGORITHM


async def test_a_key_that_came_with_the_token_is_not_believed() -> None:
    issuer = Issuer()
    stranger = OTHER_RSA.as_dict(private=False)
    for kid, reason in (("other", TokenRefusalReason.KEY), ("rsa", TokenRefusalReason.SIGNATURE)):
        header = {"kid": kid, "jwk": stranger, "jku": "https://evil.example.org/jwks"}
        assert await refused(issuer.verifier(), signed(OTHER_RSA, issuer.claims(), **header)) is reason
    assert not any("evil" in url for url in issuer.asked)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"iss": "https://evil.example.org"}, TokenRefusalReason.ISSUER),
        ({"iss": ISSUER + "/"}, TokenRefusalReason.ISSUER),
        ({"iss": None}, TokenRefusalReason.ISSUER),
        ({"iss": [ISSUER]}, TokenRefusalReason.ISSUER),
        ({"aud": "other"}, TokenRefusalReason.AUDIENCE),
        ({"aud": "LCM"}, TokenRefusalReason.AUDIENCE),
        ({"aud": None}, TokenRefusalReason.AUDIENCE),
        ({"aud": []}, TokenRefusalReason.AUDIENCE),
        ({"aud": {"lcm": 1}}, TokenRefusalReason.AUDIENCE),
        ({"aud": ["other", 5, None]}, TokenRefusalReason.AUDIENCE),
        ({"exp": None}, TokenRefusalReason.MALFORMED),
        ({"exp": "9999999999"}, TokenRefusalReason.MALFORMED),
        ({"exp": True}, TokenRefusalReason.MALFORMED),
        ({"exp": 10**30}, TokenRefusalReason.MALFORMED),
        ({"exp": -5}, TokenRefusalReason.MALFORMED),
        ({"nbf": "soon"}, TokenRefusalReason.MALFORMED),
        ({"iat": {}}, TokenRefusalReason.MALFORMED),
        ({"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, TokenRefusalReason.MALFORMED),
    ],
)
async def test_claims_that_are_not_for_us_are_refused_without_asking(
    changes: dict[str, Any], reason: TokenRefusalReason
) -> None:
    issuer = Issuer()
    assert await refused(issuer.verifier(), issuer.token(**changes)) is reason
    assert issuer.asked == []


async def test_one_audience_of_several_is_enough() -> None:
    issuer = Issuer()
    await accepted(issuer.verifier(), issuer.token(aud=["account", AUDIENCE]))
    await accepted(issuer.verifier(audiences=frozenset({"a", "b"})), issuer.token(aud="b"))


async def test_a_token_is_accepted_from_its_beginning_to_its_end_and_a_leeway_around() -> None:
    issuer = Issuer()
    verifier, now = issuer.verifier(), int(issuer.clock.now().timestamp())
    for changes, want in (
        ({"exp": now - 59}, None),
        ({"exp": now - 60}, TokenRefusalReason.EXPIRED),
        ({"exp": now - 3600}, TokenRefusalReason.EXPIRED),
        ({"exp": now - 59.5}, None),
        ({"nbf": now + 60}, None),
        ({"nbf": now + 61}, TokenRefusalReason.NOT_YET),
        ({"iat": now + 61}, TokenRefusalReason.NOT_YET),
        ({"nbf": None, "iat": None}, None),
    ):
        answer = await verifier.verify(issuer.token(**changes))
        assert (answer.reason if isinstance(answer, TokenRefusal) else None) is want, changes


async def test_a_token_good_a_moment_ago_expires() -> None:
    issuer = Issuer()
    verifier, token = issuer.verifier(leeway=timedelta(0)), issuer.token()
    answer = await verifier.verify(token)
    assert isinstance(answer, VerifiedCaller)
    issuer.clock.moment = answer.expires_at - timedelta(microseconds=1)
    await accepted(verifier, token)
    issuer.clock.moment = answer.expires_at
    assert await refused(verifier, token) is TokenRefusalReason.EXPIRED


async def test_a_changed_token_is_refused() -> None:
    issuer = Issuer()
    header, claims, signature = issuer.token().split(".")
    verifier = issuer.verifier()
    promoted = part(issuer.claims(roles=["admin"]))
    assert await refused(verifier, f"{header}.{promoted}.{signature}") is TokenRefusalReason.SIGNATURE
    renamed = part({"alg": "RS256", "kid": "rsa", "typ": "JWT", "more": 1})
    assert await refused(verifier, f"{renamed}.{claims}.{signature}") is TokenRefusalReason.SIGNATURE
    assert await refused(verifier, f"{header}.{claims}.") is TokenRefusalReason.SIGNATURE
    assert await refused(verifier, f"{header}.{claims}.{signature[:-8]}") is TokenRefusalReason.SIGNATURE
    assert await refused(verifier, f"{header}.{claims}.{'A' * len(signature)}") is TokenRefusalReason.SIGNATURE


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "lcm_0123456789",
        "é.é.é",
        "\ud800.a.b",
        "x" * (MAX_TOKEN_LENGTH + 1),
        "." * 100,
        f"{part([])}.{part({})}.x",
        f"{part('alg')}.{part({})}.x",
        f"{part(['alg'])}.{part({})}.x",
        f"{part(b'[' * 9000)}.{part({})}.x",
        f"{part(DEEP)}.{part({})}.x",
        f"{part({'alg': 'RS256'})}=.{part({})}.x",
        f" {part({'alg': 'RS256'})}.{part({})}.x",
    ],
    ids=lambda token: ascii(token[:20]),
)
async def test_garbage_is_no_token(token: str) -> None:
    issuer = Issuer()
    assert await refused(issuer.verifier(), token) is TokenRefusalReason.MALFORMED
    assert issuer.asked == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"7",
        b"null",
        b"\xff",
        b"{",
        b'{"exp": NaN}',
        b'{"exp": ' + b"9" * 5000 + b"}",
        b'{"a":' * 2000 + b"1",
    ],
)
async def test_a_payload_that_is_no_object_is_no_token(payload: bytes) -> None:
    issuer = Issuer()
    assert await refused(issuer.verifier(), signed(RSA, payload)) is TokenRefusalReason.MALFORMED


@for_all(strategies.integers(0, 2), strategies.integers(0, 10_000), strategies.characters(max_codepoint=255))
def test_a_token_with_any_character_changed_is_refused(which: int, place: int, other: str) -> None:
    issuer = Issuer()
    parts = issuer.token(RSA).split(".")
    place %= len(parts[which])
    if parts[which][place] != other:
        parts[which] = parts[which][:place] + other + parts[which][place + 1 :]
        assert isinstance(asyncio.run(issuer.verifier().verify(".".join(parts))), TokenRefusal)


async def test_a_name_that_stands_twice_is_refused_even_if_signed() -> None:
    issuer = Issuer()
    claims = json.dumps(issuer.claims())
    for doubled in (
        claims[:-1] + ', "email": "root@example.org"}',
        claims[:-1] + ', "roles": ["admin"]}',
        claims[:-1] + ', "realm_access": {"roles": [], "roles": ["admin"]}}',
    ):
        assert await refused(issuer.verifier(), signed(RSA, doubled.encode())) is TokenRefusalReason.MALFORMED
    _, payload, signature = issuer.token().split(".")
    header = part(b'{"alg": "RS256", "kid": "rsa", "alg": "RS256"}')
    assert await refused(issuer.verifier(), f"{header}.{payload}.{signature}") is TokenRefusalReason.MALFORMED


async def test_the_longest_token_is_read_and_a_longer_one_is_not() -> None:
    issuer = Issuer()
    short = len(issuer.token(more=""))
    for more in range((MAX_TOKEN_LENGTH - short) * 3 // 4, (MAX_TOKEN_LENGTH - short) * 3 // 4 + 6):
        token = issuer.token(more="x" * more)
        if len(token) <= MAX_TOKEN_LENGTH:
            await accepted(issuer.verifier(), token)
        else:
            assert await refused(issuer.verifier(), token) is TokenRefusalReason.MALFORMED


@pytest.mark.parametrize(
    "header",
    [
        {"crit": ["exp"], "exp": 1},
        {"crit": ["b64"], "b64": False},
        {"b64": True},
        {"typ": "logout+jwt"},
        {"typ": "dpop+jwt"},
        {"typ": "secevent+jwt"},
        {"typ": 5},
        {"kid": 5},
        {"kid": ["rsa"]},
    ],
)
async def test_a_token_that_wants_to_be_understood_differently_is_refused(header: dict[str, Any]) -> None:
    issuer = Issuer()
    _, claims, signature = issuer.token().split(".")
    token = f"{part({'alg': 'RS256', 'typ': 'JWT', 'kid': 'rsa', **header})}.{claims}.{signature}"
    assert await refused(issuer.verifier(), token) is TokenRefusalReason.MALFORMED


@pytest.mark.parametrize("kind", [None, "JWT", "jwt", "at+jwt", "application/at+jwt", "AT+JWT"])
async def test_access_tokens_and_plain_ones_are_accepted(kind: str | None) -> None:
    issuer = Issuer()
    await accepted(issuer.verifier(), issuer.token(header={"typ": kind, "x-of-the-issuer": 1}))


@pytest.mark.parametrize(
    ("trust", "changes", "want"),
    [
        ({}, {}, "ada@example.org"),
        ({}, {"email_verified": "true"}, "ada@example.org"),
        ({}, {"email": None}, "oidc+248289761001"),
        ({}, {"email": None, "email_verified": None}, "oidc+248289761001"),
        ({}, {"email_verified": False}, None),
        ({}, {"email_verified": "false"}, None),
        ({}, {"email_verified": None}, None),
        ({"require_verified_email": False}, {"email_verified": None}, "ada@example.org"),
        ({"require_verified_email": False}, {"email_verified": False}, None),
        ({"subject_claim": "sub"}, {"email_verified": False}, "248289761001"),
        ({"subject_claim": "preferred_username"}, {"preferred_username": "ada"}, "ada"),
        ({"subject_claim": "preferred_username"}, {}, "oidc+248289761001"),
        ({}, {"email": None, "sub": "root"}, "oidc+root"),
        ({}, {"email": "oidc+root@example.org"}, None),
        ({}, {"email": None, "sub": None}, None),
        ({}, {"email": None, "sub": 5}, None),
        ({}, {"email": ""}, None),
        ({}, {"email": ["ada@example.org"]}, None),
        ({}, {"email": "ada@example.org\n"}, None),
        ({}, {"email": "ada@example.org,root@example.org"}, None),
        ({}, {"email": "a" * 129}, None),
        ({}, {"email": "аda@example.org"}, None),  # noqa: RUF001  that is the attack
        ({"subject_claim": "sub"}, {"sub": "auth0|123"}, None),
        ({"subject_claim": "sub"}, {"sub": 5}, None),
    ],
)
async def test_the_caller_is_named_by_the_claim_that_was_chosen(
    trust: dict[str, Any], changes: dict[str, Any], want: str | None
) -> None:
    issuer = Issuer()
    answer = await issuer.verifier(**trust).verify(issuer.token(**changes))
    if want is None:
        assert isinstance(answer, TokenRefusal)
        assert answer.reason is TokenRefusalReason.SUBJECT
    else:
        assert isinstance(answer, VerifiedCaller)
        assert answer.caller.name == want


@pytest.mark.parametrize(
    ("trust", "changes", "want"),
    [
        ({}, {"roles": "admin"}, Role.ADMIN),
        ({}, {"roles": ["user", "admin", "operator"]}, Role.ADMIN),
        ({}, {"roles": ["user", "author"]}, Role.AUTHOR),
        ({}, {"roles": ["stranger", 5, None, {}, "user"]}, Role.USER),
        ({}, {"roles": ["service"]}, None),
        ({}, {"roles": "not admin"}, None),
        ({}, {"roles": "Admin"}, None),
        ({}, {"roles": {"admin": True}}, None),
        ({}, {"roles": None}, None),
        ({"default_role": Role.USER}, {"roles": None}, Role.USER),
        ({"default_role": Role.USER}, {"roles": ["service", "stranger"]}, Role.USER),
        ({"default_role": Role.USER}, {"roles": ["operator"]}, Role.OPERATOR),
        ({"role_claim": "realm_access.roles"}, {"realm_access": {"roles": ["author"]}}, Role.AUTHOR),
        ({"role_claim": "realm_access.roles"}, {"realm_access": ["author"]}, None),
        ({"role_claim": "realm_access.roles"}, {"realm_access.roles": "user"}, Role.USER),
        ({"role_claim": "https://labs.example.org/roles"}, {"https://labs.example.org/roles": ["user"]}, Role.USER),
        ({"role_claim": "groups", "roles": {"/Lab Admins": Role.ADMIN}}, {"groups": ["/Lab Admins"]}, Role.ADMIN),
        ({"role_claim": "groups", "roles": {"/Lab Admins": Role.ADMIN}}, {"groups": ["admin"]}, None),
    ],
)
async def test_the_highest_role_that_a_token_gives_counts(
    trust: dict[str, Any], changes: dict[str, Any], want: Role | None
) -> None:
    issuer = Issuer()
    answer = await issuer.verifier(**trust).verify(issuer.token(**changes))
    if want is None:
        assert isinstance(answer, TokenRefusal)
        assert answer.reason is TokenRefusalReason.ROLE
    else:
        assert isinstance(answer, VerifiedCaller)
        assert answer.caller.role is want


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"issuer": ""}, "OIDC_ISSUER"),
        ({"issuer": "http://login.example.org"}, "OIDC_ISSUER"),
        ({"issuer": "https://"}, "OIDC_ISSUER"),
        ({"issuer": "https://a:b@login.example.org"}, "OIDC_ISSUER"),
        ({"issuer": "https://a@login.example.org"}, "OIDC_ISSUER"),
        ({"issuer": "https://login.example.org?x=1"}, "OIDC_ISSUER"),
        ({"issuer": "https://login.example.org#x"}, "OIDC_ISSUER"),
        ({"issuer": "https://login.example.org:99999"}, "OIDC_ISSUER"),
        ({"issuer": "https://[::1"}, "OIDC_ISSUER"),
        ({"issuer": "file:///etc/passwd"}, "OIDC_ISSUER"),
        ({"issuer": "http://127.0.0.1.example.org"}, "OIDC_ISSUER"),
        ({"jwks_url": "http://login.example.org/keys"}, "OIDC_JWKS_URL"),
        ({"audiences": frozenset()}, "OIDC_AUDIENCE"),
        ({"audiences": frozenset({""})}, "OIDC_AUDIENCE"),
        ({"subject_claim": ""}, "OIDC_SUBJECT_CLAIM"),
        ({"default_role": Role.SERVICE}, "OIDC_DEFAULT_ROLE"),
        ({"roles": {"robots": Role.SERVICE}}, "OIDC_ROLES"),
        ({"leeway": timedelta(hours=1)}, "OIDC_LEEWAY_SECONDS"),
        ({"leeway": timedelta(seconds=-1)}, "OIDC_LEEWAY_SECONDS"),
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=named):
        IssuerTrust(**{"issuer": ISSUER, "audiences": frozenset({AUDIENCE}), **wrong})


@pytest.mark.parametrize("issuer", ["http://127.0.0.1:8080/realms/x", "http://localhost:8080", "http://[::1]:1/"])
def test_an_issuer_on_this_machine_needs_no_certificate(issuer: str) -> None:
    assert IssuerTrust(issuer=issuer, audiences=frozenset({AUDIENCE})).issuer == issuer


async def test_moments_far_away_are_no_trouble() -> None:
    issuer = Issuer()
    answer = await issuer.verifier().verify(issuer.token(exp=2**37 - 1))
    assert isinstance(answer, VerifiedCaller)
    assert answer.expires_at > datetime(6000, 1, 1, tzinfo=UTC)
