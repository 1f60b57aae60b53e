"""One request as handlers see it: bounded bodies, typed queries, headers, and the caller's control plane.

Made by `api.http.app` for every request; nothing here knows a route by name.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lcm.api.gateway.registry import OpenConsoles
from lcm.api.http.answers import CLOSE, Receive, Scope
from lcm.api.http.limits import ApiLimits, HeldBodies, OpenStreams, SignInFailures, TokenBuckets
from lcm.api.http.metrics import ApiMetrics
from lcm.api.http.problems import AMBIGUOUS, MALFORMED, NO_MEDIA, TOO_SLOW, Declined, ProblemLog, public_problem
from lcm.api.routes.plan_shapes import Planner
from lcm.api.routes.row_snapshots import RowSnapshots
from lcm.control.access.audit import Origin
from lcm.control.access.oidc_browser import BrowserSignIn
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import Credential, Tokens
from lcm.control.delivery.feed import Feed
from lcm.control.objects.writer import Writer
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.problems import Problem
from lcm.control.plane.protocol import Plane, Ref
from lcm.control.plane.wire import EPOCH_HEADER, IDEMPOTENCY_KEY, check_idempotency_key
from lcm.model.access.address import TrustedProxies
from lcm.model.access.identity import SEES_ALL, Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError, TooLarge, to_fault
from lcm.model.base.moments import check_moments
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.settings import SystemSettings
from lcm.model.kinds.validate import parameter_remedy
from lcm.settings.load import ShownSetting
from lcm.store.base import Fence
from lcm.store.codec import decode_known

if TYPE_CHECKING:
    from lcm.api.http.pages import Pages
    from lcm.api.http.routing import Route

T = TypeVar("T")
Q = TypeVar("Q", bound=Part)
R = TypeVar("R", bound=Resource)

_EPOCH: Final = EPOCH_HEADER.lower().encode()

_MOST_REVISION: Final = 2**53
_DRAIN_FACTOR: Final = 2
"""How many times its limit is read of a body that is too large: a client that still writes sees no answer."""
_DRAIN_SECONDS: Final = 5.0
_MOST_PARTS: Final = 100_000
"""Lists and objects that a body may hold: parsing millions of empty ones takes long, however few bytes they are."""
_APPLY_FACTOR: Final = 4
"""How many ordinary bodies' worth may be applied at once by a caller who does not run the system."""
_ETAG: Final = re.compile(r'"([0-9]{1,15})"')
_FENCE: Final = re.compile(r"([\x21-\x3a\x3c-\x7e]{1,512});([0-9]{1,15})")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SINGLE_HEADERS: Final = frozenset(
    {
        b"authorization",
        b"content-type",
        b"cookie",
        b"host",
        b"idempotency-key",
        b"if-match",
        b"last-event-id",
        b"lcm-actor",
        b"lcm-fence",
        b"origin",
        b"x-api-key",
        b"x-csrf-token",
    }
)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete, so that there is nothing to answer."""


@dataclass(slots=True)
class MachineConsoles:
    """Reads what machines write to their consoles, where this process can reach the cloud."""

    read: Callable[[str, str], Awaitable[str]] | None = None
    """By region and instance id."""

    @contextmanager
    def read_with(self, read: Callable[[str, str], Awaitable[str]]) -> Iterator[None]:
        """Read them by a cloud that is open for a while, and then as before."""
        before, self.read = self.read, read
        try:
            yield
        finally:
            self.read = before


@dataclass(slots=True)
class RequestContext:
    """What all requests of a process share."""

    core: ControlPlane
    tokens: Tokens
    clock: Clock
    limits: ApiLimits
    meter: ApiMetrics
    streams: OpenStreams
    feed: Feed
    description: bytes
    """The OpenAPI document."""
    failures: SignInFailures
    sign_ins: SignIns
    consoles: OpenConsoles
    pages: "Pages"
    plans: Planner | None = None
    """Makes what-if plans; None where this process makes none."""
    provider: BrowserSignIn | None = None
    """Where people sign in with a browser; None for links only."""
    configuration: Callable[[SystemSettings | None], tuple[ShownSetting, ...]] = lambda _: ()
    """Lists every setting of this process, under the given SystemSettings object."""
    machine_consoles: MachineConsoles = field(default_factory=MachineConsoles)
    problems: ProblemLog = field(default_factory=ProblemLog)
    bodies: HeldBodies = field(init=False)
    exchanges: TokenBuckets = field(init=False)
    """Sign-ins of each address that have us ask the provider."""
    writes: TokenBuckets = field(init=False)
    """Changes of each user and author."""
    feeds: TokenBuckets = field(init=False)
    """Readings of each calendar feed."""
    snapshots: RowSnapshots = field(init=False)
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    acting: Callable[[Caller], Plane] = field(init=False)
    """Returns the plane of a caller; the planes of recent callers are cached."""

    def __post_init__(self) -> None:
        limits = self.limits
        self.bodies = HeldBodies(limits)
        self.exchanges = TokenBuckets(limits, rate=limits.exchanges_per_second, burst=limits.exchange_burst)
        self.writes = TokenBuckets(limits, rate=limits.writes_per_hour / 3600, burst=limits.write_burst)
        self.feeds = TokenBuckets(limits, rate=limits.feeds_per_minute / 60, burst=limits.feed_burst)
        self.snapshots = RowSnapshots(self.core, self.feed)
        self.acting = lru_cache(maxsize=1_000)(self.core.plane_for)


class Request:
    """One HTTP request, as handlers see it."""

    __slots__ = (
        "_held",
        "_origin",
        "caller",
        "credential",
        "headers",
        "params",
        "receive",
        "route",
        "scope",
        "shared",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, shared: RequestContext) -> None:
        self.scope = scope
        self.receive = receive
        self.shared = shared
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        """The headers by lower-case name."""
        self.params: Sequence[str] = ()
        self.caller: Caller | None = None
        self.credential: Credential | None = None
        """The credential that identified the caller."""
        self.route: Route | None = None
        self.started = False
        """Whether sending of an answer has begun."""
        self._origin: Origin | None = None
        self._held = 0

    @property
    def max_body_bytes(self) -> int:
        """The most bytes that the body may have."""
        limits = self.shared.limits
        if self.route is None or not self.route.large:
            return limits.body_bytes
        return limits.apply_bytes if self._is_trusted else min(limits.apply_bytes, _APPLY_FACTOR * limits.body_bytes)

    def check_headers(self) -> None:
        """Raise Declined when a header that must be one is there twice: who reads the other one acts differently."""
        given = self.scope["headers"]
        if len(self.headers) < len(given):
            names = [name for name, _ in given]
            for name in sorted(_SINGLE_HEADERS & self.headers.keys()):
                if names.count(name) > 1:
                    raise Declined(AMBIGUOUS, f"the header {name.decode()} is there twice; send it once")

    def header(self, name: str) -> str | None:
        """Return a header as text; None when it is missing."""
        raw = self.headers.get(name.lower().encode())
        return None if raw is None else raw.decode("latin-1").strip()

    @property
    def signed_in(self) -> Caller:
        """The caller. Only for routes whose policy requires one."""
        assert self.caller is not None, "a route for everybody asked who it is"
        return self.caller

    @property
    def address(self) -> str:
        """The client's address, behind proxies that are trusted; empty if it is not known."""
        peer = self._peer
        if not self.shared.proxies.trusts(peer):
            return peer
        return self.shared.proxies.find_client(peer, self._joined(b"forwarded"), self._joined(b"x-forwarded-for"))

    @property
    def is_secure(self) -> bool:
        """Whether the client's request was encrypted, to us or to a trusted proxy."""
        if self.scope.get("scheme") == "https":
            return True
        if not self.shared.proxies.trusts(self._peer):
            return False
        told = self.shared.proxies.find_scheme(self._joined(b"forwarded"), self._joined(b"x-forwarded-proto"))
        return told == "https"

    def _joined(self, name: bytes) -> str:
        """Return the values of a header that each proxy may add once more."""
        return b",".join(value for given, value in self.scope["headers"] if given == name).decode("latin-1")

    @property
    def _peer(self) -> str:
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def origin(self) -> Origin:
        """Where a write comes from, as the audit records it."""
        if self._origin is None:
            named = self.header("x-request-id") or ""
            name = named if _REQUEST_ID.fullmatch(named) else self.shared.core.record_ids()
            self._origin = Origin(self.address, name, self.credential.id if self.credential else "")
        return self._origin

    @property
    def writer(self) -> Writer:
        """Writes records that are no objects, as the caller's actions."""
        return self.writer_for(self.signed_in)

    def writer_for(self, caller: Caller) -> Writer:
        """Return what `writer` is, for a caller that the request itself identifies."""
        return self.shared.core.writer_for(caller, self.origin)

    @property
    def plane(self) -> Plane:
        """The control plane as the caller may see it."""
        return self.shared.acting(self.signed_in)

    @property
    def write_plane(self) -> LocalPlane:
        """The control plane as the caller may change it, bound to the lease term that a service names."""
        text = self.header("lcm-fence")
        plane = self.shared.core.plane_for(self.signed_in, self.origin)
        if text is None:
            return plane
        if self.signed_in.role is not Role.SERVICE:
            raise Forbidden("only services may send Lcm-Fence: leave it out")
        found = _FENCE.fullmatch(text)
        if found is None:
            raise Invalid(Fault("Lcm-Fence", "not of the expected form", "write NAME;TERM"))
        return plane.under(Fence(found[1], int(found[2])))

    @property
    def if_match(self) -> int | None:
        """The revision that If-Match demands; None for any."""
        text = self.header("if-match")
        if text is None or text == "*":
            return None
        found = _ETAG.fullmatch(text)
        if found is None or int(found[1]) > _MOST_REVISION:
            raise Invalid(Fault("If-Match", "not an ETag of ours", 'write the ETag as it was answered, such as "42"'))
        return int(found[1])

    @property
    def has_if_match(self) -> bool:
        """Whether If-Match demands a revision, where there is one to match."""
        matches = self.route is not None and "If-Match" in self.route.headers
        return matches and self.headers.get(b"if-match", b"*").strip() != b"*"

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key; None when there is none."""
        text = self.header(IDEMPOTENCY_KEY)
        if text is not None:
            check_idempotency_key(text)
        return text

    def ref(self, kind: type[R], namespace: str) -> Ref[R]:
        """Return a reference to the object of the path; for an impossible name the plane answers None, or Gone."""
        return Ref(kind, self.params[0], namespace)

    def query(self, shape: type[Q]) -> Q:
        """Read the query string. Invalid names every parameter that is wrong or unknown."""
        raw: bytes = self.scope["query_string"]
        return _parse_query(raw, shape) if raw else _empty_query(shape)

    async def body(self) -> bytes:
        """Read the whole body, within the route's limits of size and time."""
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_body_bytes * _DRAIN_FACTOR:
            raise _too_large(self.max_body_bytes)
        try:
            async with asyncio.timeout(self.shared.limits.body_seconds):
                body = await self._read_chunks()
        except TimeoutError as error:
            raise Declined(TOO_SLOW, "the body did not arrive in time", headers=(CLOSE,)) from error
        if not self._is_trusted and body.count(b"[") + body.count(b"{") > _MOST_PARTS:
            raise TooLarge(f"the body has more than {_MOST_PARTS} lists and objects")
        return body

    @property
    def _is_trusted(self) -> bool:
        """Whether the caller is one of those who run the system."""
        return self.caller is not None and self.caller.role in SEES_ALL

    def problem(self, error: LcmError) -> Problem:
        """Return what the caller learns about an error. One of ours is logged, with the route."""
        problem = public_problem(error, matched=self.has_if_match, trusted=self._is_trusted)
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            route = self.route.path if self.route else ""
            now = asyncio.get_running_loop().time()
            self.shared.problems.log(self.scope["method"], route, problem.reason, str(error), now=now)
        return problem

    async def document(self) -> object:
        """Read the body as JSON of any shape."""
        return _decode_json(await self.text())

    async def text(self) -> bytes:
        """Read the body as bytes, without decoding it."""
        body = await self.body()
        self._check_media()
        return body

    async def read(self, shape: type[T], *, empty: T | None = None) -> T:
        """Read the body as this type; an empty body stands for `empty` if that is given."""
        body = await self.body()
        if not body and empty is not None:
            return empty
        self._check_media()
        lenient = self.caller is not None and self.caller.role is Role.SERVICE
        return check_moments(decode_body(body, shape, lenient=lenient))

    async def _read_chunks(self) -> bytes:
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            self._hold(len(part))
            if size > self.max_body_bytes:
                if more:
                    await self._drain(size)
                raise _too_large(self.max_body_bytes)
            parts.append(part)
        return b"".join(parts)

    def _hold(self, size: int) -> None:
        """Count bytes of the body until the answer is sent."""
        if size:
            self.shared.bodies.hold(self._holder, size)
            self._held += size

    def release(self) -> None:
        """Count the bytes of the body no more."""
        if self._held:
            self.shared.bodies.release(self._holder, self._held)
            self._held = 0

    @property
    def _holder(self) -> str:
        return self.caller.name if self.caller else self.address

    async def _drain(self, size: int) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while size <= self.max_body_bytes * _DRAIN_FACTOR:
                    message = await self.receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
                    size += len(message.get("body", b""))
        except TimeoutError:
            return

    def _check_media(self) -> None:
        media = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        allowed = self.route.body_media if self.route else ()
        if media not in allowed:
            wanted = " or ".join(one.decode() for one in allowed)
            raise Declined(NO_MEDIA, f"send {wanted}")


