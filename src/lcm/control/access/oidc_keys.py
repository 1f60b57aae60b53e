"""The keys that an issuer signs with: asked for when needed, kept for a while, and kept longer when it is away.

Used by `oidc`. A key that we do not know makes us ask again, but not for everybody who makes one up.
"""

import asyncio
import base64
import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import httpx
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later, LcmError, Stuck, Throttled, Unreachable

_LONGEST_URL: Final = 2048
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})\b", re.IGNORECASE)


class Fetched(NamedTuple):
    """A document, and what its server said about keeping it."""

    body: bytes
    cache_control: str = ""


class Fetch(Protocol):
    """The way to an issuer."""

    async def get(self, url: str) -> Fetched:
        """Read a document of limited size, within limited time, without following redirects. May be repeated.

        Raises Later when it did not come, Stuck when only a person can change that.
        """
        ...


def strict_json(text: bytes) -> dict[str, Any]:
    """Read a JSON object; raises ValueError for anything else, and where one name stands twice.

    Two readers of a name that stands twice may believe different things.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once_each, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  everything here is one kind of error
    return value


def is_loopback(url: str) -> bool:
    """Tell whether an address leads to this very machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_trustworthy(url: str) -> bool:
    """Tell whether what comes from an address is its owner's word: by https, or from this very machine."""
    try:
        parts = urlsplit(url)
        odd = parts.username is not None or parts.password is not None or parts.port == 0 or not parts.hostname
    except ValueError:
        return False
    if odd or parts.fragment or len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


def fresh_for(cache_control: str, *, default: timedelta, least: timedelta, most: timedelta) -> timedelta:
    """Tell how long a document need not be asked for again."""
    if re.search(r"\bno-(?:store|cache)\b", cache_control, re.IGNORECASE):
        return least
    said = _MAX_AGE.search(cache_control)
    return min(max(timedelta(seconds=int(said[1])), least), most) if said else default


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _no_number(_: str) -> None:
    raise ValueError("not a number")


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


LIMIT_BYTES: Final = 256 * 1024
LIMIT_SECONDS: Final = 5.0

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "lcm"}
_OK: Final = 200
_TOO_MANY: Final = 429


class HttpFetch:
    """Reads an issuer's documents."""

    def __init__(
        self,
        *,
        trusted: ssl.SSLContext | None = None,
        limit_bytes: int = LIMIT_BYTES,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._trusted = trusted
        self._limit_bytes = limit_bytes
        self._limit_seconds = limit_seconds

    async def get(self, url: str) -> Fetched:
        assert is_trustworthy(url)
        try:
            async with asyncio.timeout(self._limit_seconds), self._client(url) as client:
                return await self._answer(client, url)
        except TimeoutError:
            raise Unreachable(f"no answer from {url} within {self._limit_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise _unanswered(url, error) from error

    def _client(self, url: str) -> httpx.AsyncClient:
        # Plain http needs no authorities, and a proxy does not lead to this machine itself.
        trusted = False if urlsplit(url).scheme == "http" else self._trusted or _authorities()
        limit, remote = self._limit_seconds, not is_loopback(url)
        return httpx.AsyncClient(headers=_HEADERS, verify=trusted, timeout=limit, trust_env=remote)

    async def _answer(self, client: httpx.AsyncClient, url: str) -> Fetched:
        async with client.stream("GET", url) as response:
            if response.status_code == _TOO_MANY:
                raise Throttled(f"{url} asks us to slow down")
            if response.status_code != _OK:  # a redirect as well: the issuer says where its documents are
                raise Unreachable(f"{url} answered with HTTP {response.status_code}")
            body = b""
            async for part in response.aiter_raw():
                body += part
                if len(body) > self._limit_bytes:
                    raise Unreachable(f"{url} answered with more than {self._limit_bytes} bytes")
            return Fetched(body, response.headers.get("cache-control", ""))


@cache
def _authorities() -> ssl.SSLContext:
    """Trust the system's authorities; reading them takes a while."""
    return ssl.create_default_context()


def _unanswered(url: str, error: Exception) -> LcmError:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Stuck("Certificate", f"{url} shows a certificate that we do not trust")
    return Unreachable(f"no answer from {url}: {type(error).__name__}")
