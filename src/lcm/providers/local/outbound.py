"""Posts to URLs that users chose, without ever reaching what `model.addresses` forbids.

A name is resolved once for each connection, all of its addresses are checked, and the socket is opened to a checked
address; TLS then proves the name. Redirects are refused; the environment's proxies and cookies are not used.
`compose` hands it to `control.outbox`.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Final

import httpcore

from lcm.model.access.webhook import Address, WebhookPolicy, WebhookTarget, is_address
from lcm.model.base.errors import LcmError, Refused, Throttled, Unreachable

_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)
_REFUSALS: Final = range(400, 500)
_BUSY: Final = frozenset({408, 425, 429, 503})
_DEFAULT_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(hours=1)
_MAX_TEXT: Final = 200
_SECONDS: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]+")
_NETWORK_ERRORS: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError)
"""All that httpcore raises for what networks and receivers do."""


Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns every address of a host and port, best first, with its scope if it has one. OSError: there is no answer."""
Connector = Callable[[Address, int, float], Awaitable[httpcore.AsyncNetworkStream]]
"""Connects to exactly this address and port within these seconds. Raises OSError or httpcore's errors otherwise."""


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """Limits on time and size."""

    connect_seconds: float = 5
    silence_seconds: float = 10
    post_seconds: float = 20
    """For one whole post. A receiver that sends a byte now and then never exceeds the limit on silence."""
    answer_bytes: int = 65_536
    addresses: int = 4
    connections: int = 256
    idle_seconds: float = 30


class Outbound:
    """Posts to receivers, with a pool of connections."""

    def __init__(
        self,
        reach: WebhookPolicy,
        *,
        resolver: Resolver | None = None,
        connector: Connector | None = None,
        limits: OutboundLimits | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """Post only to what `reach` permits. `trust` replaces the system's authorities."""
        self._reach = reach
        self._limits = limits or OutboundLimits()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=trust or _system_context(),
            max_connections=self._limits.connections,
            keepalive_expiry=self._limits.idle_seconds,
            network_backend=_CheckedBackend(reach, resolver or resolve, connector or connect, self._limits),
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Post, and return once the receiver has confirmed it.

        Refused, Invalid among them: this receiver will not take this request, or may not be reached. Throttled and
        Unreachable: try again; it may have arrived. Errors show neither the URL's path nor what was sent.
        """
        target = self._reach.parse_url(url)
        try:
            async with asyncio.timeout(self._limits.post_seconds):
                answer = await self._exchange(target, body, headers)
        except TimeoutError as error:
            raise Unreachable(f"no answer from {target} within {self._limits.post_seconds:g} s") from error
        except httpcore.LocalProtocolError as error:
            raise Refused(f"a request to {target} cannot be written: {error}") from error
        except _NETWORK_ERRORS as error:
            raise Unreachable(f"no answer from {target}: {str(error) or type(error).__name__}") from error
        if answer.status not in _SUCCESS:
            raise answer.to_error(target)

    async def close(self) -> None:
        """Close connections. May be repeated."""
        await self._pool.aclose()

    async def _exchange(self, target: WebhookTarget, body: bytes, headers: Mapping[str, str]) -> "_Response":
        limits = self._limits
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        sent = {"Host": target.authority, "User-Agent": "lcm", "Accept-Encoding": "identity", **headers}
        seconds = {
            "connect": limits.connect_seconds,
            "read": limits.silence_seconds,
            "write": limits.silence_seconds,
            "pool": limits.post_seconds,
        }
        fields = [(name.encode(), value.encode()) for name, value in sent.items()]
        async with self._pool.stream("POST", url, headers=fields, content=body, extensions={"timeout": seconds}) as got:
            heard = await _read_body(got, limits.answer_bytes)
        said = {name.lower(): value.decode("latin-1") for name, value in got.headers}
        return _Response(got.status, heard, said.get(b"retry-after", ""), said.get(b"date", ""))


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """The only way to a socket: resolves, checks, connects."""

    def __init__(self, reach: WebhookPolicy, resolver: Resolver, connector: Connector, limits: OutboundLimits) -> None:
        self._reach = reach
        self._resolve = resolver
        self._connect = connector
        self._limits = limits

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002  part of httpcore's protocol
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002  likewise
    ) -> httpcore.AsyncNetworkStream:
        try:
            answers = [host] if is_address(host) else await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"the name was not resolved: {error}") from error
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in self._reach.check_addresses(answers)[: self._limits.addresses]:
            try:
                return await self._connect(address, port, timeout or self._limits.connect_seconds)
            except _NETWORK_ERRORS as error:
                failure = error
        raise failure

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a name with the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    scopes = {place: f"%{place[3]}" if len(place) > 3 and place[3] else "" for *_, place in found}  # noqa: PLR2004  IPv6 has four parts
    return [f"{str(place[0]).partition('%')[0]}{scope}" for place, scope in scopes.items()]


async def connect(address: Address, port: int, seconds: float) -> httpcore.AsyncNetworkStream:
    """Open a real socket."""
    return await httpcore.AnyIOBackend().connect_tcp(str(address), port, timeout=seconds)


@cache
def _system_context() -> ssl.SSLContext:
    """Trust the system's authorities. Loading them takes a while."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes
    retry_after: str
    date: str

    def to_error(self, target: WebhookTarget) -> LcmError:
        """Return our error for an answer other than success."""
        words = _UNPRINTABLE.sub(" ", self.body[:_MAX_TEXT].decode(errors="replace")).strip()
        text = f"{target} answered {self.status}" + (f": {words}" if words else "")
        if self.status in _BUSY:
            return Throttled(text, after=self._pause())
        if self.status in _REDIRECTS:
            return Refused(f"{target} answered {self.status}: redirects are not followed, name the final URL")
        return Refused(text) if self.status in _REFUSALS else Unreachable(text, after=self._pause())

    def _pause(self) -> timedelta:
        """Read Retry-After: seconds, or a moment, which is compared with the receiver's own clock."""
        if _SECONDS.fullmatch(self.retry_after):
            pause = timedelta(seconds=int(self.retry_after))
        else:
            try:
                pause = parsedate_to_datetime(self.retry_after) - parsedate_to_datetime(self.date)
            except (ValueError, TypeError, OverflowError):
                pause = _DEFAULT_PAUSE
        return min(max(pause, _DEFAULT_PAUSE), _LONGEST_PAUSE)


async def _read_body(response: httpcore.Response, limit_bytes: int) -> bytes:
    """Read an answer up to the limit. A connection whose answer was not read to its end is closed."""
    heard = bytearray()
    async for part in response.aiter_stream():
        heard += part
        if len(heard) > limit_bytes:
            break
    return bytes(heard)
