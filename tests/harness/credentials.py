"""Sealing keys, canary secrets and an OIDC issuer for tests."""

import asyncio
import base64
import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from harness.stores import HandClock
from lcm.control.access.oidc import IssuerTrust, Verifier
from lcm.control.access.oidc_keys import FetchedDocument
from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Unreachable
from lcm.providers.local.sealed import InstalledKeys, ensure_keys

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def counted() -> Callable[[], bytes]:
    """Return numbers that are used once, without chance."""
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(12)


def given_keys(*keys: bytes) -> InstalledKeys:
    """Return keys that come from the environment, the first of which seals."""
    text = ",".join(base64.b64encode(key).decode() for key in keys or (OLD,))
    return InstalledKeys(Path("/nowhere"), given=Secret(text), new_nonce=counted())


def kept_keys(folder: Path) -> InstalledKeys:
    """Return keys that are in a file, which is made if it is missing."""
    keys = (number.to_bytes(32) for number in itertools.count(1))
    ensure_keys(folder / "seal.key", new_key=lambda: OLD)
    return InstalledKeys(folder / "seal.key", new_key=lambda: next(keys), new_nonce=counted())


_SHOWN = 60


@dataclass
class Canary:
    """A mark that is part of every secret, and everything that was seen of a system which must not hold it."""

    mark: str = field(default_factory=lambda: f"kNrY{secrets.token_hex(10)}")
    found: list[str] = field(default_factory=list)
    looked_at: int = 0

    def secret(self, place: str) -> str:
        """Return a secret for a place; its name tells where a leak comes from."""
        return f"{self.mark}-{re.sub('[^A-Za-z0-9]+', '-', place)}"

    def key(self) -> str:
        """Return a key for seals, 32 bytes in base64, that has the mark in it."""
        return self.mark.ljust(43, "A") + "="

    def look(self, where: str, data: bytes | str, *others: str) -> None:
        """Look for the mark, and for other texts, in what came out of somewhere."""
        raw = data.encode() if isinstance(data, str) else data
        low = raw.lower()
        self.looked_at += 1
        for text in (self.mark, *others):
            for form, needle in _forms(text).items():
                if (at := low.find(needle)) >= 0:
                    near = raw[max(0, at - _SHOWN) : at + len(needle) + _SHOWN]
                    self.found.append(f"{where}: {form}: {near!r}")

    def look_into(self, folder: Path, *others: str) -> None:
        """Look into every file of a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.look(str(path), path.read_bytes(), *others)


@cache
def _forms(text: str) -> dict[str, bytes]:
    return {form: needle.lower() for form, needle in _written(text.encode())}


def _written(raw: bytes) -> Iterator[tuple[str, bytes]]:
    yield "in clear", raw
    yield "backwards", raw[::-1]
    yield "in hex", raw.hex().encode()
    yield "percent-encoded", b"".join(b"%%%02x" % byte for byte in raw)
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + raw + bytes(2))
        inner = whole[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
        yield f"in base64, {shift}", inner
        yield f"in base64url, {shift}", inner.replace(b"+", b"-").replace(b"/", b"_")


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
