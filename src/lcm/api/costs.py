"""Money over HTTP: what workers cost in a span, interval by interval and added up."""

from datetime import timedelta
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.answers import Answer, value
from lcm.api.http import Request
from lcm.api.routes import GET, WATCHMEN, Route
from lcm.control.wire_fleet import CostReport, report
from lcm.model.resource import Moment, Part

_USUAL: Final = timedelta(days=30)
_Text = Annotated[str, Meta(max_length=128)]


class CostQuery(Part):
    """Which costs to tell: by default all of the last thirty days."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    worker: Annotated[_Text, Meta(description="of the worker of this name or uid only")] = ""
    lab_track: Annotated[_Text, Meta(description="of workers of this track only")] | UnsetType = UNSET


async def _list(request: Request) -> Answer:
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


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/costs",
        _list,
        "listCosts",
        "Tell what workers cost",
        policy=WATCHMEN,
        query=CostQuery,
        answer=CostReport,
    ),
)
