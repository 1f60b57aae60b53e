"""The line to an API: a request out, an answer back, or the error that the plane behind it raised. Used by `client`.

No answer is `Unreachable`, and so is one by somebody else on the way who cannot reach the API. Only the API itself can
say that something is not there.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

import httpx
import msgspec

from lcm.control.objects.records import nameable
from lcm.control.objects.writer import missing
from lcm.control.plane.problems import Problem, error_of
from lcm.control.plane.protocol import Document, Ref
from lcm.control.plane.wire import DEAD_SECONDS, EPOCH, FENCE, IDEMPOTENCY_KEY, check_request
from lcm.model.access.identity import bearer
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid, LcmError, Stuck, Unreachable
from lcm.model.kinds.registry import KINDS
from lcm.store.base import Fence
from lcm.store.codec import read_known

T = TypeVar("T", bound=msgspec.Struct)

CLOSED: Final = "the plane was closed"
_HEADERS: Final = {"Accept-Encoding": "identity", "User-Agent": "lcm", "Content-Type": "application/json"}
# Shorter than any server keeps an idle connection, so that a request does not meet its end.
_POOL: Final = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=30)
_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take."""

    connect_seconds: float = 5
    request_seconds: float = 30
    apply_seconds: float = 300
    """A whole folder of documents, each of them admitted and written."""
    silence_seconds: float = DEAD_SECONDS
    """Until a watch that says nothing counts as dead."""


class Line:
    """One pool of connections to one API, as one caller."""

    def __init__(
        self,
        url: str,
        token: Secret,
        *,
        actor: str,
        limits: Limits,
        trust: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.limits = limits
        self.closed = False
        self.epoch: str | None = None
        """The history of the revisions that were answered last; a watch from one of them means no other."""
        presented = f"Bearer {bearer(token.reveal(), 'token').reveal()}"
        self._client = httpx.AsyncClient(
            base_url=_checked(url),
            headers=_HEADERS | {"Authorization": presented} | ({"Lcm-Actor": actor} if actor else {}),
            timeout=_time_limits(limits, limits.request_seconds),
            transport=transport or _network(url, trust),
            trust_env=False,  # a proxy for the internet does not lead to our own API
        )

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Send a request and return the answer's body, or raise the error that the answer tells of."""
        limit = seconds or self.limits.request_seconds
        request = self._client.build_request(
            method, path, params=query, headers=headers, content=body, timeout=_time_limits(self.limits, limit)
        )
        try:
            async with asyncio.timeout(limit + self.limits.connect_seconds):
                response = await self._send(request)
                await response.aread()
        except (httpx.RequestError, TimeoutError) as error:
            raise unanswered(request, error) from error
        if response.is_success:
            self.epoch = response.headers.get(EPOCH, self.epoch)
            return response.content
        raise told(response)

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Ask for an answer that does not end by itself. What breaks off, or falls silent, is Unreachable."""
        times = _time_limits(self.limits, self.limits.silence_seconds)
        request = self._client.build_request("GET", path, params=query, timeout=times)
        try:
            response = await self._send(request)
            try:
                if not response.is_success:
                    await response.aread()
                    raise told(response)
                yield response
            finally:
                await response.aclose()
        except httpx.RequestError as error:
            raise unanswered(request, error) from error

    async def close(self) -> None:
        """Let go of connections. May be repeated."""
        self.closed = True
        await self._client.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        if self.closed:
            raise Unreachable(CLOSED)
        return await self._client.send(request, stream=True)


def read(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Read an answer as its type."""
    try:
        return read_known(body, kind)
    except ValueError as error:
        raise Stuck("UnexpectedAnswer", f"the API answered with no {kind.__name__}: {error}") from error


def unanswered(request: httpx.Request, error: Exception) -> Unreachable:
    """Say that no answer came."""
    # That error repeats the header that it complains of, and a header may hold a secret.
    said = "" if isinstance(error, httpx.LocalProtocolError) else str(error)
    return Unreachable(f"{request.method} {request.url}: {said or type(error).__name__}")


def told(response: httpx.Response) -> LcmError:
    """Read what an answer, which has been read to its end, tells went wrong."""
    try:
        return error_of(msgspec.json.decode(response.content, type=Problem))
    except ValueError:
        pass
    where = f"{response.request.method} {response.request.url}"
    if response.is_server_error or response.status_code in _PASSING:
        return Unreachable(f"{where}: answered {response.status_code}")
    text = response.content[:_SHOWN].decode(errors="replace")
    return Stuck("UnexpectedAnswer", f"{where}: answered {response.status_code}, which no API of ours does: {text}")


def _time_limits(limits: Limits, read_seconds: float) -> httpx.Timeout:
    return httpx.Timeout(connect=limits.connect_seconds, read=read_seconds, write=read_seconds, pool=None)


def _network(url: str, trust: ssl.SSLContext | None) -> httpx.AsyncHTTPTransport:
    verify: ssl.SSLContext | bool = trust or url.startswith("https:")  # reading the system's trust takes a while
    return httpx.AsyncHTTPTransport(verify=verify, limits=_POOL, trust_env=False)


def _checked(url: str) -> str:
    try:
        parts = httpx.URL(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.host) and not parts.userinfo
    except (httpx.InvalidURL, ValueError):
        sound = False
    if not sound:
        raise Invalid(Fault("url", "not the address of an API", "write http://host:port or https://host"))
    return url.rstrip("/")


_MERGE_PATCH: Final = {"Content-Type": "application/merge-patch+json"}


class Requests:
    """Sends requests as one caller, under at most one fence."""

    def __init__(self, line: Line, fence: Fence | None) -> None:
        self._line = line
        self._fence = fence

    async def _ask(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        return await self._line.ask(method, path, query=query)

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: msgspec.Struct | Document | None = None,
        *,
        at: int | None = None,
        request: str | None = None,
        seconds: float | None = None,
    ) -> bytes:
        headers = _headers(self._fence, at, request) | (_MERGE_PATCH if method == "PATCH" else {})
        content = None if body is None else msgspec.json.encode(body)
        return await self._line.ask(method, path, query=query, headers=headers, body=content, seconds=seconds)

    async def _send(self, path: str, data: bytes, media: str) -> bytes:
        """Send a file."""
        headers = _headers(self._fence, None, None) | {"Content-Type": media}
        return await self._line.ask("POST", path, headers=headers, body=data)


def _headers(fence: Fence | None, at: int | None, request: str | None) -> dict[str, str]:
    if request is not None:
        check_request(request)
    return (
        ({FENCE: f"{fence.lease};{fence.term}"} if fence else {})
        | ({} if at is None else {"If-Match": f'"{at}"'})
        | ({} if request is None else {IDEMPOTENCY_KEY: request})
    )


def within(ref: Ref[Any]) -> dict[str, str]:
    """Say in which namespace an object is."""
    return {"namespace": ref.namespace}


def collection(kind: type[Any]) -> str:
    """Say where a kind is served."""
    return f"/api/{KINDS[kind.__name__].plural}"


def path_of(ref: Ref[Any]) -> str:
    """Say where an object is served."""
    return f"/api/{ref.known.plural}/{named(ref)}"


def internal(ref: Ref[Any]) -> str:
    """Say where our own processes report on an object."""
    return f"/api/internal/{ref.known.plural}/{named(ref)}"


def named(ref: Ref[Any]) -> str:
    """Name an object within a path; Gone for what no object can be called."""
    if not nameable(ref):  # some of that would be another path
        raise missing(ref)
    return ref.name
