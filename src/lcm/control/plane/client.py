"""The plane over HTTP, for controllers in other processes and the command line.

    async with HttpPlane.open("http://127.0.0.1:8030", token) as plane:
        worker = await plane.get(Ref(LabWorker, "w1"))

Nothing is decided here: each verb is one request to `api`, and its errors are raised as the plane there raised them.
`HttpPlane` is put together from one class for each topic: reports, fleet, placement and learning.
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
    PAGE_SIZE,
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
from lcm.control.plane.transport import (
    ApiConnection,
    ApiRequests,
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
    AlertList,
    ArtifactList,
    ClaimNumbers,
    CostReport,
    Documents,
    LeaseAnswer,
    LeaseRequest,
    LeaseTerm,
    MadeSessions,
    ObjectPage,
    ObservationAnswer,
    Results,
    ScheduleRequest,
    SeatChanges,
    StatusReport,
    Who,
    WorkerHistory,
    metrics_report_of,
)
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.machine import USER
from lcm.model.base.resource import Status
from lcm.model.base.selector import EVERYTHING, ObjectSelector, format_terms, parse_selector
from lcm.model.kinds.placement import Assignment, CalendarView, Explanation, PortRequest, PreviewRequest, SeatChange
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import Artifact, LabletSession
from lcm.model.kinds.worker import IdleVerdict, WorkerTelemetry
from lcm.model.money.billing import BillingInterval
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Alert, AlertFinding
from lcm.model.telemetry.learning import ObservationReport
from lcm.model.telemetry.observation import ResourceObservation
from lcm.model.topology.lab import TopologyReport
from lcm.store.base import Fence, Lease
from lcm.system import clock


class HttpFleet(ApiRequests):
    """The verbs about licence seats and costs, over HTTP."""

    async def licences(self) -> LicenceLedger:
        return read_answer(await self._request("GET", "/api/licenses", {}), LicenceLedger)

    async def free_licence(self, worker_id: str) -> None:
        check_worker_id(worker_id)  # an invalid id could form another path
        await self._write("DELETE", f"/api/licenses/{worker_id}", {})

    async def costs(self, *, since: datetime, until: datetime) -> Sequence[BillingInterval]:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        return list(read_answer(await self._request("GET", "/api/costs", query), CostReport).intervals)


_YAML: Final = "text/yaml"
_NOT_FILE_NAMES: Final = ("", ".", "..")


class HttpLearning(ApiRequests):
    """The verbs about observations, lab files and collected files, over HTTP."""

    async def record_observation(
        self, ref: SessionRef, observation: ResourceObservation, *, request_id: str | None = None
    ) -> LabletSession:
        body = ObservationAnswer(observation=observation, request_id=request_id)
        path = f"{internal_path(ref)}/resource-observations"
        return read_answer(await self._write("POST", path, namespace_query(ref), body), LabletSession)

    async def observations(self, ref: DefinitionRef) -> ObservationReport:
        return read_answer(
            await self._request("GET", f"{path_of(ref)}/resource-observations", namespace_query(ref)), ObservationReport
        )

    async def upload_topology(self, data: bytes) -> TopologyReport:
        return read_answer(await self._upload("/api/topologies", data, _YAML), TopologyReport)

    async def artifacts(self, ref: SessionRef) -> Sequence[Artifact]:
        answer = await self._request("GET", f"{path_of(ref)}/artifacts", namespace_query(ref))
        return read_answer(answer, ArtifactList).items

    async def download(self, ref: SessionRef, name: str) -> bytes:
        if name in _NOT_FILE_NAMES:  # such a name would form another path
            raise Gone(f"there is no file {name!r} of session {ref.name}")
        return await self._request("GET", f"{path_of(ref)}/artifacts/{quote(name, safe='')}", namespace_query(ref))

    async def logs(self, ref: SessionRef) -> str:
        return (await self._request("GET", f"{path_of(ref)}/logs", namespace_query(ref))).decode()


class HttpPlacement(ApiRequests):
    """The verbs about placement and booking for the scheduler, the pool controller and people, over HTTP."""

    async def schedule(self, session: LabletSession, assignment: Assignment) -> LabletSession:
        ref = ref_of(session)
        body = ScheduleRequest(resource_version=session.metadata.resource_version, assignment=assignment)
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/schedule", namespace_query(ref), body), LabletSession
        )

    async def allocate_ports(self, ref: SessionRef, wish: PortRequest) -> LabletSession:
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/allocate-ports", namespace_query(ref), wish), LabletSession
        )

    async def reseat(self, pool: Ref[LabWorkerPool], changes: Sequence[SeatChange]) -> None:
        await self._write(
            "POST", f"{internal_path(pool)}/reseat", namespace_query(pool), SeatChanges(changes=tuple(changes))
        )

    async def fulfil(self, ref: Ref[Reservation], *numbers: int) -> Sequence[LabletSession]:
        body = ClaimNumbers(numbers=numbers)
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/sessions", namespace_query(ref), body), MadeSessions
        ).items

    async def preview(self, wish: PreviewRequest) -> Explanation:
        return read_answer(await self._write("POST", "/api/placement/preview", {}, wish), Explanation)

    async def explain(self, ref: SessionRef) -> Explanation:
        return read_answer(await self._request("GET", f"{path_of(ref)}/explanation", namespace_query(ref)), Explanation)

    async def calendar(self, *, since: datetime, until: datetime, namespace: str | None = None) -> CalendarView:
        query = {"since": since.astimezone(UTC).isoformat(), "until": until.astimezone(UTC).isoformat()}
        query |= {} if namespace is None else {"namespace": namespace}
        return read_answer(await self._request("GET", "/api/calendar", query), CalendarView)


class HttpReports(ApiRequests):
    """The verbs about measurements, idleness and alerts, over HTTP."""

    async def report(self, ref: WorkerRef, telemetry: WorkerTelemetry) -> WorkerTelemetry:
        answer = await self._write(
            "POST", f"{internal_path(ref)}/metrics", namespace_query(ref), metrics_report_of(telemetry)
        )
        return read_answer(answer, WorkerTelemetry)

    async def telemetry(self, ref: WorkerRef) -> WorkerTelemetry | None:
        try:
            return read_answer(
                await self._request("GET", f"{path_of(ref)}/telemetry", namespace_query(ref)), WorkerTelemetry
            )
        except Gone:
            return None

    async def history(self, ref: WorkerRef, *, since: datetime) -> Sequence[Sample]:
        query = namespace_query(ref) | {"since": since.astimezone(UTC).isoformat()}
        return list(read_answer(await self._request("GET", f"{path_of(ref)}/history", query), WorkerHistory).items)

    async def detect_idle(self, ref: WorkerRef) -> IdleVerdict:
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/detect-idle", namespace_query(ref)), IdleVerdict
        )

    async def raise_alert(self, ref: Ref[R], complaint: AlertFinding) -> None:
        await self._write("POST", _alerts_path(ref), _alert_query(ref), complaint)

    async def clear_alert(self, ref: Ref[R], alert: str) -> None:
        await self._write("DELETE", _alerts_path(ref), _alert_query(ref) | {"alert": alert})

    async def alerts(self) -> Sequence[Alert]:
        return list(read_answer(await self._request("GET", "/api/alerts", {}), AlertList).items)


def _alerts_path(ref: Ref[Any]) -> str:
    return f"/api/internal/alerts/{name_in_path(ref)}"


def _alert_query(ref: Ref[Any]) -> dict[str, str]:
    return {"kind": ref.kind.__name__, **namespace_query(ref)}


_LEASES_PATH: Final = "/api/internal/leases"
_LEASE_POLL_FRACTION: Final = 1 / 5
"""The fraction of a lease's time to live after which a waiting process reads the lease again."""


