"""The plane over HTTP: what controllers in other processes and the command line have.

    async with HttpPlane.open("http://127.0.0.1:8030", token) as plane:
        worker = await plane.get(Ref(LabWorker, "w1"))

Nothing is decided here: each verb is one request to `api`, and its errors are raised as the plane there raised them.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from lcm import system
from lcm.control.client_fleet import Ledgers
from lcm.control.client_learning import Learning
from lcm.control.client_line import Limits, Line, read
from lcm.control.client_placing import Placing
from lcm.control.client_reports import Reports
from lcm.control.client_requests import collection, internal, path_of, within
from lcm.control.client_watch import HttpWatch
from lcm.control.plane import (
    PAGE,
    Action,
    Applied,
    BulkImport,
    Document,
    Imported,
    Listing,
    Ref,
    ref_of,
)
from lcm.control.wire import (
    ACTIONS,
    Documents,
    Items,
    LeaseAnswer,
    LeaseTerm,
    LeaseWish,
    Results,
    StatusReport,
    Who,
)
from lcm.model.errors import Fault, Gone, Invalid
from lcm.model.identity import Caller
from lcm.model.kinds import Resource
from lcm.model.machine import USER
from lcm.model.resource import Status
from lcm.model.secret import Secret
from lcm.model.selector import EVERYTHING, Where, parse, write
from lcm.store.base import Fence, Lease

R = TypeVar("R", bound=Resource)

_LEASES: Final = "/api/internal/leases"
_GLANCE: Final = 1 / 5
"""The part of a term after which somebody who waits for a lease looks at it again."""


class HttpPlane(Reports, Ledgers, Placing, Learning):
    """What one caller may see and do, through the API."""

    def __init__(
        self,
        line: Line,
        caller: Caller | None,
        *,
        actor: str,
        chance: Callable[[], float],
        watches: dict[HttpWatch, None],
        fence: Fence | None = None,
    ) -> None:
        super().__init__(line, fence)
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
        limits: Limits | None = None,
        trust: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        chance: Callable[[], float] = system.chance,
    ) -> Self:
        """Make a plane; enter it to learn who its caller is, unless that is told. Nothing is sent before."""
        line = Line(url, token, actor=actor, limits=limits or Limits(), trust=trust, transport=transport)
        return cls(line, caller, actor=actor or USER, chance=chance, watches={})

    @property
    def caller(self) -> Caller:
        assert self._caller is not None, "enter the plane first, or tell it who its caller is"
        return self._caller

    def under(self, fence: Fence) -> "HttpPlane":
        return HttpPlane(
            self._line, self._caller, actor=self._actor, chance=self._chance, watches=self._watches, fence=fence
        )

    async def get(self, ref: Ref[R]) -> R | None:
        try:
            return read(await self._ask("GET", path_of(ref), within(ref)), ref.kind)
        except Gone:
            return None

    async def list(
        self,
        kind: type[R],
        *,
        namespace: str | None = None,
        where: Where = EVERYTHING,
        limit: int = PAGE,
        cursor: str | None = None,
        archived: bool = False,
    ) -> Listing[R]:
        query = _selection(kind, where) | {"limit": str(limit)}
        query |= {} if namespace is None else {"namespace": namespace}
        query |= {} if cursor is None else {"cursor": cursor}
        query |= {"archived": "true"} if archived else {}
        page = read(await self._ask("GET", collection(kind), query), Items)
        return Listing([read(item, kind) for item in page.items], page.revision, page.next)

    def watch(self, *kinds: type[Resource], after: int) -> HttpWatch:
        watch = HttpWatch(self._line, kinds, after=after, chance=self._chance, on_end=self._forget)
        self._watches[watch] = None
        return watch

    async def create(self, resource: R, *, dry_run: bool = False, request: str | None = None) -> R:
        path, query = collection(type(resource)), _dry(dry_run=dry_run)
        return read(await self._write("POST", path, query, resource, request=request), type(resource))

    async def replace(self, resource: R, *, at: int | None = None, dry_run: bool = False) -> R:
        ref = ref_of(resource)
        query = within(ref) | _dry(dry_run=dry_run)
        return read(await self._write("PUT", path_of(ref), query, resource, at=at), ref.kind)

    async def patch(self, ref: Ref[R], document: Document, *, at: int | None = None, dry_run: bool = False) -> R:
        query = within(ref) | _dry(dry_run=dry_run)
        return read(await self._write("PATCH", path_of(ref), query, document, at=at), ref.kind)

    async def delete(self, ref: Ref[R], *, at: int | None = None, dry_run: bool = False) -> R:
        query = within(ref) | _dry(dry_run=dry_run)
        return read(await self._write("DELETE", path_of(ref), query, at=at), ref.kind)

    async def apply(self, documents: Sequence[Document], *, dry_run: bool = False) -> Sequence[Applied]:
        body = Documents(documents=documents)
        seconds = self._line.limits.apply_seconds
        answer = await self._write("POST", "/api/apply", _dry(dry_run=dry_run), body, seconds=seconds)
        return list(read(answer, Results).results)

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        name = type(action).__struct_config__.tag
        if not isinstance(action, ACTIONS.get(ref.kind.__name__, ())):  # the API has no path for it
            raise Invalid(Fault("action", f"a {ref.kind.__name__} has no action {name}", "see its kind's actions"))
        path = f"{path_of(ref)}/{name}"
        query = within(ref) | _dry(dry_run=dry_run)
        body = msgspec.structs.asdict(action)  # the path tells which action it is
        return read(await self._write("POST", path, query, body, request=request), ref.kind)

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        ref = ref_of(resource)
        seen = msgspec.Raw(msgspec.json.encode(status))
        body = StatusReport(resource_version=resource.metadata.resource_version, status=seen, reason=reason)
        return read(await self._write("POST", f"{internal(ref)}/status", within(ref), body), ref.kind)

    async def import_workers(self, found: BulkImport) -> Imported:
        return read(await self._write("POST", "/api/internal/workers/bulk-import", {}, found), Imported)

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        wish = LeaseWish(holder=holder, ttl_seconds=ttl_seconds)
        return read(await self._write("POST", f"{_lease(name)}/acquire", {}, wish), LeaseAnswer).lease

    async def vacated(self, name: str) -> None:
        first = held = await self.lease(name)
        while first is not None and held is not None and held.term == first.term:
            await asyncio.sleep(held.ttl_seconds * _GLANCE)
            held = await self.lease(name)

    async def renew(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease(lease.name)}/renew", {}, LeaseTerm(term=lease.term))

    async def release(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease(lease.name)}/release", {}, LeaseTerm(term=lease.term))

    async def lease(self, name: str) -> Lease | None:
        return read(await self._ask("GET", _lease(name), {}), LeaseAnswer).lease

    async def close(self) -> None:
        """End every watch and let go of the connections, which planes `under` a fence share. May be repeated."""
        for watch in tuple(self._watches):
            await watch.aclose()
        await self._line.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            if self._caller is None:
                who = read(await self._ask("GET", "/api/whoami", {}), Who)
                self._caller = Caller(name=who.name, role=who.role, actor=self._actor)
            undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget(self, watch: HttpWatch) -> None:
        self._watches.pop(watch, None)


def _selection(kind: type[Any], where: Where) -> dict[str, str]:
    labels, fields = write(where.labels), write(where.fields)
    if (labels or fields) and parse(kind, labels, fields) != where:
        raise Invalid(Fault("where", "a condition cannot be written as a selector", "use values without , ( and )"))
    return {name: text for name, text in (("label_selector", labels), ("field_selector", fields)) if text}


def _dry(*, dry_run: bool) -> dict[str, str]:
    return {"dry_run": "true"} if dry_run else {}


def _lease(name: str) -> str:
    return f"{_LEASES}/{quote(name, safe='')}"
