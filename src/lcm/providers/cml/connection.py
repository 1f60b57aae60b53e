"""The connection to one controller: a request out, a response back or an error that says why none came. Used by `rest`.

It trusts the certificate pinned for the worker, or else the system's authorities. A CML made from an image signs its
own certificate, so at first contact `fetch_certificate` takes what it shows and the caller stores that with the
worker; from then on nothing else is trusted.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final
from urllib.parse import urlencode

import httpx
import msgspec

from lcm.model.base.errors import Fault, Invalid, Unreachable
from lcm.providers.cml.errors import translate_no_answer
from lcm.providers.protocols.labhost import CmlAnswerError

HTTPS_PORT: Final = 443
_FETCH_SECONDS: Final = 20.0
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name.

A pinned certificate is trusted until it is forgotten.
"""


def pinned_context(pem: str) -> ssl.SSLContext:
    """Trust whoever holds this certificate's key, under any name and at any time, and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # workers get new addresses whenever they start; the key is the identity
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError says that it is not ASCII
        raise Invalid(Fault("pin", "not a certificate in PEM", "fetch the worker's certificate again")) from error
    return context


@cache
def system_context() -> ssl.SSLContext:
    """Trust the system's authorities. Loading them takes a while, so all hosts share them."""
    return ssl.create_default_context()


async def fetch_certificate(host: str, port: int = HTTPS_PORT, *, seconds: float = _FETCH_SECONDS) -> str:
    """Return the certificate that a machine shows, as PEM, without trusting it.

    Raises NotReady while nothing listens, Unreachable when no TLS server answers, Invalid when it is no
    address.
    """
    if not host:
        raise _bad_address(host, port)
    target = f"https://{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=_unverified_context())
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()  # a clean shutdown would wait for the machine
    except TimeoutError as error:
        raise Unreachable(f"no answer from {target} within {seconds:g} s") from error
    except OSError as error:
        raise translate_no_answer(target, error) from error
    except (ValueError, OverflowError) as error:
        raise _bad_address(host, port) from error
    return ssl.DER_cert_to_PEM_cert(shown)


def _bad_address(host: str, port: int) -> Invalid:
    return Invalid(Fault("host", f"{host!r} with port {port} is not an address", "give a name or an IP address"))


def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# Workers are polled every minute: keeping an idle connection is cheaper than opening a new one.
_POOL_LIMITS: Final = httpx.Limits(max_connections=8, max_keepalive_connections=2, keepalive_expiry=90)
_PORTS: Final = range(1, 65536)
_SECRET_MARKS: Final = re.compile(r"[@?]")
"""Marks that come with a password or a token in an address."""
_FORBIDDEN_MARKS: Final = re.compile(r"[@?#\s]")
_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "lcm"}
_parse_url: Final = lru_cache(maxsize=16_384)(httpx.URL)
"""Parses an address. Cached, because the same few of each worker are requested again and again."""


@dataclass(frozen=True, slots=True)
class CmlLimits:
    """Limits on time and size. The first three are the official client's time-outs."""

    connect_seconds: float = 10
    read_seconds: float = 300
    write_seconds: float = 60
    question_seconds: float = 60
    """For a whole call that only reads."""
    effect_seconds: float = 330
    """For a whole call that changes something, or that downloads a lab."""
    poll_seconds: float = 2
    """Between two polls of something under way."""
    licence_seconds: float = 150
    """Until a licence is registered or returned."""
    removal_seconds: float = 600
    """Until a lab is stopped, wiped and deleted."""
    refusal_seconds: float = 60
    """During which refused credentials are not tried again."""
    body_bytes: int = 64 * 1024 * 1024


class CmlResponse(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    media_type: str
    retry_after: str | None
    body: bytes


class CmlConnection:
    """One connection pool to one controller.

    Requests go to the transport itself: what an httpx client does around it (redirects, cookies, proxies) is not wanted
    here, and takes a third of the time that a call costs. A thousand workers are asked four things a minute.
    """

    def __init__(
        self, url: str, *, pin: str | None, limits: CmlLimits, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._limit_bytes = limits.body_bytes
        self._base = _check_url(url, pin)
        self._transport = transport or httpx.AsyncHTTPTransport(
            verify=pinned_context(pin) if pin else system_context(), limits=_POOL_LIMITS, trust_env=False
        )
        timeout = httpx.Timeout(
            connect=limits.connect_seconds,
            read=limits.read_seconds,
            write=limits.write_seconds,
            pool=None,  # waiting for a free connection is no outage; the limit of the whole call ends it
        )
        self._options = {"timeout": timeout.as_dict()}

    def build_request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        """Build a request."""
        query = f"?{urlencode(params)}" if params else ""
        return httpx.Request(
            method,
            _parse_url(f"{self._base}{path}{query}"),
            content=content,
            headers={**_HEADERS, **(headers or {})},
            extensions=self._options,
        )

    async def exchange(self, request: httpx.Request) -> CmlResponse:
        """Send a request and read the whole response, whatever its status."""
        try:
            response = await self._transport.handle_async_request(request)
            response.request = request
            try:
                body = await self._read_body(response)
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise translate_no_answer(str(request.url), error) from error
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return CmlResponse(response.status_code, media_type, response.headers.get("retry-after"), body)

    async def close(self) -> None:
        """Close connections. May be repeated."""
        await self._transport.aclose()

    async def _read_body(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self._limit_bytes:
                raise CmlAnswerError(
                    "CmlAnswerTooLarge", f"{response.url} answered with more than {self._limit_bytes} bytes"
                )
        return b"".join(parts)


def _check_url(url: str, pin: str | None) -> str:
    try:
        parts = httpx.URL(url)
        parts.host.encode("idna")  # the resolver does the same, and does not catch the error
        usable = parts.scheme in {"http", "https"} and bool(parts.host) and (parts.port is None or parts.port in _PORTS)
    except (httpx.InvalidURL, ValueError):
        usable = False
    if not usable or _FORBIDDEN_MARKS.search(url):
        shown = "this" if _SECRET_MARKS.search(url) else repr(url)
        raise Invalid(Fault("url", f"{shown} is not a controller's address", "write https://host[:port]"))
    if pin and httpx.URL(url).scheme == "http":
        raise Invalid(Fault("pin", "plain http shows no certificate", "use https, or do not pin one"))
    return f"{url.rstrip('/')}/api/v0/"
