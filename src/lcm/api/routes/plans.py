"""What-if plans over HTTP: begin one, ask how far it is, read what came of it, or end it."""

from datetime import datetime
from typing import Final

from lcm.api.http.answers import NOTHING, Answer, value
from lcm.api.http.problems import RATE_LIMITED, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, Policy, Route
from lcm.api.routes.plan_shapes import PlanJob, Plans, PlanWish, Standing
from lcm.control.plane.protocol import LONGEST_PAGE, Plane, R
from lcm.model.access.identity import STAFF
from lcm.model.base.errors import Gone, Refused, Throttled
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

HTML: Final = b"text/html; charset=utf-8"
_ALONE: Final = (
    b"content-security-policy",
    b"sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:",
)
"""The names in a report are whatever somebody wrote: the page reaches neither the network nor our cookies."""
_STAFF: Final = Policy(STAFF)
_BEGUN: Final = 202


class PlanReport(str):
    """A page that needs nothing but itself."""

    __slots__ = ()


async def _begin(request: Request) -> Answer:
    wish = await request.read(PlanWish)
    plans = _plans(request)
    standing = await _standing(request.plane, request.shared.clock.now()) if wish.from_now else None
    try:
        job = await plans.begin(wish, request.signed_in.name, standing)
    except Throttled as error:
        raise Declined(RATE_LIMITED, str(error), wait=error.after.total_seconds()) from error
    return value(job, _BEGUN)


async def _standing(plane: Plane, now: datetime) -> Standing:
    return Standing(
        at=now,
        definitions=await _all(plane, LabletDefinition),
        templates=await _all(plane, WorkerTemplate),
        pools=await _all(plane, LabWorkerPool),
        sessions=await _all(plane, LabletSession),
        reservations=await _all(plane, Reservation),
    )


async def _all(plane: Plane, kind: type[R]) -> tuple[R, ...]:
    page = await plane.list(kind, limit=LONGEST_PAGE)
    found = list(page.items)
    while page.next is not None:
        page = await plane.list(kind, limit=LONGEST_PAGE, cursor=page.next)
        found += page.items
    return tuple(found)


async def _look(request: Request) -> Answer:
    return value(_known(request).find(request.params[0]))


async def _report(request: Request) -> Answer:
    page = _known(request).report(request.params[0])
    return Answer(body=page.encode(), media=HTML, headers=(_ALONE,))


async def _cancel(request: Request) -> Answer:
    await _known(request).cancel(request.params[0])
    return NOTHING


def _plans(request: Request) -> Plans:
    if request.shared.plans is None:
        raise Refused("this process makes no plans; `lcm plan` makes them on your own machine")
    return request.shared.plans


def _known(request: Request) -> Plans:
    if request.shared.plans is None:
        raise Gone("there is no such plan: this process makes none")
    return request.shared.plans


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/plan",
        _begin,
        "beginPlan",
        "Begin to play a timetable in a simulated world, in a process of its own",
        policy=_STAFF,
        body=PlanWish,
        large=True,
        answer=PlanJob,
        status=_BEGUN,
    ),
    Route(
        GET,
        "/api/plan/{id}",
        _look,
        "getPlan",
        "Tell how far a plan is, or what came of it; kept for an hour by the process that made it",
        policy=_STAFF,
        answer=PlanJob,
    ),
    Route(
        GET,
        "/api/plan/{id}/report",
        _report,
        "getPlanReport",
        "Read the page about a plan that is done",
        policy=_STAFF,
        answer=PlanReport,
        answer_media=HTML,
        also=(409,),
    ),
    Route(
        DELETE,
        "/api/plan/{id}",
        _cancel,
        "cancelPlan",
        "End a plan that runs, or forget its result",
        policy=_STAFF,
        status=204,
    ),
)
