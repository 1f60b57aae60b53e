"""Routes about the fleet: alerts, what workers cost, and licence seats.

Staff and services read them. Our own processes raise and clear alerts; a person confirms that an orphaned licence seat
was freed.
"""

from datetime import timedelta
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import NO_CONTENT, Answer, json_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, SERVICES, STAFF_AND_SERVICES, Policy, Route
from lcm.api.routes.shapes import OneQuery
from lcm.control.plane.protocol import Ref
from lcm.control.plane.wire import AlertList, CostReport, cost_report
from lcm.model.access.identity import STAFF
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Moment, Part, ShortText
from lcm.model.kinds.registry import KINDS
from lcm.model.money.licences import LicenceLedger
from lcm.model.telemetry.alert import AlertFinding

_KindName = Annotated[
    str, Meta(max_length=64, examples=["LabWorker"], extra_json_schema={"enum": list(KINDS)}, description="its kind")
]


class AlertQuery(OneQuery, kw_only=True):
    """The object that an alert is about."""

    kind: _KindName


class ClearAlertQuery(AlertQuery, kw_only=True):
    """The alert to clear, and the object that it is about."""

    alert: Annotated[ShortText, Meta(examples=["HighCpu"])]


async def _list_alerts(request: Request) -> Answer:
    return json_answer(AlertList(tuple(await request.plane.alerts())))


async def _raise_alert(request: Request) -> Answer:
    ref, plane = _ref_of_query(request, request.query(AlertQuery)), request.write_plane
    await plane.raise_alert(ref, await request.read(AlertFinding))
    return NO_CONTENT


async def _clear_alert(request: Request) -> Answer:
    query = request.query(ClearAlertQuery)
    await request.write_plane.clear_alert(_ref_of_query(request, query), query.alert)
    return NO_CONTENT


def _ref_of_query(request: Request, query: AlertQuery) -> Ref[Any]:
    known = KINDS.get(query.kind)
    if known is None:
        raise Invalid(Fault("kind", "there is no such kind", f"use {', '.join(KINDS)}"))
    return request.ref(known.struct, query.namespace)


_ALERT_PATH: Final = "/api/internal/alerts/{id}"
ALERT_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/alerts",
        _list_alerts,
        "listAlerts",
        "List what is raised",
        policy=STAFF_AND_SERVICES,
        answer=AlertList,
    ),
    Route(
        POST,
        _ALERT_PATH,
        _raise_alert,
        "raiseAlert",
        "Raise an alert about an object, unless it is raised",
        policy=SERVICES,
        query=AlertQuery,
        body=AlertFinding,
        status=204,
    ),
    Route(
        DELETE,
        _ALERT_PATH,
        _clear_alert,
        "clearAlert",
        "Clear an alert about an object, if it is raised",
        policy=SERVICES,
        query=ClearAlertQuery,
        status=204,
    ),
)


_DEFAULT_SPAN: Final = timedelta(days=30)
_Text = Annotated[str, Meta(max_length=128)]


class CostQuery(Part):
    """Which costs to report: by default all of the last thirty days."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    worker: Annotated[_Text, Meta(description="of the worker of this name or uid only")] = ""
    lab_track: Annotated[_Text, Meta(description="of workers of this track only")] | UnsetType = UNSET


async def _list_costs(request: Request) -> Answer:
    query, now = request.query(CostQuery), request.shared.clock.now()
    until = now if isinstance(query.until, UnsetType) else query.until
    since = until - _DEFAULT_SPAN if isinstance(query.since, UnsetType) else query.since
    wanted = [
        one
        for one in await request.plane.costs(since=since, until=until)
        if query.worker in {"", one.worker_name, one.worker_id}
        and (isinstance(query.lab_track, UnsetType) or query.lab_track == one.lab_track)
    ]
    return json_answer(cost_report(wanted, since=since, until=until, now=now))


COST_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/costs",
        _list_costs,
        "listCosts",
        "Tell what workers cost",
        policy=STAFF_AND_SERVICES,
        query=CostQuery,
        answer=CostReport,
    ),
)


async def _list_licences(request: Request) -> Answer:
    return json_answer(await request.plane.licences())


async def _free_licence(request: Request) -> Answer:
    await request.write_plane.free_licence(request.params[0])
    return NO_CONTENT


LICENCE_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/licenses",
        _list_licences,
        "listLicenses",
        "List tokens and the workers that have their seats",
        policy=STAFF_AND_SERVICES,
        answer=LicenceLedger,
    ),
    Route(
        DELETE,
        "/api/licenses/{id}",
        _free_licence,
        "freeLicense",
        "Take note that the seat which a worker of this uid left behind was freed at the licence server",
        policy=Policy(STAFF),
        status=204,
    ),
)
