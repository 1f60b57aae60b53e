"""HTTP requests to an API, as the plane's verbs make them. Used by `control.plane.client` and its streams.

`ApiConnection` sends a request and returns the answer, or raises the error that the plane behind the API raised. No
answer is `Unreachable`, and so is an answer from a proxy that cannot reach the API: only the API itself can say that
something is not there. The paths and queries of objects are here, too.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

import httpx
import msgspec

from lcm.control.objects.records import is_nameable
from lcm.control.objects.writer import missing_error
from lcm.control.plane.problems import Problem, error_of
from lcm.control.plane.protocol import Ref
from lcm.control.plane.wire import EPOCH_HEADER, SILENCE_LIMIT_SECONDS
from lcm.model.access.identity import parse_token
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid, LcmError, Stuck, Unreachable
from lcm.model.kinds.registry import KINDS
from lcm.store.codec import decode_known

T = TypeVar("T", bound=msgspec.Struct)

CLOSED: Final = "the plane was closed"
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": "lcm", "Content-Type": "application/json"}
# Shorter than any server's keep-alive, so that no request is sent on a connection that is being closed.
_CONNECTION_LIMITS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30)
_TRANSIENT_STATUSES: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_AWAY_STATUSES: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Another replica may be able to answer."""
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long requests to an API may take."""

    connect_seconds: float = 5
    request_seconds: float = 30
    apply_seconds: float = 300
    """For a whole folder of documents, each of them admitted and written."""
    silence_seconds: float = SILENCE_LIMIT_SECONDS
    """A watch that has been silent for this long counts as dead."""


class ApiConnection:
    """A pool of connections to one API, as one caller.

    Several addresses, separated by commas, are of replicas of it: the next one is used when one does not answer.
    """

    def __init__(
        self,
        url: str,
        token: Secret,
        *,
        actor: str,
        limits: ClientTimeouts,
        trust: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.limits = limits
        self.closed = False
        self.epoch: str | None = None
        """The history that the last answered revisions belong to; a watch from one of them is about this history."""
        presented = f"Bearer {parse_token(token.reveal(), 'token').reveal()}"
        self._urls = [_check_url(one) for one in url.split(",")]
        self._place = 0
        """Which of the addresses is used."""
        verify = trust or "https:" in url  # loading the system's certificates takes a while
        self._client = httpx.AsyncClient(
            headers=_HEADERS | {"Authorization": presented} | ({"Lcm-Actor": actor} if actor else {}),
            timeout=_time_limits(limits, limits.request_seconds),
            transport=transport or httpx.AsyncHTTPTransport(verify=verify, limits=_CONNECTION_LIMITS, trust_env=False),
            trust_env=False,  # a proxy for the internet does not reach our own API
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Send a request and return the answer's body, or raise the error that the answer describes."""
        limit = seconds or self.limits.request_seconds
        times = _time_limits(self.limits, limit)

        def build(address: str) -> httpx.Request:
            return self._client.build_request(
                method, address + path, params=query, headers=headers, content=body, timeout=times
            )

        try:
            async with asyncio.timeout(limit + self.limits.connect_seconds):
                response = await self._send(build)
                await response.aread()
        except (httpx.RequestError, TimeoutError) as error:
            raise self._leave(method, path, error) from error
        if response.is_success:
            self.epoch = response.headers.get(EPOCH_HEADER, self.epoch)
            return response.content
        if response.status_code in _AWAY_STATUSES:
            self._use_next(response.request)
        raise error_from(response)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Request an answer that does not end by itself. Raise Unreachable when it breaks off or falls silent."""
        times = _time_limits(self.limits, self.limits.silence_seconds)
        try:
            response = await self._send(
                lambda address: self._client.build_request("GET", address + path, params=query, timeout=times)
            )
            try:
                if not response.is_success:
                    await response.aread()
                    raise error_from(response)
                yield response
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise self._leave("GET", path, error) from error

    async def close(self) -> None:
        """Close the connections. May be repeated."""
        self.closed = True
        await self._client.aclose()

    async def _send(self, build: Callable[[str], httpx.Request]) -> httpx.Response:
        """Send a request. To an address that takes no connection nothing was sent: the next one is tried at once."""
        for _ in self._urls[1:]:
            request = build(self._urls[self._place])
            try:
                return await self._send_one(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                self._use_next(request)
        return await self._send_one(build(self._urls[self._place]))

    async def _send_one(self, request: httpx.Request) -> httpx.Response:
        if self.closed:
            raise Unreachable(CLOSED)
        return await self._client.send(request, stream=True)

    def _leave(self, method: str, path: str, error: httpx.RequestError | TimeoutError) -> Unreachable:
        """Leave the address that gave no answer, and return the error for that."""
        if isinstance(error, TimeoutError):
            request = self._client.build_request(method, self._urls[self._place] + path)
        else:
            request = error.request
        self._use_next(request)
        return unreachable_error(request, error)

    def _use_next(self, request: httpx.Request) -> None:
        """Use the next address from now on, unless another request has left already that to which this one was sent."""
        if str(request.url).startswith(self._urls[self._place] + "/"):
            self._place = (self._place + 1) % len(self._urls)


def read_answer(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Read an answer as its type. Raise Stuck when it is something else."""
    try:
        return decode_known(body, kind)
    except ValueError as error:
        raise Stuck("UnexpectedAnswer", f"the answer of the API is not a {kind.__name__}: {error}") from error


