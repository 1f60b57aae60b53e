"""The plane over HTTP, for controllers in other processes and the command line.

    async with HttpPlane.open("http://127.0.0.1:8030", token) as plane:
        worker = await plane.get(Ref(LabWorker, "w1"))

Nothing is decided here: each verb is one request to `api`, and its errors are raised as the plane there raised them.
The operations of the table (`control.plane.operations`) all go through `perform`.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import msgspec

from lcm.control.plane.batch import BatchAnswer, BatchRequest
from lcm.control.plane.bodies import MEDIA, FileBytes
from lcm.control.plane.client_streams import HttpWatch
from lcm.control.plane.operation import GET, VARIABLE, Operation, Value
from lcm.control.plane.protocol import PAGE_SIZE, Action, Applied, Document, Listing, Plane, R, Ref, ref_of
from lcm.control.plane.transport import (
    ApiConnection,
    ClientTimeouts,
    collection_path,
    internal_path,
    name_in_path,
    namespace_query,
    path_of,
    read_answer,
)
from lcm.control.plane.wire import (
    ACTIONS,
    FENCE_HEADER,
    IDEMPOTENCY_KEY,
    Documents,
    LeaseAnswer,
    LeaseRequest,
    LeaseTerm,
    ObjectPage,
    Results,
    StatusReport,
    Who,
    check_idempotency_key,
)
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Status
from lcm.model.base.selector import EVERYTHING, ObjectSelector, format_terms, parse_selector
from lcm.model.kinds.registry import Resource
from lcm.store.base import Fence, Lease, renew_each
from lcm.system import clock

_NO_NAMES: Final = ("", ".", "..")
"""Texts that would form another path."""
_MERGE_PATCH: Final = "application/merge-patch+json"
_LEASES_PATH: Final = "/api/internal/leases"
_LEASE_POLL_FRACTION: Final = 1 / 5
"""The fraction of a lease's time to live after which a waiting process reads the lease again."""


