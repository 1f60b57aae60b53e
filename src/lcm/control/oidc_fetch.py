"""The way to an issuer of tokens, over HTTP. Made by `compose` for `oidc`.

Issuers are asked every few minutes at most, so no connection is kept.
"""

import asyncio
import ssl
from functools import cache
from typing import Final
from urllib.parse import urlsplit

import httpx

from lcm.control.oidc_wire import Fetched, is_loopback, is_trustworthy
from lcm.model.errors import LcmError, Stuck, Throttled, Unreachable

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
