"""Keys are asked for when needed and not more often; an issuer that is away is not one that has no keys."""

import asyncio
from typing import Any

import pytest
from hypothesis import strategies
from joserfc.jwk import OctKey, RSAKey

from harness.credentials import (
    DISCOVERY_URL,
    ED25519,
    ISSUER,
    JWKS_URL,
    OTHER_RSA,
    P256,
    P384,
    RSA,
    Issuer,
    signed,
    without_kid,
)
from harness.suite import for_all
from lcm.control.access.oidc import TokenRefusal, TokenRefusalReason, VerifiedCaller
from lcm.control.access.oidc_keys import MAX_KEYS
from lcm.model.base.errors import Later, Stuck, Throttled, Unreachable

FIELDS = ("kty", "kid", "use", "alg", "key_ops", "n", "e", "crv", "x", "y", "x5c", "x5u", "oth")
LEAVES = strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats(0, 1) | strategies.text()
JSON = LEAVES | strategies.lists(LEAVES, max_size=3) | strategies.dictionaries(strategies.text(), LEAVES, max_size=3)


def reason(answer: VerifiedCaller | TokenRefusal) -> TokenRefusalReason | None:
    return answer.reason if isinstance(answer, TokenRefusal) else None


async def test_keys_are_found_by_discovery_and_kept() -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    for _ in range(5):
        assert reason(await verifier.verify(issuer.token())) is None
    assert issuer.asked == [DISCOVERY_URL, JWKS_URL]


async def test_keys_of_a_known_address_need_no_discovery() -> None:
    issuer = Issuer()
    assert reason(await issuer.verifier(jwks_url=JWKS_URL).verify(issuer.token())) is None
    assert issuer.asked == [JWKS_URL]


async def test_a_rotated_key_is_accepted_at_once_and_the_old_one_no_longer() -> None:
    issuer = Issuer(RSA)
    verifier, old = issuer.verifier(), issuer.token()
    assert reason(await verifier.verify(old)) is None
    issuer.clock.step(seconds=31)
    issuer.keys = (OTHER_RSA,)
    assert reason(await verifier.verify(issuer.token(OTHER_RSA))) is None
    assert reason(await verifier.verify(old)) is TokenRefusalReason.KEY


async def test_unknown_keys_make_us_ask_once_in_half_a_minute_at_most() -> None:
    issuer = Issuer(RSA)
    verifier = issuer.verifier()
    for number in range(20):
        assert (
            reason(await verifier.verify(issuer.token(header={"kid": f"made-up-{number}"}))) is TokenRefusalReason.KEY
        )
    assert issuer.fetches == 1
    issuer.clock.step(seconds=29)
    assert reason(await verifier.verify(issuer.token(OTHER_RSA))) is TokenRefusalReason.KEY
    assert issuer.fetches == 1
    issuer.clock.step(seconds=1)
    assert reason(await verifier.verify(issuer.token(OTHER_RSA))) is TokenRefusalReason.KEY
    assert issuer.fetches == 2


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("", 600),
        ("public", 600),
        ("max-age=120", 120),
        ("public, MAX-AGE = 3600, must-revalidate", 3600),
        ('max-age="90"', 90),
        ("s-maxage=5", 600),
        ("max-age=0", 30),
        ("no-store", 30),
        ("no-cache, max-age=3600", 30),
        ("max-age=999999999", 86400),
        ("max-age=99999999999999999999", 600),
        ("max-age=-1", 600),
    ],
)
async def test_keys_are_kept_as_long_as_the_issuer_says_within_limits(said: str, seconds: int) -> None:
    issuer = Issuer()
    issuer.cache_control = said
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.clock.step(seconds=seconds - 0.5)
    await verifier.verify(issuer.token())
    assert issuer.fetches == 1
    issuer.clock.step(seconds=0.5)
    assert reason(await verifier.verify(issuer.token())) is None
    assert issuer.fetches == 2


async def test_an_issuer_that_is_away_keeps_its_known_keys_for_a_day() -> None:
    issuer = Issuer(RSA)
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.go_away()
    issuer.clock.step(hours=23)
    assert reason(await verifier.verify(issuer.token())) is None
    issuer.clock.step(hours=1)
    with pytest.raises(Unreachable):
        await verifier.verify(issuer.token())
    issuer.failure = None
    issuer.clock.step(seconds=30)
    assert reason(await verifier.verify(issuer.token())) is None