class HttpPlane(Plane):
    """The plane of one caller, through the API."""

    def __init__(
        self,
        line: ApiConnection,
        caller: Caller | None,
        *,
        actor: str,
        chance: Callable[[], float],
        watches: dict[HttpWatch, None],
        fence: Fence | None = None,
    ) -> None:
        self._connection = line
        self._fence = fence
        self._caller = caller
        self._actor = actor
        self._chance = chance
        self._watches = watches

    @classmethod
    def open(
        cls,
        url: str,
        token: Secret,
        *,
        actor: str = "",
        caller: Caller | None = None,
        limits: ClientTimeouts | None = None,
        trust: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        chance: Callable[[], float] = clock.random_fraction,
    ) -> Self:
        """Make a plane. Enter it to learn who its caller is, unless `caller` is given. Nothing is sent before."""
        line = ApiConnection(
            url, token, actor=actor, limits=limits or ClientTimeouts(), trust=trust, transport=transport
        )
        return cls(line, caller, actor=actor or USER, chance=chance, watches={})

    @property
    def caller(self) -> Caller:
        assert self._caller is not None, "enter the plane first, or tell it who its caller is"
        return self._caller

    def under(self, fence: Fence) -> "HttpPlane":
        return HttpPlane(
            self._connection, self._caller, actor=self._actor, chance=self._chance, watches=self._watches, fence=fence
        )

    async def perform(self, operation: Operation, /, *given: object, **named: object) -> object:
        arguments = operation.bind(*given, **named)
        path, query = _address_of(operation, arguments)
        try:
            if operation.method == GET:
                answer = await self._connection.request(GET, path, query=query)
            else:
                body = operation.body_of(arguments) if operation.in_body else None
                media = MEDIA.get(operation.body, (b"",))[0].decode()
                answer = await self._write(operation.method, path, query, body, media=media)
        except Gone:
            if operation.missing:
                return None
            raise
        return _result_of(operation, answer)

    async def get(self, ref: Ref[R]) -> R | None:
        try:
            answer = await self._connection.request(GET, path_of(ref), query=namespace_query(ref))
            return read_answer(answer, ref.kind)
        except Gone:
            return None

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: ObjectSelector = EVERYTHING,
        limit: int = PAGE_SIZE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        query = _selector_query(kind, where) | {"limit": str(limit)}
        query |= {} if namespace is None else {"namespace": namespace}
        query |= {} if cursor is None else {"cursor": cursor}
        query |= {"archived": "true"} if archived else {}
        page = read_answer(await self._connection.request(GET, collection_path(kind), query=query), ObjectPage)
        return Listing([read_answer(item, kind) for item in page.items], page.revision, page.next)

    def watch(self, *kinds: type[Resource], after: int) -> HttpWatch:
        return HttpWatch(self._connection, kinds, after=after, chance=self._chance, watches=self._watches)

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        path, query = collection_path(type(resource)), _dry_run_query(dry_run=dry_run)
        return read_answer(await self._write("POST", path, query, resource, request=request), type(resource))

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        ref = ref_of(resource)
        query = namespace_query(ref) | _dry_run_query(dry_run=dry_run)
        return read_answer(await self._write("PUT", path_of(ref), query, resource, at=at), ref.kind)

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        query = namespace_query(ref) | _dry_run_query(dry_run=dry_run)
        return read_answer(await self._write("PATCH", path_of(ref), query, document, at=at), ref.kind)

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        query = namespace_query(ref) | _dry_run_query(dry_run=dry_run)
        return read_answer(await self._write("DELETE", path_of(ref), query, at=at), ref.kind)

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        body = Documents(documents=documents)
        seconds = self._connection.limits.apply_seconds
        answer = await self._write("POST", "/api/apply", _dry_run_query(dry_run=dry_run), body, seconds=seconds)
        return list(read_answer(answer, Results).results)

    async def batch(self, asked: BatchRequest, *, dry_run: bool = False, request: str | None = None) -> BatchAnswer:
        query, seconds = _dry_run_query(dry_run=dry_run), self._connection.limits.apply_seconds
        answer = await self._write("POST", "/api/batch", query, asked, request=request, seconds=seconds)
        return read_answer(answer, BatchAnswer)

    async def act(
        self, ref: Ref[R], action: Action, *, at: int | None = None, dry_run: bool = False, request: str | None = None
    ) -> R:
        name = type(action).__struct_config__.tag
        if not isinstance(action, ACTIONS.get(ref.kind.__name__, ())):  # the API has no path for it
            raise Invalid(Fault("action", f"a {ref.kind.__name__} has no action {name}", "use one of its actions"))
        path = f"{path_of(ref)}/{name}"
        query = namespace_query(ref) | _dry_run_query(dry_run=dry_run)
        # The path names the action. An older API may not know fields that have come since, so defaults are left out.
        usual = {one.name: one.default for one in msgspec.structs.fields(action)}
        body = {name: value for name, value in msgspec.structs.asdict(action).items() if value != usual[name]}
        return read_answer(await self._write("POST", path, query, body, at=at, request=request), ref.kind)

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        ref = ref_of(resource)
        seen = msgspec.Raw(msgspec.json.encode(status))
        body = StatusReport(resource_version=resource.metadata.resource_version, status=seen, reason=reason)
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/status", namespace_query(ref), body), ref.kind
        )

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        wish = LeaseRequest(holder=holder, ttl_seconds=ttl_seconds)
        return read_answer(await self._write("POST", f"{_lease_path(name)}/acquire", {}, wish), LeaseAnswer).lease

    async def wait_until_vacant(self, name: str) -> None:
        first = held = await self.lease(name)
        while first is not None and held is not None and held.term == first.term:
            await asyncio.sleep(held.ttl_seconds * _LEASE_POLL_FRACTION)
            held = await self.lease(name)

    async def renew(self, *leases: Lease) -> None:
        await renew_each(self._renew, leases)

    async def release(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease_path(lease.name)}/release", {}, LeaseTerm(term=lease.term))

    async def lease(self, name: str) -> Lease | None:
        return read_answer(await self._connection.request(GET, _lease_path(name)), LeaseAnswer).lease

    async def _renew(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease_path(lease.name)}/renew", {}, LeaseTerm(term=lease.term))

    async def close(self) -> None:
        """End every watch and close the connections, which planes `under` a fence share. May be repeated."""
        for watch in tuple(self._watches):
            await watch.aclose()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            if self._caller is None:
                who = read_answer(await self._connection.request(GET, "/api/whoami"), Who)
                self._caller = Caller(name=who.name, role=who.role, actor=self._actor)
            undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _write(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: object = None,
        *,
        media: str = "",
        at: int | None = None,
        request: str | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Send a write. A body of a `media` type of its own is bytes, all others are sent as JSON."""
        media = media or (_MERGE_PATCH if method == "PATCH" else "")
        headers = {"Content-Type": media} if media else {}
        if self._fence is not None:
            headers[FENCE_HEADER] = f"{self._fence.lease};{self._fence.term}"
        if at is not None:
            headers["If-Match"] = f'"{at}"'
        if request is not None:
            check_idempotency_key(request)
            headers[IDEMPOTENCY_KEY] = request
        content = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        return await self._connection.request(method, path, query=query, headers=headers, body=content, seconds=seconds)


def _address_of(operation: Operation, arguments: Mapping[str, Value]) -> tuple[str, dict[str, str]]:
    """Return the path and the query of an operation's request."""
    path, query = operation.path, dict[str, str]()
    for name in operation.in_path:
        segment, more = _segment_of(operation, arguments[name])
        path, query = VARIABLE.sub(segment, path, count=1), query | more
    for name in operation.in_query:
        value = arguments[name]
        if value is not None:
            query[name] = _query_text(value)
    return path, query


def _query_text(value: Value) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _segment_of(operation: Operation, about: Value) -> tuple[str, dict[str, str]]:
    """Return the part of a path that names something, and the query that it needs."""
    if isinstance(about, str):
        if about in _NO_NAMES:
            raise Gone(f"there is nothing named {about!r}")
        return quote(about, safe=""), {}
    ref: Ref[Any] = about if isinstance(about, Ref) else ref_of(about)
    kind = {} if operation.kind else {"kind": ref.kind.__name__}
    return name_in_path(ref), kind | namespace_query(ref)


def _result_of(operation: Operation, answer: bytes) -> object:
    """Return what an operation returns, from the body of its answer."""
    if operation.answer is None:
        return None
    if operation.answer in MEDIA:
        return answer if operation.answer is FileBytes else answer.decode()
    found = read_answer(answer, operation.answer)
    return list(getattr(found, operation.answer_field)) if operation.answer_field else found


def _selector_query(kind: type[Any], where: ObjectSelector) -> dict[str, str]:
    labels, fields = format_terms(where.labels), format_terms(where.fields)
    if (labels or fields) and parse_selector(kind, labels, fields) != where:
        raise Invalid(Fault("where", "a condition cannot be written as a selector", "use values without , ( and )"))
    return {name: text for name, text in (("label_selector", labels), ("field_selector", fields)) if text}


def _dry_run_query(*, dry_run: bool) -> dict[str, str]:
    return {"dry_run": "true"} if dry_run else {}


def _lease_path(name: str) -> str:
    return f"{_LEASES_PATH}/{quote(name, safe='')}"
