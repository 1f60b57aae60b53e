"""One request as the handlers see it: bounded bodies, typed queries, headers, and the plane of whoever asks.

Made by `app` for every request; nothing here knows a route by name.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lcm.api.http.answers import CLOSE, Receive, Scope
from lcm.api.http.limits import Failures, Limits, Streams
from lcm.api.http.metrics import Meter
from lcm.api.http.problems import MALFORMED, NO_MEDIA, TOO_SLOW, Declined
from lcm.api.routes.plan_shapes import Plans
from lcm.control.access.audit import Deed, Origin
from lcm.control.access.sign_in import SignIns
from lcm.control.access.tokens import Credential, Tokens
from lcm.control.delivery.feed import Feed
from lcm.control.delivery.sinks import House
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.control.plane.wire import EPOCH, IDEMPOTENCY_KEY, check_request
from lcm.model.access.identity import SEES_ALL, Caller, Role
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Fault, Forbidden, Invalid, TooLarge
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import Resource
from lcm.store.base import Fence, Put

T = TypeVar("T")
Q = TypeVar("Q", bound=Part)
R = TypeVar("R", bound=Resource)

_EPOCH: Final = EPOCH.lower().encode()
_MOST_PARAMETERS: Final = 50
_PLANES: Final = 1_000
_MOST_REVISION: Final = 2**53
_DRAINED: Final = 2
"""So many times its limit is read of a body that is too large: a client that still writes would not see the answer."""
_DRAIN_SECONDS: Final = 5.0
_MOST_PARTS: Final = 100_000
"""So many lists and objects may be in a body: reading millions of empty ones takes long, however few bytes they are."""
_FOLDER: Final = 4
"""So many ordinary bodies' worth may be applied at once by those who do not run the system."""
_MATCH: Final = re.compile(r'"([0-9]{1,15})"')
_FENCE: Final = re.compile(r"([\x21-\x3a\x3c-\x7e]{1,512});([0-9]{1,15})")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ClientLeft(Exception):
    """The connection ended in the middle of a request, which therefore never was one."""


@dataclass(slots=True)
class Shared:
    """What all requests of a process have in common."""

    core: ControlPlane
    tokens: Tokens
    clock: Clock
    limits: Limits
    meter: Meter
    streams: Streams
    feed: Feed
    description: bytes
    """The OpenAPI document."""
    failures: Failures
    sign_ins: SignIns
    house: House
    """What the settings say of sinks."""
    plans: Plans | None = None
    """Who makes plans; None: nobody here."""
    acting: Callable[[Caller], Plane] = field(init=False)
    """Gives the plane of a caller; those of recent callers are kept."""

    def __post_init__(self) -> None:
        self.acting = lru_cache(maxsize=_PLANES)(self.core.acting)


class Bodied(Protocol):
    """What a request must know of its route."""

    @property
    def method(self) -> str:
        """The method, as the table has it."""
        ...

    @property
    def path(self) -> str:
        """The path, with its variables."""
        ...

    @property
    def body_media(self) -> Sequence[bytes]:
        """The media types that a body may have."""
        ...

    @property
    def large(self) -> bool:
        """Whether a body may be as large as one to apply."""
        ...


