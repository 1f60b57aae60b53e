"""The plane over HTTP: what controllers in other processes and the command line have.

    async with HttpPlane.open("http://127.0.0.1:8030", token) as plane:
        worker = await plane.get(Ref(LabWorker, "w1"))

Nothing is decided here: each verb is one request to `api`, and its errors are raised as the plane there raised them.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Final, Self
from urllib.parse import quote

import httpx
import msgspec

from lcm.control.accounts.licences import check_worker_id
from lcm.control.plane.client_streams import HttpWatch
from lcm.control.plane.protocol import (
    PAGE,
    Action,
    Applied,
    BulkImport,
    DefinitionRef,
    Document,
    Imported,
    Listing,
    R,
    Ref,
    Sample,
    SessionRef,
    WorkerRef,
    ref_of,
)
from lcm.control.plane.transport import Limits, Line, Requests, collection, internal, named, path_of, read, within
from lcm.control.plane.wire import (
    ACTIONS,
    AlertList,
    ArtifactList,
    ClaimNumbers,
    CostReport,
    Documents,
    Items,
    LeaseAnswer,
    LeaseTerm,
    LeaseWish,
    MadeSessions,
    ObservationAnswer,
    Results,
    ScheduleWish,
    SeatChanges,
    StatusReport,
    Who,
    WorkerHistory,
    report_of,
)
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Status
from lcm.model.base.selector import EVERYTHING, Where, parse, write
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortWish, SeatChange, Wish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.worker import IdleVerdict, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, Complaint
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.store.base import Fence, Lease
from lcm.system import clock


class Ledgers(Requests):
    """What is counted for all workers together."""

    async def licences(self) -> LicenceLedger:
        return read(await self._ask("GET", "/api/licenses", {}), LicenceLedger)

    async def free_licence(self, worker_id: str) -> None:
        check_worker_id(worker_id)  # some of what is none would be another path
        await self._write("DELETE", f"/api/licenses/{worker_id}", {})

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        return list(read(await self._ask("GET", "/api/costs", query), CostReport).intervals)


_YAML: Final = "text/yaml"
_NO_FILES: Final = ("", ".", "..")


class Learning(Requests):
    """What the lablet controller observed, and what people are told and given of it."""

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        body = ObservationAnswer(observation=observation, request_id=request_id)
        path = f"{internal(ref)}/resource-observations"
        return read(await self._write("POST", path, within(ref), body), LabletSession)

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        return read(await self._ask("GET", f"{path_of(ref)}/resource-observations", within(ref)), ObservationReport)

    async def upload_topology(self, data: bytes) -> TopologyReport:
        return read(await self._send("/api/topologies", data, _YAML), TopologyReport)

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        answer = await self._ask("GET", f"{path_of(ref)}/artifacts", within(ref))
        return read(answer, ArtifactList).items

    async def download(self, ref: SessionRef, name: str) -> bytes:
        if name in _NO_FILES:  # it would be another path
            raise Gone(f"there is no file {name!r} of session {ref.name}")
        return await self._ask("GET", f"{path_of(ref)}/artifacts/{quote(name, safe='')}", within(ref))

    async def logs(self, ref: SessionRef) -> str:
        return (await self._ask("GET", f"{path_of(ref)}/logs", within(ref))).decode()


class Placing(Requests):
    """What the scheduler and the pool controller do to bookings, and what people ask about them."""

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        ref = ref_of(session)
        body = ScheduleWish(resource_version=session.metadata.resource_version, assignment=assignment)
        return read(await self._write("POST", f"{internal(ref)}/schedule", within(ref), body), LabletSession)

    async def allocate_ports(self, ref: SessionRef, wish: PortWish) -> LabletSession:
        return read(await self._write("POST", f"{internal(ref)}/allocate-ports", within(ref), wish), LabletSession)

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        await self._write("POST", f"{internal(pool)}/reseat", within(pool), SeatChanges(changes=tuple(changes)))

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        body = ClaimNumbers(numbers=numbers)
        return read(await self._write("POST", f"{internal(ref)}/sessions", within(ref), body), MadeSessions).items

    async def preview(self, wish: Wish) -> Explanation:
        return read(await self._write("POST", "/api/placement/preview", {}, wish), Explanation)

    async def explain(self, ref: SessionRef) -> Explanation:
        return read(await self._ask("GET", f"{path_of(ref)}/explanation", within(ref)), Explanation)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        query |= {} if namespace is None else {"namespace": namespace}
        return read(await self._ask("GET", "/api/calendar", query), CalendarView)


class Reports(Requests):
    """What controllers report, and what was made of it."""

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
        answer = await self._write("POST", f"{internal(ref)}/metrics", within(ref), report_of(telemetry))
        return read(answer, WorkerTelemetry)

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        try:
            return read(await self._ask("GET", f"{path_of(ref)}/telemetry", within(ref)), WorkerTelemetry)
        except Gone:
            return None

    async def history(self, ref: WorkerRef, *, since: datetime) -> Sequence[Sample]:
        query = within(ref) | {"since": since.astimezone(UTC).isoformat()}
        return list(read(await self._ask("GET", f"{path_of(ref)}/history", query), WorkerHistory).items)

    async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
        return read(await self._write("POST", f"{internal(ref)}/detect-idle", within(ref)), IdleVerdict)

    async def complain(self, ref: Ref[R], complaint: Complaint) -> None:
        await self._write("POST", _alerts(ref), _about(ref), complaint)

    async def settle(self, ref: Ref[R], alert: str) -> None:
        await self._write("DELETE", _alerts(ref), _about(ref) | {"alert": alert})

    async def alerts(self) -> Sequence[Alert]:
        return list(read(await self._ask("GET", "/api/alerts", {}), AlertList).items)


def _alerts(ref: Ref[Any]) -> str:
    return f"/api/internal/alerts/{named(ref)}"


def _about(ref: Ref[Any]) -> dict[str, str]:
    return {"kind": ref.kind.__name__, **within(ref)}


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
        chance: Callable[[], float] = clock.chance,
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