async def test_an_unknown_key_of_an_issuer_that_is_away_is_neither_accepted_nor_refused() -> None:
    issuer = Issuer(RSA)
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.clock.step(minutes=1)
    issuer.go_away()
    for _ in range(5):
        with pytest.raises(Unreachable):
            await verifier.verify(issuer.token(OTHER_RSA))
        assert reason(await verifier.verify(issuer.token())) is None
    assert len(issuer.asked) == 3, "it is left alone for half a minute"
    issuer.failure, issuer.keys = None, (RSA, OTHER_RSA)
    issuer.clock.step(seconds=30)
    assert reason(await verifier.verify(issuer.token(OTHER_RSA))) is None


@pytest.mark.parametrize("failure", [Unreachable("x"), Throttled("x"), Stuck("Certificate", "x")])
async def test_without_any_key_an_outage_is_said_to_be_one(failure: Later | Stuck) -> None:
    issuer = Issuer()
    issuer.failure = failure
    verifier = issuer.verifier()
    for _ in range(3):
        with pytest.raises(type(failure)):
            await verifier.verify(issuer.token())
    assert len(issuer.asked) == 1


async def test_many_who_come_at_once_ask_once() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    verifier, token = issuer.verifier(), issuer.token()
    waiting = [asyncio.create_task(verifier.verify(token)) for _ in range(50)]
    await asyncio.sleep(0)
    issuer.gate.set()
    assert {reason(answer) for answer in await asyncio.gather(*waiting)} == {None}
    assert issuer.asked == [DISCOVERY_URL, JWKS_URL]


