"""The line to one controller: a request out, an answer back or an error that says why none came. Used by `cml_wire`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlencode

import httpx
import msgspec

from lcm.model.errors import Fault, Invalid
from lcm.providers import cml_tls
from lcm.providers.cml_errors import unanswered
from lcm.providers.labhost import CmlAnswerError

# Workers are polled every minute: an idle connection is cheaper to keep than to make anew.
_KEPT_OPEN: Final = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=90)
_PORTS: Final = range(1, 65536)
_HIDING: Final = re.compile(r"[@?]")
"""What comes with a password or a token in an address."""
_ODD: Final = re.compile(r"[@?#\s]")
_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "lcm"}
_ADDRESSES: Final = 16_384


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how large things may get. The first three are the official client's time-outs."""

    connect_seconds: float = 10
    read_seconds: float = 300
    write_seconds: float = 60
    question_seconds: float = 60
    """A whole call that only looks."""
    effect_seconds: float = 330
    """A whole call that changes something, or that downloads a lab."""
    poll_seconds: float = 2
    """Between two looks at something under way."""
    licence_seconds: float = 150
    """Until a licence is registered, or given back."""
    removal_seconds: float = 600
    """Until a lab is stopped, wiped and deleted."""
    refusal_seconds: float = 60
    """During which refused credentials are not tried again."""
    body_bytes: int = 64 * 1024 * 1024


class Answer(msgspec.Struct, frozen=True):
    """What came back, whole."""

    status: int
    media_type: str
    retry_after: str | None
    body: bytes


class Line:
    """One connection pool to one controller.

    Requests go to the transport itself: what an httpx client does around it (redirects, cookies, proxies) is not wanted
    here, and takes a third of the time that a call costs. A thousand workers are asked four things a minute.
    """

    def __init__(
        self, url: str, *, pin: str | None, limits: Limits, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._limit_bytes = limits.body_bytes
        self._base = _checked(url, pin)
        self._transport = transport or _network(pin)
        timeout = httpx.Timeout(
            connect=limits.connect_seconds,
            read=limits.read_seconds,
            write=limits.write_seconds,
            pool=None,  # to wait for each other is no outage; the limit of the whole call ends it
        )
        self._options = {"timeout": timeout.as_dict()}

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        """Write a request."""
        query = f"?{urlencode(params)}" if params else ""
        return httpx.Request(
            method,
            _parsed(f"{self._base}{path}{query}"),
            content=content,
            headers={**_HEADERS, **(headers or {})},
            extensions=self._options,
        )

    async def exchange(self, request: httpx.Request) -> Answer:
        """Send a request and read the whole answer, whatever its status."""
        try:
            response = await self._transport.handle_async_request(request)
            response.request = request
            try:
                body = await self._body(response)
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise unanswered(str(request.url), error) from error
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Answer(response.status_code, media_type, response.headers.get("retry-after"), body)

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        await self._transport.aclose()

    async def _body(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self._limit_bytes:
                raise CmlAnswerError(
                    "CmlAnswerTooLarge", f"{response.url} answered with more than {self._limit_bytes} bytes"
                )
        return b"".join(parts)


@lru_cache(maxsize=_ADDRESSES)
def _parsed(url: str) -> httpx.URL:
    """Parse an address; the same few of each worker are asked again and again."""
    return httpx.URL(url)


def _checked(url: str, pin: str | None) -> str:
    if not _is_address(url):
        shown = "this" if _HIDING.search(url) else repr(url)
        raise Invalid(Fault("url", f"{shown} is not a controller's address", "write https://host[:port]"))
    if pin and httpx.URL(url).scheme == "http":
        raise Invalid(Fault("pin", "plain http shows no certificate", "use https, or do not pin one"))
    return f"{url.rstrip('/')}/api/v0/"


def _is_address(url: str) -> bool:
    try:
        parts = httpx.URL(url)
        parts.host.encode("idna")  # the resolver will do so, and let its error through
    except (httpx.InvalidURL, ValueError):
        return False
    port = parts.port is None or parts.port in _PORTS
    return parts.scheme in {"http", "https"} and bool(parts.host) and port and not _ODD.search(url)


def _network(pin: str | None) -> httpx.AsyncHTTPTransport:
    trusted = cml_tls.pinned(pin) if pin else cml_tls.system()
    return httpx.AsyncHTTPTransport(verify=trusted, limits=_KEPT_OPEN, trust_env=False)
