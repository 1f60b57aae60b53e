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

import aiohttp
import httpx
import msgspec
import yarl

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


_PORTS: Final = range(1, 65536)
_SECRET_MARKS: Final = re.compile(r"[@?]")
"""Marks that come with a password or a token in an address."""
_FORBIDDEN_MARKS: Final = re.compile(r"[@?#\s]")
_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "lcm"}
_MAX_CONNECTIONS: Final = 8
_IDLE_SECONDS: Final = 90.0
"""Workers are polled every minute: keeping an idle connection is cheaper than opening a new one."""


@dataclass(frozen=True, slots=True)
class CmlLimits:
    """Limits on time and size. The first two are the official client's time-outs."""

    connect_seconds: float = 10
    read_seconds: float = 300
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


@dataclass(slots=True)
class CmlRequest:
    """A request that is to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes | None = None


class CmlResponse(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    media_type: str
    retry_after: str | None
    body: bytes


class CmlConnection:
    """The connections to one controller, or a transport that replaces the network."""

    def __init__(
        self, url: str, *, pin: str | None, limits: CmlLimits, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._base = _check_url(url, pin)
        trusted = pinned_context(pin) if pin else system_context()
        self._carrier = TransportCarrier(transport, limits) if transport else NetworkCarrier(trusted, limits)

    def build_request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> CmlRequest:
        """Build a request."""
        query = f"?{urlencode(params)}" if params else ""
        return CmlRequest(method, f"{self._base}{path}{query}", {**_HEADERS, **(headers or {})}, content)

    async def exchange(self, request: CmlRequest) -> CmlResponse:
        """Send a request and read the whole response, whatever its status."""
        try:
            return await self._carrier.exchange(request)
        except (httpx.RequestError, aiohttp.ClientError) as error:
            raise translate_no_answer(request.url, error) from error

    async def close(self) -> None:
        """Close connections. May be repeated."""
        await self._carrier.close()


class NetworkCarrier:
    """Carries requests over connections that are kept, by aiohttp.

    A thousand workers are asked four things a minute, each at its own time. For that aiohttp takes less than half of
    what httpx takes.
    """

    def __init__(self, trusted: ssl.SSLContext, limits: CmlLimits) -> None:
        self._trusted = trusted
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, request: CmlRequest) -> CmlResponse:
        """Send a request and read the whole response. Raises aiohttp's errors."""
        session = self._session = self._session or self._open_session()
        async with session.request(
            request.method,
            _parse_url(request.url),
            headers=request.headers,
            data=request.content,
            allow_redirects=False,
            middlewares=() if request.method == "GET" else (_send_once,),
        ) as answer:
            headers, body = answer.headers, await self._read_body(request, answer)
            return _make_response(answer.status, headers.get("Content-Type"), headers.get("Retry-After"), body)

    async def close(self) -> None:
        """Close connections. May be repeated."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        limits = self._limits
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_IDLE_SECONDS, ssl=self._trusted),
            # Waiting for a free connection is no outage; the limit of the whole call ends it.
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_seconds, sock_read=limits.read_seconds
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Content-Type",),
        )

    async def _read_body(self, request: CmlRequest, answer: aiohttp.ClientResponse) -> bytes:
        parts, size = [], 0
        async for part in answer.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > self._limits.body_bytes:
                raise CmlAnswerError(
                    "CmlAnswerTooLarge", f"{request.url} answered with more than {self._limits.body_bytes} bytes"
                )
        return b"".join(parts)


class TransportCarrier:
    """Carries requests by a transport of httpx's, which needs no network: in simulations and in tests."""

    def __init__(self, transport: httpx.AsyncBaseTransport, limits: CmlLimits) -> None:
        self._transport = transport
        timeout = httpx.Timeout(None, connect=limits.connect_seconds, read=limits.read_seconds)
        self._options = {"timeout": timeout.as_dict()}

    async def exchange(self, request: CmlRequest) -> CmlResponse:
        """Send a request and read the whole response. Raises httpx's errors."""
        asked = httpx.Request(
            request.method, request.url, content=request.content, headers=request.headers, extensions=self._options
        )
        answer = await self._transport.handle_async_request(asked)
        answer.request = asked
        try:
            body = await answer.aread()
        finally:
            await answer.aclose()
        headers = answer.headers
        return _make_response(answer.status_code, headers.get("content-type"), headers.get("retry-after"), body)

    async def close(self) -> None:
        """Close connections. May be repeated."""
        await self._transport.aclose()


async def _send_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request, so that aiohttp does not repeat it when its connection breaks: nobody would check the permit."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise  # nothing was sent, and nothing is repeated
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


def _make_response(status: int, media: str | None, retry_after: str | None, body: bytes) -> CmlResponse:
    return CmlResponse(status, (media or "").partition(";")[0].strip().lower(), retry_after, body)


@lru_cache(maxsize=16_384)
def _parse_url(url: str) -> yarl.URL:
    """Parse an address. Cached, because the same few of each worker are requested again and again."""
    return yarl.URL(url, encoded=True)


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
    return f"{yarl.URL(url)}".rstrip("/") + "/api/v0/"
