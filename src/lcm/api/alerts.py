"""Alerts over HTTP: what is raised, for those who run the system; raising and clearing, for our own processes."""

from typing import Annotated, Any, Final

from msgspec import Meta

from lcm.api.answers import NOTHING, Answer, value
from lcm.api.http import Request
from lcm.api.routes import DELETE, GET, POST, SERVICES, WATCHMEN, Route
from lcm.api.shapes import OneQuery
from lcm.control.plane import Ref
from lcm.control.wire import AlertList
from lcm.model.alert import Complaint
from lcm.model.errors import Fault, Invalid
from lcm.model.kinds import KINDS
from lcm.model.resource import ShortText

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
ROUTES: Final[tuple[Route, ...]] = (
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
