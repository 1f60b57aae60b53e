"""Issuers of tokens for tests: real keys, real signatures, and answers that can be made late, wrong or missing."""

import asyncio
import base64
import json
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from lcm.control.access.oidc import IssuerTrust, Verifier
from lcm.control.access.oidc_keys import FetchedDocument
from lcm.model.base.errors import LcmError, Unreachable
from stores import HandClock

ISSUER = "https://login.example.org/realms/labs"
AUDIENCE = "lcm"
DISCOVERY_URL = f"{ISSUER}/.well-known/openid-configuration"
JWKS_URL = "https://keys.example.org/jwks"

RSA: Key = RSAKey.generate_key(2048, {"kid": "rsa"})
OTHER_RSA: Key = RSAKey.generate_key(2048, {"kid": "other"})
P256: Key = ECKey.generate_key("P-256", {"kid": "p256"})
P384: Key = ECKey.generate_key("P-384", {"kid": "p384"})
P521: Key = ECKey.generate_key("P-521", {"kid": "p521"})
ED25519: Key = OKPKey.generate_key("Ed25519", {"kid": "ed25519"})


class _AnyAlgorithm(JWSRegistry):
    def get_alg(self, name: str) -> Any:
        return self.algorithms[name]


def part(value: object) -> str:
    """Write a part of a token: a value as JSON, bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: Key, claims: object, **header: Any) -> str:
    """Sign claims, or bytes that only look like them; a header of None is left out."""
    named = {"alg": "RS256", "typ": "JWT", "kid": key.kid, **header}
    wanted = {name: value for name, value in named.items() if value is not None}
    data = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jws.serialize_compact(wanted, data, key, registry=_AnyAlgorithm(strict_check_header=False))


def signed_with_public_key(key: Key, claims: object, form: bytes) -> str:
    """Sign with HS256 and a public key as if it were a password, which a careless verifier takes for its own."""
    return signed(OctKey(form, form), claims, alg="HS256", kid=key.kid)


def without_kid(key: Key) -> dict[str, Any]:
    return {name: value for name, value in key.as_dict(private=False).items() if name != "kid"}


class Issuer:
    """An issuer in memory: what it would answer, whom it was asked by, and what its clock says."""

    def __init__(self, *keys: Key | dict[str, Any]) -> None:
        self.clock = HandClock()
        self.keys: tuple[Key | dict[str, Any], ...] = keys or (RSA, P256)
        self.discovery: object = {"issuer": ISSUER, "jwks_uri": JWKS_URL, "more": [1]}
        self.cache_control = ""
        self.failure: LcmError | None = None
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def fetches(self) -> int:
        """How often it was asked for keys."""
        return self.asked.count(JWKS_URL)

    def go_away(self) -> None:
        self.failure = Unreachable("no answer")

    async def get(self, url: str) -> FetchedDocument:
        self.asked.append(url)
        await self.gate.wait()
        if self.failure:
            raise self.failure
        if url == DISCOVERY_URL:
            return FetchedDocument(_body(self.discovery))
        assert url == JWKS_URL
        keys = [one if isinstance(one, dict) else one.as_dict(private=False) for one in self.keys]
        return FetchedDocument(_body({"keys": keys}), self.cache_control)

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Make the claims of a token for Ada, good for an hour; a claim of None is left out."""
        now = int(self.clock.now().timestamp())
        usual = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "exp": now + 3600,
            "nbf": now,
            "iat": now,
            "sub": "248289761001",
            "email": "ada@example.org",
            "email_verified": True,
            "roles": ["operator"],
        }
        return {name: value for name, value in (usual | changes).items() if value is not None}

    def token(self, key: Key = RSA, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
        return signed(key, self.claims(**changes), **(header or {}))

    def verifier(self, **trust: Any) -> Verifier:
        wanted = {"issuer": ISSUER, "audiences": frozenset({AUDIENCE}), **trust}
        return Verifier(IssuerTrust(**wanted), fetch=self, clock=self.clock)


def _body(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()