class HttpPlane(HttpReports, HttpFleet, HttpPlacement, HttpLearning):
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

    async def get(self, ref: Ref[R]) -> R | None:
        try:
            return read_answer(await self._request("GET", path_of(ref), namespace_query(ref)), ref.kind)
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
        page = read_answer(await self._request("GET", collection_path(kind), query), ObjectPage)
        return Listing([read_answer(item, kind) for item in page.items], page.revision, page.next)

    def watch(self, *kinds: type[Resource], after: int) -> HttpWatch:
        watch = HttpWatch(self._connection, kinds, after=after, chance=self._chance, on_end=self._forget_watch)
        self._watches[watch] = None
        return watch

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

    async def act(self, ref: Ref[R], action: Action, *, dry_run: bool = False, request: str | None = None) -> R:
        name = type(action).__struct_config__.tag
        if not isinstance(action, ACTIONS.get(ref.kind.__name__, ())):  # the API has no path for it
            raise Invalid(Fault("action", f"a {ref.kind.__name__} has no action {name}", "see its kind's actions"))
        path = f"{path_of(ref)}/{name}"
        query = namespace_query(ref) | _dry_run_query(dry_run=dry_run)
        body = msgspec.structs.asdict(action)  # the path names the action
        return read_answer(await self._write("POST", path, query, body, request=request), ref.kind)

    async def step(self, resource: R, status: Status, *, reason: str = "") -> R:
        ref = ref_of(resource)
        seen = msgspec.Raw(msgspec.json.encode(status))
        body = StatusReport(resource_version=resource.metadata.resource_version, status=seen, reason=reason)
        return read_answer(
            await self._write("POST", f"{internal_path(ref)}/status", namespace_query(ref), body), ref.kind
        )

    async def import_workers(self, found: BulkImport) -> Imported:
        return read_answer(await self._write("POST", "/api/internal/workers/bulk-import", {}, found), Imported)

    async def acquire(self, name: str, holder: str, *, ttl_seconds: int) -> Lease | None:
        wish = LeaseRequest(holder=holder, ttl_seconds=ttl_seconds)
        return read_answer(await self._write("POST", f"{_lease_path(name)}/acquire", {}, wish), LeaseAnswer).lease

    async def wait_until_vacant(self, name: str) -> None:
        first = held = await self.lease(name)
        while first is not None and held is not None and held.term == first.term:
            await asyncio.sleep(held.ttl_seconds * _LEASE_POLL_FRACTION)
            held = await self.lease(name)

    async def renew(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease_path(lease.name)}/renew", {}, LeaseTerm(term=lease.term))

    async def release(self, lease: Lease) -> None:
        await self._write("POST", f"{_lease_path(lease.name)}/release", {}, LeaseTerm(term=lease.term))

    async def lease(self, name: str) -> Lease | None:
        return read_answer(await self._request("GET", _lease_path(name), {}), LeaseAnswer).lease

    async def close(self) -> None:
        """End every watch and close the connections, which planes `under` a fence share. May be repeated."""
        for watch in tuple(self._watches):
            await watch.aclose()
        await self._connection.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.close)
            if self._caller is None:
                who = read_answer(await self._request("GET", "/api/whoami", {}), Who)
                self._caller = Caller(name=who.name, role=who.role, actor=self._actor)
            undo.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget_watch(self, watch: HttpWatch) -> None:
        self._watches.pop(watch, None)


def _selector_query(kind: type[Any], where: ObjectSelector) -> dict[str, str]:
    labels, fields = format_terms(where.labels), format_terms(where.fields)
    if (labels or fields) and parse_selector(kind, labels, fields) != where:
        raise Invalid(Fault("where", "a condition cannot be written as a selector", "use values without , ( and )"))
    return {name: text for name, text in (("label_selector", labels), ("field_selector", fields)) if text}


def _dry_run_query(*, dry_run: bool) -> dict[str, str]:
    return {"dry_run": "true"} if dry_run else {}


def _lease_path(name: str) -> str:
    return f"{_LEASES_PATH}/{quote(name, safe='')}"