async def test_one_who_leaves_while_asking_does_not_take_the_others_along() -> None:
    issuer = Issuer()
    issuer.gate.clear()
    verifier, token = issuer.verifier(), issuer.token()
    first, second = (asyncio.create_task(verifier.verify(token)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    issuer.gate.set()
    assert reason(await second) is None


async def test_while_one_asks_for_newer_keys_the_others_use_the_known_ones() -> None:
    issuer = Issuer()
    verifier, token = issuer.verifier(), issuer.token()
    await verifier.verify(token)
    issuer.clock.step(minutes=11)
    issuer.gate.clear()
    first = asyncio.create_task(verifier.verify(token))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        assert reason(await verifier.verify(token)) is None
    assert not first.done()
    issuer.gate.set()
    assert reason(await first) is None


async def test_a_clock_that_was_set_back_makes_us_ask_again() -> None:
    issuer = Issuer()
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.clock.step(days=-3)
    assert reason(await verifier.verify(issuer.token())) is None
    assert issuer.fetches == 2


async def test_a_token_without_a_key_id_is_accepted_if_only_one_key_fits() -> None:
    issuer = Issuer(RSA)
    nameless = {"kid": None}
    assert reason(await issuer.verifier().verify(issuer.token(header=nameless))) is None
    assert reason(await Issuer(without_kid(RSA)).verifier().verify(issuer.token(header=nameless))) is None
    assert reason(await Issuer(RSA, P256).verifier().verify(issuer.token(header=nameless))) is None
    assert (
        reason(await Issuer(RSA, OTHER_RSA).verifier().verify(issuer.token(header=nameless))) is TokenRefusalReason.KEY
    )
    assert reason(await Issuer(P256).verifier().verify(issuer.token(header=nameless))) is TokenRefusalReason.KEY
    assert (
        reason(await Issuer(OTHER_RSA).verifier().verify(issuer.token(header=nameless))) is TokenRefusalReason.SIGNATURE
    )


async def test_the_id_of_a_key_of_another_type_does_not_help() -> None:
    issuer = Issuer(RSA, P256, P384, ED25519)
    verifier = issuer.verifier()
    assert reason(await verifier.verify(issuer.token(RSA, header={"kid": "p256"}))) is TokenRefusalReason.KEY
    assert (
        reason(await verifier.verify(issuer.token(P256, header={"alg": "ES256", "kid": "rsa"})))
        is TokenRefusalReason.KEY
    )
    assert (
        reason(await verifier.verify(issuer.token(P256, header={"alg": "ES256", "kid": "p384"})))
        is TokenRefusalReason.KEY
    )
    assert reason(await verifier.verify(issuer.token(OTHER_RSA, header={"kid": "rsa"}))) is TokenRefusalReason.SIGNATURE


async def test_a_key_serves_only_the_purpose_that_it_was_published_for() -> None:
    key = RSA.as_dict(private=False)
    for limits, want in (
        ({"use": "sig", "alg": "RS256"}, None),
        ({"use": "enc"}, TokenRefusalReason.KEY),
        ({"alg": "RS512"}, TokenRefusalReason.KEY),
        ({"key_ops": ["encrypt"]}, TokenRefusalReason.SIGNATURE),
    ):
        issuer = Issuer({**key, **limits})
        assert reason(await issuer.verifier().verify(issuer.token())) is want, limits


async def test_two_keys_of_one_id_are_both_tried() -> None:
    twin = {**OTHER_RSA.as_dict(private=False), "kid": "rsa"}
    issuer = Issuer(twin, RSA)
    assert reason(await issuer.verifier().verify(issuer.token())) is None
    assert reason(await issuer.verifier().verify(issuer.token(OTHER_RSA, header={"kid": "rsa"}))) is None


async def test_strange_keys_do_not_make_the_others_unusable() -> None:
    public = RSA.as_dict(private=False)
    strange: list[Any] = [
        {},
        {"kty": "AKP", "alg": "ML-DSA-44", "kid": "rsa"},
        {"kty": "RSA", "kid": "rsa"},
        {**public, "n": 5},
        {**public, "n": "!"},
        {**public, "e": "AQ"},
        {**public, "kid": 5},
        {**public, "use": ["sig"], "key_ops": 5},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "p256"},
        {"kty": "EC", "crv": "P-999", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": without_kid(ED25519)["x"], "kid": "x"},
        {"kty": "OKP", "crv": ["Ed25519"], "x": "AA"},
        {"kty": ["RSA"]},
        OctKey.import_key(b"a" * 32).as_dict(private=True),
    ]
    issuer = Issuer(*strange, RSA)
    assert reason(await issuer.verifier().verify(issuer.token())) is None
    token = issuer.token(ED25519, header={"alg": "EdDSA", "kid": "x"})
    assert reason(await issuer.verifier().verify(token)) is TokenRefusalReason.SIGNATURE


@for_all(strategies.sampled_from([RSA, P256, ED25519]), strategies.sampled_from(FIELDS), JSON)
def test_whatever_stands_in_a_key_the_others_remain_usable(key: Any, field: str, value: object) -> None:
    issuer = Issuer({**key.as_dict(private=False), field: value}, OTHER_RSA)
    assert reason(asyncio.run(issuer.verifier().verify(issuer.token(OTHER_RSA)))) is None


async def test_a_weak_key_or_one_that_is_no_longer_secret_is_not_used() -> None:
    with pytest.warns(match="2048"):
        weak = RSAKey.generate_key(1024, {"kid": "weak"})
    issuer = Issuer(weak, RSA.as_dict(private=True))
    assert reason(await issuer.verifier().verify(signed(weak, issuer.claims()))) is TokenRefusalReason.KEY
    assert reason(await issuer.verifier().verify(issuer.token())) is TokenRefusalReason.KEY


async def test_only_so_many_keys_are_read() -> None:
    issuer = Issuer(*(without_kid(P256) for _ in range(MAX_KEYS)), RSA)
    assert reason(await issuer.verifier().verify(issuer.token())) is TokenRefusalReason.KEY


async def test_an_issuer_that_withdraws_all_its_keys_is_believed() -> None:
    issuer = Issuer(RSA)
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.keys = ()
    issuer.clock.step(minutes=10)
    assert reason(await verifier.verify(issuer.token())) is TokenRefusalReason.KEY


@pytest.mark.parametrize(
    ("discovery", "want"),
    [
        ({"issuer": "https://evil.example.org", "jwks_uri": JWKS_URL}, Stuck),
        ({"issuer": ISSUER + "/", "jwks_uri": JWKS_URL}, Stuck),
        ({"jwks_uri": JWKS_URL}, Stuck),
        ({"issuer": ISSUER}, Stuck),
        ({"issuer": ISSUER, "jwks_uri": 5}, Stuck),
        ({"issuer": ISSUER, "jwks_uri": "http://keys.example.org/jwks"}, Stuck),
        ({"issuer": ISSUER, "jwks_uri": "file:///etc/keys"}, Stuck),
        (b"<html>Sign in to this network</html>", Unreachable),
        (b"[]", Unreachable),
        (b"", Unreachable),
        (b"[" * 100_000, Unreachable),
        (b'{"issuer": "a", "issuer": "b"}', Unreachable),
    ],
)
async def test_a_wrong_discovery_document_is_not_followed(discovery: object, want: type[Exception]) -> None:
    issuer = Issuer()
    issuer.discovery = discovery
    with pytest.raises(want):
        await issuer.verifier().verify(issuer.token())
    assert issuer.asked == [DISCOVERY_URL]


async def test_a_wrong_answer_does_not_take_known_keys_away() -> None:
    issuer = Issuer(RSA)
    verifier = issuer.verifier()
    await verifier.verify(issuer.token())
    issuer.discovery = {"issuer": "https://evil.example.org", "jwks_uri": JWKS_URL}
    issuer.clock.step(minutes=11)
    assert reason(await verifier.verify(issuer.token())) is None
