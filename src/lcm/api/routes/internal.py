"""What our own processes report: status, measurements, discoveries, leases. For the role `service` only."""

from collections.abc import Iterator
from typing import Any, Final, Protocol

from lcm.api.http.answers import NOTHING, Answer, resource, value
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, SERVICES, Handler, Route
from lcm.api.routes.resources import Collection
from lcm.api.routes.shapes import LISTS, REPORTS, ListQuery, OneQuery
from lcm.control.objects.records import at_revision
from lcm.control.objects.writer import missing
from lcm.control.plane.protocol import BulkImport, Imported
from lcm.control.plane.wire import LeaseAnswer, LeaseTerm, LeaseWish, MetricsReport, telemetry_of
from lcm.control.upkeep.installation import Installation, installation
from lcm.model.base.resource import Status
from lcm.model.kinds.registry import KINDS, Kind
from lcm.model.kinds.worker import IdleVerdict, LabWorker, WorkerTelemetry
from lcm.store.base import Lease, check_key
from lcm.system.clock import new_id


class _Report(Protocol):
    resource_version: int
    status: Status
    reason: str


def _stepping(kind: Kind) -> Handler:
    struct: type[Any] = kind.struct
    shape: type[Any] = REPORTS[kind.name]

    async def step(request: Request) -> Answer:
        ref, plane = request.ref(struct, request.query(OneQuery).namespace), request.writing
        report: _Report = await request.read(shape)
        found = await plane.get(ref)
        if found is None:
            raise missing(ref)
        seen = at_revision(found, report.resource_version)
        return resource(await plane.step(seen, report.status, reason=report.reason))

    return step


async def _import(request: Request) -> Answer:
    plane = request.writing
    return value(await plane.import_workers(await request.read(BulkImport)))


async def _measure(request: Request) -> Answer:
    ref, plane = request.ref(LabWorker, request.query(OneQuery).namespace), request.writing
    telemetry = telemetry_of(await request.read(MetricsReport))
    return value(await plane.report(ref, telemetry))


async def _judge(request: Request) -> Answer:
    ref, plane = request.ref(LabWorker, request.query(OneQuery).namespace), request.writing
    return value(await plane.detect_idle(ref))


async def _installation(request: Request) -> Answer:
    return value(Installation(id=await installation(request.shared.core.store, new_id)))


async def _acquire(request: Request) -> Answer:
    wish = await request.read(LeaseWish)
    lease = await request.plane.acquire(_name(request), wish.holder, ttl_seconds=wish.ttl_seconds)
    return value(LeaseAnswer(lease))


async def _renew(request: Request) -> Answer:
    await request.plane.renew(await _lease(request))
    return NOTHING


async def _release(request: Request) -> Answer:
    await request.plane.release(await _lease(request))
    return NOTHING


async def _holder(request: Request) -> Answer:
    return value(LeaseAnswer(await request.plane.lease(_name(request))))


async def _lease(request: Request) -> Lease:
    """Name a term; who holds it and for how long does not matter to the store."""
    return Lease(_name(request), "", (await request.read(LeaseTerm)).term, 0)


def _name(request: Request) -> str:
    check_key(request.params[0])
    return request.params[0]


def _steps(kind: Kind) -> Iterator[Route]:
    paths = {f"/api/internal/{kind.plural}/{{id}}/status": f"report{kind.name}Status"}
    if kind.name == "LabletSession":
        paths["/api/internal/lablet-sessions/{id}/transition"] = "transitionLabletSession"
        paths["/api/internal/instances/{id}/transition"] = "transitionInstance"
    for path, operation in paths.items():
        yield Route(
            POST,
            path,
            _stepping(kind),
            operation,
            f"Report what was seen of a {kind.name}",
            policy=SERVICES,
            kind=kind,
            query=OneQuery,
            body=REPORTS[kind.name],
            answer=kind.struct,
        )


_WORKER: Final = KINDS["LabWorker"]
_WORKERS: Final = Collection(_WORKER)
_LEASE: Final = "/api/internal/leases/{name}"
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/internal/installation",
        _installation,
        "getInstallation",
        "Tell what this installation is called",
        policy=SERVICES,
        answer=Installation,
    ),
    Route(
        GET,
        "/api/internal/workers",
        _WORKERS.list,
        "listWorkersInternally",
        "List workers",
        policy=SERVICES,
        kind=_WORKER,
        query=ListQuery,
        answer=LISTS["LabWorker"],
        also=(410,),
    ),
    Route(
        GET,
        "/api/internal/workers/{id}",
        _WORKERS.get,
        "getWorkerInternally",
        "Read a worker",
        policy=SERVICES,
        kind=_WORKER,
        query=OneQuery,
        answer=LabWorker,
    ),
    Route(
        POST,
        "/api/internal/workers/bulk-import",
        _import,
        "importWorkers",
        "Record machines found in the cloud",
        policy=SERVICES,
        body=BulkImport,
        answer=Imported,
    ),
    Route(
        POST,
        "/api/internal/workers/{id}/metrics",
        _measure,
        "reportWorkerMetrics",
        "Report a worker's measurements",
        policy=SERVICES,
        kind=_WORKER,
        query=OneQuery,
        body=MetricsReport,
        answer=WorkerTelemetry,
    ),
    Route(
        POST,
        "/api/internal/workers/{id}/detect-idle",
        _judge,
        "detectIdleWorker",
        "Judge whether a worker is idle, and say why",
        policy=SERVICES,
        kind=_WORKER,
        query=OneQuery,
        answer=IdleVerdict,
    ),
    *(route for kind in KINDS.values() for route in _steps(kind)),
    Route(GET, _LEASE, _holder, "getLease", "Tell who holds a lease", policy=SERVICES, answer=LeaseAnswer),
    Route(
        POST,
        f"{_LEASE}/acquire",
        _acquire,
        "acquireLease",
        "Take a lease that nobody holds",
        policy=SERVICES,
        body=LeaseWish,
        answer=LeaseAnswer,
    ),
    Route(
        POST,
        f"{_LEASE}/renew",
        _renew,
        "renewLease",
        "Start a lease's time anew",
        policy=SERVICES,
        body=LeaseTerm,
        status=204,
    ),
    Route(
        POST,
        f"{_LEASE}/release",
        _release,
        "releaseLease",
        "Give a lease back",
        policy=SERVICES,
        body=LeaseTerm,
        status=204,
    ),
)