def epoch_header(request: Request) -> tuple[bytes, bytes]:
    """Return the header that names the history to which an answer's revision belongs."""
    return _EPOCH, request.shared.core.epoch.encode()


@cache
def _empty_query(shape: type[Q]) -> Q:
    """Return the result of reading an empty query, once for each type."""
    return _convert_query({}, shape)


def _parse_query(raw: bytes, shape: type[Q]) -> Q:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError as error:
        raise Invalid(Fault("query", "cannot be read", "write name=value&…, percent-encoded as UTF-8")) from error
    known = shape.__struct_encode_fields__
    remedy = f"use {', '.join(known)}" if known else "leave it out"
    names = [name for name, _ in pairs]
    faults = [Fault(name, "unknown parameter", remedy) for name in names if name not in known]
    faults += [Fault(name, "given twice", "give it once") for name in known if names.count(name) > 1]
    if faults:
        raise Invalid(*faults)
    return _convert_query(dict(pairs), shape)


def decode_body(body: bytes | msgspec.Raw, shape: type[T], *, lenient: bool = False) -> T:
    """Decode a body as its type. Raises Invalid; `lenient` ignores fields that only a newer version of ours knows."""
    try:
        return _decoder(shape).decode(body)
    except _DECODE_ERRORS as error:
        _decode_json(body)  # a body that is no JSON at all gets that error, not one about its first wrong field
        if lenient:
            with suppress(ValueError):
                return decode_known(body, shape)
        raise Invalid(to_fault(error, "body")) from error


def convert_document(document: object, shape: type[T], faults: Sequence[Fault] = ()) -> T:
    """Convert a document to its type. Raises Invalid, also for faults that are already known."""
    try:
        made = msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise Invalid(*faults, to_fault(error, "body")) from error
    if faults:
        raise Invalid(*faults)
    return check_moments(made)


def _convert_query(values: Mapping[str, str], shape: type[Q]) -> Q:
    try:
        return check_moments(msgspec.convert(values, shape, strict=False))
    except msgspec.ValidationError as error:
        fault = to_fault(error, "query")
        raise Invalid(replace(fault, remedy=parameter_remedy(shape, fault.path))) from error


def _decode_json(body: bytes | msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(body)
    except _DECODE_ERRORS as error:
        raise Declined(MALFORMED, "the body is no JSON") from error


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(shape: type[T]) -> msgspec.json.Decoder[T]:
    if shape not in _decoders:
        _decoders[shape] = msgspec.json.Decoder(shape)
    return _decoders[shape]


def _too_large(largest: int) -> TooLarge:
    return TooLarge(f"the body has more than {largest} bytes")
