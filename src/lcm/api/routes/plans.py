"""What-if plans: begin one, ask how far it is, read its result, or end it."""

from typing import Final

from lcm.api.http.answers import HTML, NO_CONTENT, Answer, json_answer
from lcm.api.http.problems import RATE_LIMITED, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import DELETE, GET, POST, Policy, Route
from lcm.api.routes.plan_shapes import PlanBaseline, PlanJob, Planner, PlanWish
from lcm.control.plane.protocol import LONGEST_PAGE, Plane, R
from lcm.model.access.identity import STAFF
from lcm.model.base.errors import Fault, Gone, Invalid, Refused, Throttled
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

_SANDBOX: Final = (
    b"sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    b"frame-ancestors 'none'"
)
"""A report contains names that users wrote, so its page may reach neither the network nor our cookies."""
_STAFF: Final = Policy(STAFF)
_ACCEPTED: Final = 202


class PlanReport(str):
    """A self-contained HTML page."""

    __slots__ = ()


async def _begin_plan(request: Request) -> Answer:
    wish = await request.read(PlanWish)
    if (wish.timetable is None) == (wish.file is None):
        raise Invalid(Fault("timetable", "either a timetable or a file is needed", "give one of them"))
    plans = request.shared.plans
    if plans is None:
        raise Refused("this process makes no plans; `lcm plan` makes them on your own machine")
    standing = None
    if wish.from_now:
        plane = request.plane
        standing = PlanBaseline(
            at=request.shared.clock.now(),
            definitions=await _list_all(plane, LabletDefinition),
            templates=await _list_all(plane, WorkerTemplate),
            pools=await _list_all(plane, LabWorkerPool),
            sessions=await _list_all(plane, LabletSession),
            reservations=await _list_all(plane, Reservation),
        )
    try:
        job = await plans.begin(wish, request.signed_in.name, standing)
    except Throttled as error:
        raise Declined(RATE_LIMITED, str(error), wait=error.after.total_seconds()) from error
    return json_answer(job, _ACCEPTED)


async def _list_all(plane: Plane, kind: type[R]) -> tuple[R, ...]:
    page = await plane.list(kind, limit=LONGEST_PAGE)
    found = list(page.items)
    while page.next is not None:
        page = await plane.list(kind, limit=LONGEST_PAGE, cursor=page.next)
        found += page.items
    return tuple(found)


async def _get_plan(request: Request) -> Answer:
    return json_answer(_planner_or_gone(request).find(request.params[0]))


async def _get_report(request: Request) -> Answer:
    page = _planner_or_gone(request).report(request.params[0])
    return Answer(body=page.encode(), media=HTML, page_policy=_SANDBOX)


async def _cancel_plan(request: Request) -> Answer:
    await _planner_or_gone(request).cancel(request.params[0])
    return NO_CONTENT


def _planner_or_gone(request: Request) -> Planner:
    if request.shared.plans is None:
        raise Gone("there is no such plan: this process makes none")
    return request.shared.plans


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/plan",
        _begin_plan,
        "beginPlan",
        "Begin to play a timetable in a simulated world, in a process of its own",
        policy=_STAFF,
        body=PlanWish,
        large=True,
        answer=PlanJob,
        status=_ACCEPTED,
    ),
    Route(
        GET,
        "/api/plan/{id}",
        _get_plan,
        "getPlan",
        "Read the progress or the result of a plan; the process that made it keeps it for an hour",
        policy=_STAFF,
        answer=PlanJob,
    ),
    Route(
        GET,
        "/api/plan/{id}/report",
        _get_report,
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
        _cancel_plan,
        "cancelPlan",
        "End a plan that runs, or forget its result",
        policy=_STAFF,
        status=204,
    ),
)
