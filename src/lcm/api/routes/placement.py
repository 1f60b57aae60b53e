"""Placement: previews, explanations and the calendar for everybody; scheduling for our own processes."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import NO_CONTENT, Answer, json_answer, resource_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, SERVICES, Route, policy_for
from lcm.api.routes.shapes import OneQuery
from lcm.control.objects.records import with_revision
from lcm.control.objects.writer import missing_error
from lcm.control.plane.wire import ClaimNumbers, MadeSessions, ScheduleRequest, SeatChanges
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Moment, Name, Part
from lcm.model.kinds.placement import CalendarView, Explanation, PortRequest, PreviewRequest
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

_DEFAULT_SPAN: Final = timedelta(days=7)
_NO_PROMISES: Final = (409,)
"""Answered where the control plane makes no promises, so that there is nothing to show."""


class CalendarQuery(Part):
    """What to show: by default the next seven days, of all namespaces."""

    since: Annotated[Moment, Meta(description="from this moment on; now if it is left out")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment, at most 62 days later")] | UnsetType = UNSET
    namespace: Annotated[Name, Meta(description="without it, all namespaces")] | UnsetType = UNSET


async def _preview_placement(request: Request) -> Answer:
    return json_answer(await request.plane.preview(await request.read(PreviewRequest)))


async def _explain_session(request: Request) -> Answer:
    return json_answer(await request.plane.explain(request.ref(LabletSession, request.query(OneQuery).namespace)))


async def _get_calendar(request: Request) -> Answer:
    query = request.query(CalendarQuery)
    since = request.shared.clock.now() if isinstance(query.since, UnsetType) else query.since
    until = _default_until(since) if isinstance(query.until, UnsetType) else query.until
    namespace = None if isinstance(query.namespace, UnsetType) else query.namespace
    return json_answer(await request.plane.calendar(since=since, until=until, namespace=namespace))


def _default_until(since: datetime) -> datetime:
    try:
        return since + _DEFAULT_SPAN
    except OverflowError as error:
        raise Invalid(Fault("since", "too far away", "use an earlier moment")) from error


async def _schedule_session(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.write_plane
    wish = await request.read(ScheduleRequest)
    found = await plane.get(ref)
    if found is None:
        raise missing_error(ref)
    return resource_answer(await plane.schedule(with_revision(found, wish.resource_version), wish.assignment))


async def _allocate_ports(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.write_plane
    return resource_answer(await plane.allocate_ports(ref, await request.read(PortRequest, empty=PortRequest())))


async def _reseat_pool(request: Request) -> Answer:
    ref, plane = request.ref(LabWorkerPool, request.query(OneQuery).namespace), request.write_plane
    await plane.reseat(ref, (await request.read(SeatChanges)).changes)
    return NO_CONTENT


async def _fulfil_reservation(request: Request) -> Answer:
    ref, plane = request.ref(Reservation, request.query(OneQuery).namespace), request.write_plane
    numbers = (await request.read(ClaimNumbers)).numbers
    return json_answer(MadeSessions(items=tuple(await plane.fulfil(ref, *numbers))))


def _scheduling_routes(noun: str, operation: str) -> Iterator[Route]:
    """Yield the two routes that assign a session its worker and ports, under one of its names."""
    yield Route(
        POST,
        f"/api/internal/{noun}/{{id}}/schedule",
        _schedule_session,
        f"schedule{operation}",
        "Put a session onto a worker or a seat",
        policy=SERVICES,
        kind=_SESSION,
        query=OneQuery,
        body=ScheduleRequest,
        answer=LabletSession,
    )
    yield Route(
        POST,
        f"/api/internal/{noun}/{{id}}/allocate-ports",
        _allocate_ports,
        f"allocate{operation}Ports",
        "Give a session that has a worker its ports",
        policy=SERVICES,
        kind=_SESSION,
        query=OneQuery,
        body=PortRequest,
        body_needed=False,
        answer=LabletSession,
    )


_SESSION: Final = KINDS["LabletSession"]
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/placement/preview",
        _preview_placement,
        "previewPlacement",
        "Tell what would become of a booking, without making it",
        policy=policy_for(_SESSION, Verb.READ),
        body=PreviewRequest,
        answer=Explanation,
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/explanation",
        _explain_session,
        "explainLabletSession",
        "Tell why a session is where it is, or what it waits for",
        policy=policy_for(_SESSION, Verb.READ),
        kind=_SESSION,
        query=OneQuery,
        answer=Explanation,
        also=_NO_PROMISES,
    ),
    Route(
        GET,
        "/api/calendar",
        _get_calendar,
        "getCalendar",
        "Show seats, and workers outside of pools, against time",
        policy=policy_for(_SESSION, Verb.READ),
        query=CalendarQuery,
        answer=CalendarView,
        also=_NO_PROMISES,
    ),
    *_scheduling_routes("lablet-sessions", "LabletSession"),
    *_scheduling_routes("instances", "Instance"),
    Route(
        POST,
        "/api/internal/worker-pools/{id}/reseat",
        _reseat_pool,
        "reseatLabWorkerPool",
        "Let claims of a pool change their seats",
        policy=SERVICES,
        kind=KINDS["LabWorkerPool"],
        query=OneQuery,
        body=SeatChanges,
        status=204,
    ),
    Route(
        POST,
        "/api/internal/reservations/{id}/sessions",
        _fulfil_reservation,
        "fulfilReservation",
        "Make the sessions that take over some of a reservation's claims",
        policy=SERVICES,
        kind=KINDS["Reservation"],
        query=OneQuery,
        body=ClaimNumbers,
        answer=MadeSessions,
    ),
)