class Request:
    """One request."""

    __slots__ = (
        "_headers",
        "_origin",
        "caller",
        "credential",
        "params",
        "receive",
        "route",
        "scope",
        "shared",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, shared: Shared) -> None:
        self.scope = scope
        self.receive = receive
        self.shared = shared
        self.params: Sequence[str] = ()
        self.caller: Caller | None = None
        self.credential: Credential | None = None
        """What proved who the caller is."""
        self.route: Bodied | None = None
        self.started = False
        """Whether an answer has begun."""
        self._headers: Mapping[bytes, bytes] | None = None
        self._origin: Origin | None = None

    @property
    def largest(self) -> int:
        """How many bytes its body may have."""
        limits = self.shared.limits
        if self.route is None or not self.route.large:
            return limits.body_bytes
        return limits.apply_bytes if self._trusted else min(limits.apply_bytes, _FOLDER * limits.body_bytes)

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Its headers by lower-case name."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers

    def header(self, name: str) -> str | None:
        """Read a header."""
        raw = self.headers.get(name.lower().encode())
        return None if raw is None else raw.decode("latin-1").strip()

    @property
    def signed_in(self) -> Caller:
        """Who asks; only where the route's policy wants somebody."""
        assert self.caller is not None, "a route for everybody asked who it is"
        return self.caller

    @property
    def address(self) -> str:
        """From where it came; empty if that is not known."""
        client = self.scope.get("client")
        return client[0] if client else ""

    @property
    def origin(self) -> Origin:
        """What the audit says about where a write came from."""
        if self._origin is None:
            named = self.header("x-request-id") or ""
            name = named if _REQUEST_ID.fullmatch(named) else self.shared.core.record_ids()
            self._origin = Origin(self.address, name, self.credential.id if self.credential else "")
        return self._origin

    def note(self, verb: str, kind: str, name: str, *, by: Caller | None = None) -> Put:
        """Write down, for the commit that does it, what the caller does to something that is no object."""
        return self.shared.core.pen.note(by or self.signed_in, self.origin, Deed(verb=verb, kind=kind, name=name))

    @property
    def plane(self) -> Plane:
        """What the caller may see."""
        return self.shared.acting(self.signed_in)

    @property
    def writing(self) -> LocalPlane:
        """What the caller may do, bound to the term that a service names."""
        text = self.header("lcm-fence")
        plane = self.shared.core.acting(self.signed_in, self.origin)
        if text is None:
            return plane
        if self.signed_in.role is not Role.SERVICE:
            raise Forbidden("only services write under a lease: leave Lcm-Fence out")
        found = _FENCE.fullmatch(text)
        if found is None:
            raise Invalid(Fault("Lcm-Fence", "not of the expected form", "write NAME;TERM"))
        return plane.under(Fence(found[1], int(found[2])))

    @property
    def at(self) -> int | None:
        """The revision that If-Match demands; None for any."""
        text = self.header("if-match")
        if text is None or text == "*":
            return None
        found = _MATCH.fullmatch(text)
        if found is None or int(found[1]) > _MOST_REVISION:
            raise Invalid(Fault("If-Match", "not an ETag of ours", 'write the ETag as it was answered, such as "42"'))
        return int(found[1])

    @property
    def matched(self) -> bool:
        """Whether If-Match demands a revision; of what is made or done by POST, none is."""
        return self.scope["method"] != "POST" and self.headers.get(b"if-match", b"*").strip() != b"*"

    @property
    def key(self) -> str | None:
        """The idempotency key."""
        text = self.header(IDEMPOTENCY_KEY)
        if text is not None:
            check_request(text)
        return text

    def ref(self, kind: type[R], namespace: str) -> Ref[R]:
        """Name the object of the path; the plane answers None, or Gone, for what no object can be called."""
        return Ref(kind, self.params[0], namespace)

    def query(self, shape: type[Q]) -> Q:
        """Read the query string; Invalid names every parameter that is wrong or unknown."""
        raw: bytes = self.scope["query_string"]
        return _parsed(raw, shape) if raw else _plain(shape)

    async def body(self) -> bytes:
        """Read the whole body, within the route's limits of size and time."""
        declared = self.headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.largest * _DRAINED:
            raise _too_large(self.largest)
        try:
            async with asyncio.timeout(self.shared.limits.body_seconds):
                body = await self._gather()
        except TimeoutError as error:
            raise Declined(TOO_SLOW, "the body did not arrive in time", headers=(CLOSE,)) from error
        if not self._trusted and body.count(b"[") + body.count(b"{") > _MOST_PARTS:
            raise TooLarge(f"the body has more than {_MOST_PARTS} lists and objects")
        return body

    @property
    def _trusted(self) -> bool:
        """Whether the caller is one of those who run the system."""
        return self.caller is not None and self.caller.role in SEES_ALL

    async def document(self) -> object:
        """Read the body as JSON of any shape."""
        body = await self.body()
        self._check_media()
        return _json(body)

    async def text(self) -> bytes:
        """Read the body as it is."""
        body = await self.body()
        self._check_media()
        return body

    async def read(self, shape: type[T], *, empty: T | None = None) -> T:
        """Read the body as this shape; an empty one stands for `empty` if that is given."""
        body = await self.body()
        if not body and empty is not None:
            return empty
        self._check_media()
        try:
            return _decoder(shape).decode(body)
        except _UNREADABLE as error:
            _json(body)  # what is no JSON at all is told so, wherever it first differs from its shape
            raise Invalid(_fault(str(error))) from error

    async def _gather(self) -> bytes:
        parts, size, more = list[bytes](), 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self.largest:
                if more:
                    await self._drain(size)
                raise _too_large(self.largest)
            parts.append(part)
        return b"".join(parts)

    async def _drain(self, size: int) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while size <= self.largest * _DRAINED:
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
    """Name the history that an answer's revision belongs to."""
    return _EPOCH, request.shared.core.epoch.encode()


@cache
def _plain(shape: type[Q]) -> Q:
    """Read an empty query, once for each shape."""
    return _converted({}, shape)


def _parsed(raw: bytes, shape: type[Q]) -> Q:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except ValueError as error:
        raise Invalid(Fault("query", "cannot be read", "write name=value&…, percent-encoded as UTF-8")) from error
    known = shape.__struct_encode_fields__
    remedy = f"use {', '.join(known)}" if known else "leave it out"
    names = [name for name, _ in pairs]
    faults = [Fault(name, "unknown parameter", remedy) for name in names if name not in known]
    faults += [Fault(name, "given twice", "give it once") for name in known if names.count(name) > 1]
    if faults:
        raise Invalid(*faults)
    return _converted(dict(pairs), shape)


def shaped(document: object, shape: type[T], faults: Sequence[Fault] = ()) -> T:
    """Give a document its type; Invalid also for the faults that it is known to have."""
    try:
        made = msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise Invalid(*faults, _fault(str(error))) from error
    if faults:
        raise Invalid(*faults)
    return made


def _converted(values: Mapping[str, str], shape: type[Q]) -> Q:
    try:
        return msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(_fault(str(error))) from error


def _fault(message: str) -> Fault:
    problem, _, path = message.partition(" - at `")
    problem = problem.replace("`", "")
    if " matching regex " in problem:
        problem = "not of the expected form"
    if " enum value " in problem:
        problem = "none of its values"  # nothing that was sent is repeated
    return Fault(path.rstrip("`").removeprefix("$").lstrip(".") or "body", problem[:1].lower() + problem[1:])


def _json(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except _UNREADABLE as error:
        raise Declined(MALFORMED, "the body is no JSON") from error


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(shape: type[T]) -> msgspec.json.Decoder[T]:
    if shape not in _decoders:
        _decoders[shape] = msgspec.json.Decoder(shape)
    return _decoders[shape]


def _too_large(largest: int) -> TooLarge:
    return TooLarge(f"the body has more than {largest} bytes")
