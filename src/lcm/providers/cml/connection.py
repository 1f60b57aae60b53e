"""The line to one controller: a request out, an answer back or an error that says why none came. Used by `cml_wire`."""

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
from lcm.providers.cml.errors import unanswered
from lcm.providers.protocols.labhost import CmlAnswerError

HTTPS_PORT: Final = 443
_FETCH_SECONDS: Final = 20.0
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name. What is pinned is believed until it is forgotten."""


def pinned(pem: str) -> ssl.SSLContext:
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
def system() -> ssl.SSLContext:
    """Trust the system's authorities. Reading them takes a while, so all hosts share them."""
    return ssl.create_default_context()


async def fetch_certificate(host: str, port: int = HTTPS_PORT, *, seconds: float = _FETCH_SECONDS) -> str:
    """Return the certificate that a machine shows, as PEM, without believing it.

    Raises NotReady while nothing listens, Unreachable when no TLS server answers, Invalid when it is no address.
    """
    if not host:
        raise _no_address(host, port)
    target = f"https://{host}:{port}"
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=_anyone())
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()  # a farewell would wait for a machine that owes us nothing
    except TimeoutError as error:
        raise Unreachable(f"no answer from {target} within {seconds:g} s") from error
    except OSError as error:
        raise unanswered(target, error) from error
    except (ValueError, OverflowError) as error:
        raise _no_address(host, port) from error
    return ssl.DER_cert_to_PEM_cert(shown)


def _no_address(host: str, port: int) -> Invalid:
    return Invalid(Fault("host", f"{host!r} with port {port} is not an address", "give a name or an IP address"))


def _anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


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
    trusted = pinned(pin) if pin else system()
    return httpx.AsyncHTTPTransport(verify=trusted, limits=_KEPT_OPEN, trust_env=False)
