"""The signing keys of an issuer, and how its documents are fetched over HTTP.

Used by `oidc`; `HttpFetch` is made by `compose`. Keys are fetched on demand, cached, and used longer while the issuer
is unreachable. An unknown key id causes a new request, but at a limited rate, as anybody can make one up. Issuers are
asked every few minutes at most, so no connection is kept.
"""

import asyncio
import json
import re
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote_plus, urlsplit

import httpx
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import base64_to_int

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later, Stuck, Throttled, Unreachable

_MAX_URL_LENGTH: Final = 2048
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})\b", re.IGNORECASE)


class FetchedDocument(NamedTuple):
    """A document, its server's Cache-Control header, and the status."""

    body: bytes
    cache_control: str = ""
    status: int = 200


class Fetch(Protocol):
    """Fetches the documents of an issuer."""

    async def get(self, url: str) -> FetchedDocument:
        """Fetch a document of limited size, within limited time, without redirects. May be repeated.

        Raises Later when it did not come, Stuck when only a person can change that.
        """
        ...


class FormFetch(Fetch, Protocol):
    """Also sends forms to it."""

    async def post(self, url: str, form: Mapping[str, str], credentials: tuple[str, str] | None) -> FetchedDocument:
        """Send a form, with user and password if given, and return the answer, also one that refuses it.

        The same limits hold. Raises as `get` does; the other side may have acted all the same.
        """
        ...


def strict_json(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises ValueError for anything else, and for a duplicate name.

    Two readers of a duplicate name might take different values for it.
    """
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique_names, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("too deep") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  everything here is one kind of error
    return value


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine itself."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_trustworthy(url: str) -> bool:
    """Return whether the answers of a URL can be trusted: it uses https, or leads to this machine itself."""
    try:
        parts = urlsplit(url)
        odd = parts.username is not None or parts.password is not None or parts.port == 0 or not parts.hostname
    except ValueError:
        return False
    if odd or parts.fragment or len(url) > _MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


def cache_lifetime(cache_control: str) -> timedelta:
    """Return how long a document need not be fetched again."""
    if re.search(r"\bno-(?:store|cache)\b", cache_control, re.IGNORECASE):
        return MIN_REFRESH_INTERVAL
    said = _MAX_AGE.search(cache_control)
    return min(max(timedelta(seconds=int(said[1])), MIN_REFRESH_INTERVAL), MAX_FRESH) if said else DEFAULT_FRESH


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _reject_constant(_: str) -> None:
    raise ValueError("not a number")


PublicKey = RSAKey | ECKey | OKPKey

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519", "Ed448"}
)
"""Only asymmetric ones: whoever can verify a signature must not be able to make one."""

DEFAULT_FRESH: Final = timedelta(minutes=10)
"""How long keys are fresh when the issuer does not say."""
MAX_FRESH: Final = timedelta(hours=24)
"""The longest time for which the issuer may declare its keys fresh."""
MIN_REFRESH_INTERVAL: Final = timedelta(seconds=30)
"""The shortest time between two requests to the issuer."""
MAX_STALE: Final = timedelta(hours=24)
"""How long keys are used while the issuer cannot be reached.

A key that it revoked in that time is accepted as well.
"""
MAX_KEYS: Final = 100

_DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
_RSA_BITS: Final = range(2048, 8193)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class IssuerKeys:
    """The public keys of one issuer."""

    def __init__(self, issuer: str, *, fetch: Fetch, clock: Clock, jwks_url: str = "") -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._fetch = fetch
        self._clock = clock
        self._refreshing = asyncio.Lock()
        self._keys: Sequence[PublicKey] = ()
        self._failure: Later | Stuck | None = None
        self._tried_at: datetime | None = None
        self._fetched_at: datetime | None = None
        self._fresh = timedelta(0)

    async def find(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        """Return the keys with this id that fit an algorithm, or all that fit when there is no id.

        An empty result means that the issuer has no such key. Raises Later or Stuck when it could not be asked.
        """
        found = self._find_cached(kid, algorithm)
        if not found or (not self._is_within(self._fetched_at, self._fresh) and not self._refreshing.locked()):
            await self._refresh()
            found = self._find_cached(kid, algorithm)
        if not found and self._failure:
            raise self._failure.with_traceback(None)
        return found

    def _find_cached(self, kid: str | None, algorithm: str) -> Sequence[PublicKey]:
        if not self._is_within(self._fetched_at, MAX_STALE):
            return ()
        named = (key for key in self._keys if kid is None or key.kid == kid)
        return [key for key in named if JWSRegistry.filter_algorithms(key, [algorithm])]

    def _is_within(self, since: datetime | None, span: timedelta) -> bool:
        # After the clock was set back everything counts as old: an extra request is better than trusting too long.
        return since is not None and timedelta(0) <= self._clock.now() - since < span

    async def _refresh(self) -> None:
        async with self._refreshing:
            if self._is_within(self._tried_at, MIN_REFRESH_INTERVAL):
                return
            try:
                await self._fetch_keys()
            except (Later, Stuck) as error:
                log.warning("the issuer's keys could not be read", issuer=self._issuer, problem=str(error))
                self._failure = error
            self._tried_at = self._clock.now()

    async def _fetch_keys(self) -> None:
        url = self._jwks_url or await self._discover()
        answer = await self._fetch.get(url)
        keys = tuple(_usable_keys(_parse_document(answer, url), url))
        if [key.kid for key in keys] != [key.kid for key in self._keys]:
            log.info("the issuer's keys have changed", issuer=self._issuer, keys=[key.kid for key in keys])
        self._keys, self._failure, self._fetched_at = keys, None, self._clock.now()
        self._fresh = cache_lifetime(answer.cache_control)

    async def _discover(self) -> str:
        return named_address(await discover(self._issuer, self._fetch), "jwks_uri")


async def discover(issuer: str, fetch: Fetch) -> Mapping[str, Any]:
    """Fetch what an issuer says about itself. Raises Later, or Stuck if it names another issuer."""
    url = issuer.rstrip("/") + _DISCOVERY_PATH
    found = _parse_document(await fetch.get(url), url)
    if found.get("issuer") != issuer:
        raise Stuck("OidcIssuer", f"{url} names another issuer; write OIDC_ISSUER exactly as it does")
    return found


def named_address(discovered: Mapping[str, Any], name: str) -> str:
    """Return an address that an issuer's discovery document names. Raises Stuck unless it can be trusted."""
    url = discovered.get(name)
    if not isinstance(url, str) or not is_trustworthy(url):
        issuer = discovered.get("issuer")
        raise Stuck("OidcKeys", f"{issuer}{_DISCOVERY_PATH} names no trusted {name}; it must begin with https://")
    return url


def _parse_document(answer: FetchedDocument, url: str) -> Mapping[str, Any]:
    try:
        return strict_json(answer.body)
    except ValueError:
        raise Unreachable(f"{url} did not answer with a JSON object") from None


def _usable_keys(document: Mapping[str, Any], url: str) -> Iterator[PublicKey]:
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise Unreachable(f"{url} did not answer with keys")
    for one in listed[:MAX_KEYS]:
        if isinstance(one, dict) and (key := _import_key(one)) is not None:
            yield key


def _import_key(one: dict[str, Any]) -> PublicKey | None:
    """Import a key; None for one that is unknown, weak or not public, so that the others stay usable."""
    try:
        if "d" in one or (one["kty"] == "RSA" and base64_to_int(one["n"]).bit_length() not in _RSA_BITS):
            return None
        key = JWKRegistry.import_key(one)
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, LookupError):
        return None
    return key if isinstance(key, PublicKey) else None


