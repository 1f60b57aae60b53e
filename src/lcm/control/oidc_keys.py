"""The keys that an issuer signs with: asked for when needed, kept for a while, and kept longer when it is away.

Used by `oidc`. A key that we do not know makes us ask again, but not for everybody who makes one up.
"""

import asyncio
import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from lcm.control.oidc_wire import Fetch, Fetched, fresh_for, is_trustworthy, strict_json
from lcm.model.clock import Clock
from lcm.model.errors import Later, Stuck, Unreachable

PublicKey = RSAKey | ECKey | OKPKey

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"}
)
"""Only those whose verifier cannot sign."""

FRESH: Final = timedelta(minutes=10)
"""How long keys are good when the issuer does not say."""
FRESHEST: Final = timedelta(hours=24)
"""The longest that we believe it."""
AGAIN: Final = timedelta(seconds=30)
"""The shortest time between two questions."""
STALE: Final = timedelta(hours=24)
"""How long keys are believed while the issuer cannot be asked. One that it revoked meanwhile is believed as well."""
MOST_KEYS: Final = 100

_DISCOVERY: Final = "/.well-known/openid-configuration"
_KEY_TYPES: Final = {"RSA", "EC", "OKP"}
_RSA_BITS: Final = range(2048, 8193)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class IssuerKeys:
    """The public keys of one issuer."""

    def __init__(self, issuer: str, *, fetch: Fetch, clock: Clock, jwks_url: str = "") -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._fetch = fetch
        self._clock = clock
        self._asking = asyncio.Lock()
        self._keys: Sequence[PublicKey] = ()
        self._failure: Later | Stuck | None = None
        self._tried_at: datetime | None = None
        self._fetched_at: datetime | None = None
        self._fresh = timedelta(0)

    async def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Return the keys of this id that fit an algorithm, or all that fit when there is no id.

        None found means that the issuer has no such key. Raises Later or Stuck when it could not be asked.
        """
        found = self._known(kid, algorithm)
        if not found or (not self._within(self._fetched_at, self._fresh) and not self._asking.locked()):
            await self._refresh()
            found = self._known(kid, algorithm)
        if not found and self._failure:
            raise self._failure.with_traceback(None)
        return found

    def _known(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        if not self._within(self._fetched_at, STALE):
            return ()
        return [key for key in self._keys if (kid is None or key.kid == kid) and _fits(key, algorithm)]

    def _within(self, since: datetime | None, span: timedelta) -> bool:
        # A clock that was set back makes everything old: better asked once too often than believed too long.
        return since is not None and timedelta(0) <= self._clock.now() - since < span

    async def _refresh(self) -> None:
        async with self._asking:
            if self._within(self._tried_at, AGAIN):
                return
            try:
                await self._ask()
            except (Later, Stuck) as error:
                log.warning("the issuer's keys could not be read", issuer=self._issuer, problem=str(error))
                self._failure = error
            self._tried_at = self._clock.now()

    async def _ask(self) -> None:
        url = self._jwks_url or await self._discover()
        answer = await self._fetch.get(url)
        keys = tuple(_usable(_document(answer, url), url))
        if [key.kid for key in keys] != [key.kid for key in self._keys]:
            log.info("the issuer's keys have changed", issuer=self._issuer, keys=[key.kid for key in keys])
        self._keys, self._failure, self._fetched_at = keys, None, self._clock.now()
        self._fresh = fresh_for(answer.cache_control, default=FRESH, least=AGAIN, most=FRESHEST)

    async def _discover(self) -> str:
        url = self._issuer.rstrip("/") + _DISCOVERY
        found = _document(await self._fetch.get(url), url)
        if found.get("issuer") != self._issuer:
            raise Stuck("OidcIssuer", f"{url} speaks for another issuer; write OIDC_ISSUER exactly as it does")
        jwks_url = found.get("jwks_uri")
        if not isinstance(jwks_url, str) or not is_trustworthy(jwks_url):
            raise Stuck("OidcKeys", f"{url} names no trustworthy address of keys; it must begin with https://")
        return jwks_url


def _document(answer: Fetched, url: str) -> Mapping[str, Any]:
    try:
        return strict_json(answer.body)
    except ValueError:
        raise Unreachable(f"{url} did not answer with a JSON object") from None


def _usable(document: Mapping[str, Any], url: str) -> Iterator[PublicKey]:
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise Unreachable(f"{url} did not answer with keys")
    for one in listed[:MOST_KEYS]:
        if isinstance(one, dict) and (key := _imported(one)) is not None:
            yield key


def _imported(one: dict[str, Any]) -> PublicKey | None:
    """Read a key; one that is strange, weak or no longer secret does not make the others unusable."""
    try:
        if "d" in one or one["kty"] not in _KEY_TYPES or (one["kty"] == "RSA" and _bits(one["n"]) not in _RSA_BITS):
            return None
        key = JWKRegistry.import_key(one)
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, LookupError):
        return None
    return key if isinstance(key, PublicKey) else None


def _bits(number: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(number + "==")).bit_length()


def _fits(key: PublicKey, algorithm: str) -> bool:
    try:
        JWSRegistry.algorithms[algorithm].check_key(key)
    except JoseError:
        return False
    return True
