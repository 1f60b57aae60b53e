"""Alerts over HTTP: what is raised, for those who run the system; raising and clearing, for our own processes."""

from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import NOTHING, Answer, value
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, SERVICES, WATCHMEN, Policy, Route
from lcm.api.routes.shapes import OneQuery
from lcm.control.plane.protocol import Ref
from lcm.control.plane.wire import AlertList, CostReport, report
from lcm.model.access.identity import STAFF
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Moment, Part, ShortText
from lcm.model.kinds.registry import KINDS
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import Complaint

_KindName = Annotated[
    str, Meta(max_length=64, examples=["LabWorker"], extra_json_schema={"enum": list(KINDS)}, description="its kind")
]


class AboutQuery(OneQuery, kw_only=True):
    """What an alert is about."""

    kind: _KindName


class ClearQuery(AboutQuery, kw_only=True):
    """Which alert of what to clear."""

    alert: Annotated[ShortText, Meta(examples=["HighCpu"])]


async def _list(request: Request) -> Answer:
    return value(AlertList(tuple(await request.plane.alerts())))


async def _raise(request: Request) -> Answer:
    ref, plane = _about(request, request.query(AboutQuery)), request.writing
    await plane.complain(ref, await request.read(Complaint))
    return NOTHING


async def _clear(request: Request) -> Answer:
    query = request.query(ClearQuery)
    await request.writing.settle(_about(request, query), query.alert)
    return NOTHING


def _about(request: Request, query: AboutQuery) -> Ref[Any]:
    known = KINDS.get(query.kind)
    if known is None:
        raise Invalid(Fault("kind", "there is no such kind", f"use {', '.join(KINDS)}"))
    return request.ref(known.struct, query.namespace)


_ABOUT: Final = "/api/internal/alerts/{id}"
ALERT_ROUTES: Final[tuple[Route, ...]] = (
    Route(GET, "/api/alerts", _list, "listAlerts", "List what is raised", policy=WATCHMEN, answer=AlertList),
    Route(
        POST,
        _ABOUT,
        _raise,
        "raiseAlert",
        "Raise an alert about an object, unless it is raised",
        policy=SERVICES,
        query=AboutQuery,
        body=Complaint,
        status=204,
    ),
    Route(
        DELETE,
        _ABOUT,
        _clear,
        "clearAlert",
        "Clear an alert about an object, if it is raised",
        policy=SERVICES,
        query=ClearQuery,
        status=204,
    ),
)


_USUAL: Final = timedelta(days=30)
_Text = Annotated[str, Meta(max_length=128)]


class CostQuery(Part):
    """Which costs to tell: by default all of the last thirty days."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    worker: Annotated[_Text, Meta(description="of the worker of this name or uid only")] = ""
    lab_track: Annotated[_Text, Meta(description="of workers of this track only")] | UnsetType = UNSET


async def _list_costs(request: Request) -> Answer:
    query, now = request.query(CostQuery), request.shared.clock.now()
    until = now if isinstance(query.until, UnsetType) else query.until
    since = until - _USUAL if isinstance(query.since, UnsetType) else query.since
    wanted = [
        one
        for one in await request.plane.costs(since=since, until=until)
        if query.worker in {"", one.worker_name, one.worker_id}
        and (isinstance(query.lab_track, UnsetType) or query.lab_track == one.lab_track)
    ]
    return value(report(wanted, since=since, until=until, now=now))


COST_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/costs",
        _list_costs,
        "listCosts",
        "Tell what workers cost",
        policy=WATCHMEN,
        query=CostQuery,
        answer=CostReport,
    ),
)


async def _list_licenses(request: Request) -> Answer:
    return value(await request.plane.licences())


async def _free(request: Request) -> Answer:
    await request.writing.free_licence(request.params[0])
    return NOTHING


LICENSE_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/licenses",
        _list_licenses,
        "listLicenses",
        "List tokens and the workers that have their seats",
        policy=WATCHMEN,
        answer=LicenceLedger,
    ),
    Route(
        DELETE,
        "/api/licenses/{id}",
        _free,
        "freeLicense",
        "Take note that the seat which a worker of this uid left behind was freed at the licence server",
        policy=Policy(STAFF),
        status=204,
    ),
)
