"""What our own processes report: status, measurements, discoveries, leases. For the role `service` only."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import structlog

from lcm.api.http.answers import NO_CONTENT, Answer, json_answer, resource_answer
from lcm.api.http.request import Request, decode_body
from lcm.api.http.routing import GET, POST, SERVICES, Handler, Route
from lcm.api.routes.operations import operation_routes, read_at
from lcm.api.routes.resources import ResourceHandlers
from lcm.api.routes.shapes import LISTS, REPORTS, ListQuery
from lcm.control.plane.bodies import OneQuery
from lcm.control.plane.operations import ReportOperations
from lcm.control.plane.wire import BUILD_HEADER, LeaseAnswer, LeaseRequest, LeaseTerm, parse_build
from lcm.control.upkeep.installation import Installation, read_installation_id
from lcm.model.kinds.registry import KINDS, Kind
from lcm.model.kinds.worker import LabWorker
from lcm.store.base import Lease, check_key
from lcm.system.build import SCHEMA, build_name
from lcm.system.clock import new_id

_log: Final = structlog.get_logger()


class _Sent(msgspec.Struct):
    """A report whose status is not read."""

    status: msgspec.Raw


def _status_handler(kind: Kind) -> Handler:
    struct: type[Any] = kind.struct
    shape: type[Any] = REPORTS[kind.name]
    seen_type = next(field.type for field in msgspec.structs.fields(shape) if field.name == "status")
    known = frozenset(field.encode_name for field in msgspec.structs.fields(seen_type))

    async def step(request: Request) -> Answer:
        ref, plane = request.ref(struct, request.query(OneQuery).namespace), request.write_plane
        body = await request.text()
        sent = decode_body(body, _Sent).status
        # Less than what is known here is the status of something else: its unknown fields are no news.
        report = decode_body(body, shape, lenient=known <= decode_body(sent, dict[str, Any]).keys())
        seen = await read_at(plane, ref, report.resource_version)
        return resource_answer(await plane.step(seen, report.status, reason=report.reason, reported=bytes(sent)))

    return step


async def _get_installation(request: Request) -> Answer:
    """Answer the first contact of another process: which installation this is, and which build answers."""
    told = parse_build(request.headers.get(BUILD_HEADER.lower().encode(), b"").decode("latin-1"))
    if told is not None and told.schema > SCHEMA:
        _log.error(
            "a controller is newer than this API: upgrade the API first", controller=told.version, api=build_name()
        )
    here = await read_installation_id(request.shared.core.store, new_id)
    return json_answer(Installation(id=here, version=build_name(), schema=SCHEMA))


async def _acquire_lease(request: Request) -> Answer:
    wish = await request.read(LeaseRequest)
    lease = await request.plane.acquire(_lease_name(request), wish.holder, ttl_seconds=wish.ttl_seconds)
    return json_answer(LeaseAnswer(lease))


async def _renew_lease(request: Request) -> Answer:
    await request.plane.renew(await _read_lease_term(request))
    return NO_CONTENT


async def _release_lease(request: Request) -> Answer:
    await request.plane.release(await _read_lease_term(request))
    return NO_CONTENT


async def _get_lease(request: Request) -> Answer:
    return json_answer(LeaseAnswer(await request.plane.lease(_lease_name(request))))


async def _read_lease_term(request: Request) -> Lease:
    """Return the lease term of a request. The store ignores the holder and duration of it."""
    return Lease(_lease_name(request), "", (await request.read(LeaseTerm)).term, 0)


def _lease_name(request: Request) -> str:
    check_key(request.params[0])
    return request.params[0]


def _status_routes(kind: Kind) -> Iterator[Route]:
    paths = {f"/api/internal/{kind.plural}/{{id}}/status": f"report{kind.name}Status"}
    if kind.name == "LabletSession":
        paths["/api/internal/lablet-sessions/{id}/transition"] = "transitionLabletSession"
        paths["/api/internal/instances/{id}/transition"] = "transitionInstance"
    for path, operation in paths.items():
        yield Route(
            POST,
            path,
            _status_handler(kind),
            operation,
            f"Report what was seen of a {kind.name}",
            policy=SERVICES,
            kind=kind,
            query=OneQuery,
            body=REPORTS[kind.name],
            answer=kind.struct,
        )


_WORKER: Final = KINDS["LabWorker"]
_WORKERS: Final = ResourceHandlers(_WORKER)
_LEASE_PATH: Final = "/api/internal/leases/{name}"
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/internal/installation",
        _get_installation,
        "getInstallation",
        "Read the id of this installation, and which build serves it",
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
    *operation_routes(ReportOperations),
    *(route for kind in KINDS.values() for route in _status_routes(kind)),
    Route(GET, _LEASE_PATH, _get_lease, "getLease", "Read who holds a lease", policy=SERVICES, answer=LeaseAnswer),
    Route(
        POST,
        f"{_LEASE_PATH}/acquire",
        _acquire_lease,
        "acquireLease",
        "Acquire a lease that nobody holds",
        policy=SERVICES,
        body=LeaseRequest,
        answer=LeaseAnswer,
    ),
    Route(
        POST,
        f"{_LEASE_PATH}/renew",
        _renew_lease,
        "renewLease",
        "Renew a lease",
        policy=SERVICES,
        body=LeaseTerm,
        status=204,
    ),
    Route(
        POST,
        f"{_LEASE_PATH}/release",
        _release_lease,
        "releaseLease",
        "Release a lease",
        policy=SERVICES,
        body=LeaseTerm,
        status=204,
    ),
)