MAX_DOCUMENT_BYTES: Final = 256 * 1024
FETCH_SECONDS: Final = 5.0

_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "lcm"}
_OK: Final = 200
_BAD_REQUEST, _UNAUTHORIZED = 400, 401
"""How a form is refused, with the reason in the body."""
_TOO_MANY_REQUESTS: Final = 429


class HttpFetch:
    """Fetches an issuer's documents over HTTP."""

    def __init__(
        self,
        *,
        trusted: ssl.SSLContext | None = None,
        limit_bytes: int = MAX_DOCUMENT_BYTES,
        limit_seconds: float = FETCH_SECONDS,
    ) -> None:
        self._trusted = trusted
        self._limit_bytes = limit_bytes
        self._limit_seconds = limit_seconds

    async def get(self, url: str) -> FetchedDocument:
        return await self._ask(httpx.Request("GET", url), frozenset({_OK}))

    async def post(self, url: str, form: Mapping[str, str], credentials: tuple[str, str] | None) -> FetchedDocument:
        headers = {}
        if credentials:
            # Each half is encoded as in a form, and only then are they joined: RFC 6749, 2.3.1.
            pair = ":".join(quote_plus(half) for half in credentials)
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        request = httpx.Request("POST", url, data=dict(form), headers=headers)
        return await self._ask(request, frozenset({_OK, _BAD_REQUEST, _UNAUTHORIZED}))

    async def _ask(self, request: httpx.Request, accepted: frozenset[int]) -> FetchedDocument:
        url = str(request.url)
        assert is_trustworthy(url)
        request.headers.update(_HEADERS)
        try:
            async with asyncio.timeout(self._limit_seconds), self._client(url) as client:
                return await self._read_answer(client, request, accepted)
        except TimeoutError:
            raise Unreachable(f"no answer from {url} within {self._limit_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Stuck("Certificate", f"{url} shows a certificate that we do not trust") from error
            raise Unreachable(f"no answer from {url}: {type(error).__name__}") from error

    def _client(self, url: str) -> httpx.AsyncClient:
        # Plain http needs no certificate authorities, and loopback addresses must not go through a proxy.
        trusted = False if urlsplit(url).scheme == "http" else self._trusted or _default_tls()
        limit, remote = self._limit_seconds, not is_loopback(url)
        return httpx.AsyncClient(verify=trusted, timeout=limit, trust_env=remote)

    async def _read_answer(
        self, client: httpx.AsyncClient, request: httpx.Request, accepted: frozenset[int]
    ) -> FetchedDocument:
        url = request.url
        response = await client.send(request, stream=True)
        try:
            if response.status_code == _TOO_MANY_REQUESTS:
                raise Throttled(f"{url} asks us to slow down")
            if response.status_code not in accepted:  # redirects too: discovery names the exact addresses
                raise Unreachable(f"{url} answered with HTTP {response.status_code}")
            body = b""
            async for part in response.aiter_raw():
                body += part
                if len(body) > self._limit_bytes:
                    raise Unreachable(f"{url} answered with more than {self._limit_bytes} bytes")
            return FetchedDocument(body, response.headers.get("cache-control", ""), response.status_code)
        finally:
            await response.aclose()


@cache
def _default_tls() -> ssl.SSLContext:
    """Return a TLS context with the system's authorities; cached, since loading them is slow."""
    return ssl.create_default_context()