def unreachable_error(request: httpx.Request, error: Exception) -> Unreachable:
    """Return the error for a request that got no answer."""
    # This error's text repeats the offending header, which may hold a secret.
    said = "" if isinstance(error, httpx.LocalProtocolError) else str(error)
    return Unreachable(f"{request.method} {request.url}: {said or type(error).__name__}")


def error_from(response: httpx.Response) -> LcmError:
    """Return the error that a completely read answer describes."""
    try:
        return error_of(msgspec.json.decode(response.content, type=Problem))
    except ValueError:
        pass
    where = f"{response.request.method} {response.request.url}"
    if response.is_server_error or response.status_code in _TRANSIENT_STATUSES:
        return Unreachable(f"{where}: answered {response.status_code}")
    text = response.content[:_SHOWN_BYTES].decode(errors="replace")
    return Stuck("UnexpectedAnswer", f"{where}: answered {response.status_code}, not by an LCM API: {text}")


def _time_limits(limits: ClientTimeouts, read_seconds: float) -> httpx.Timeout:
    return httpx.Timeout(connect=limits.connect_seconds, read=read_seconds, write=read_seconds, pool=None)


def _check_url(url: str) -> str:
    try:
        parts = httpx.URL(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.host) and not parts.userinfo
    except (httpx.InvalidURL, ValueError):
        sound = False
    if not sound:
        raise Invalid(Fault("url", "not the address of an API", "write http://host:port or https://host"))
    return url.rstrip("/")


def namespace_query(ref: Ref[Any]) -> dict[str, str]:
    """Return the query that names an object's namespace."""
    return {"namespace": ref.namespace}


def collection_path(kind: type[Any]) -> str:
    """Return the path at which a kind is served."""
    return f"/api/{KINDS[kind.__name__].plural}"


def path_of(ref: Ref[Any]) -> str:
    """Return the path at which an object is served."""
    return f"/api/{ref.kind_info.plural}/{name_in_path(ref)}"


def internal_path(ref: Ref[Any]) -> str:
    """Return the path at which our own processes report on an object."""
    return f"/api/internal/{ref.kind_info.plural}/{name_in_path(ref)}"


def name_in_path(ref: Ref[Any]) -> str:
    """Return an object's name for use in a path. Raise Gone for a name that no object can have."""
    if not is_nameable(ref):  # an invalid name could form another path
        raise missing_error(ref)
    return ref.name
