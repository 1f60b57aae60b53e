"""Placing over HTTP: what becomes of bookings, for everybody; where sessions go, for our own processes."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import NOTHING, Answer, resource, value
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, SERVICES, Route, permitted
from lcm.api.routes.shapes import OneQuery
from lcm.control.objects.records import at_revision
from lcm.control.objects.writer import missing
from lcm.control.plane.wire import ClaimNumbers, MadeSessions, ScheduleWish, SeatChanges
from lcm.model.access.identity import Verb
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import Moment, Name, Part
from lcm.model.kinds.placement import CalendarView, Explanation, PortWish, Wish
from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

_USUAL: Final = timedelta(days=7)
_REFUSED: Final = (409,)
"""Where nothing is promised, nothing can be told."""


class CalendarQuery(Part):
    """What to show: by default the seven days from now on, of all namespaces."""

    since: Annotated[Moment, Meta(description="from this moment on; now if it is left out")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment, at most 62 days later")] | UnsetType = UNSET
    namespace: Annotated[Name, Meta(description="without it, all namespaces")] | UnsetType = UNSET


async def _preview(request: Request) -> Answer:
    return value(await request.plane.preview(await request.read(Wish)))


async def _explain(request: Request) -> Answer:
    return value(await request.plane.explain(request.ref(LabletSession, request.query(OneQuery).namespace)))


async def _calendar(request: Request) -> Answer:
    query = request.query(CalendarQuery)
    since = request.shared.clock.now() if isinstance(query.since, UnsetType) else query.since
    until = _later(since) if isinstance(query.until, UnsetType) else query.until
    namespace = None if isinstance(query.namespace, UnsetType) else query.namespace
    return value(await request.plane.calendar(since=since, until=until, namespace=namespace))


def _later(since: datetime) -> datetime:
    try:
        return since + _USUAL
    except OverflowError as error:
        raise Invalid(Fault("since", "too far away", "use an earlier moment")) from error


async def _schedule(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.writing
    wish = await request.read(ScheduleWish)
    found = await plane.get(ref)
    if found is None:
        raise missing(ref)
    return resource(await plane.schedule(at_revision(found, wish.resource_version), wish.assignment))


async def _allocate(request: Request) -> Answer:
    ref, plane = request.ref(LabletSession, request.query(OneQuery).namespace), request.writing
    return resource(await plane.allocate_ports(ref, await request.read(PortWish, empty=PortWish())))


async def _reseat(request: Request) -> Answer:
    ref, plane = request.ref(LabWorkerPool, request.query(OneQuery).namespace), request.writing
    await plane.reseat(ref, (await request.read(SeatChanges)).changes)
    return NOTHING


async def _fulfil(request: Request) -> Answer:
    ref, plane = request.ref(Reservation, request.query(OneQuery).namespace), request.writing
    numbers = (await request.read(ClaimNumbers)).numbers
    return value(MadeSessions(items=tuple(await plane.fulfil(ref, *numbers))))


def _placing(noun: str, operation: str) -> Iterator[Route]:
    """Give the two routes about where a session goes, under one of its names."""
    yield Route(
        POST,
        f"/api/internal/{noun}/{{id}}/schedule",
        _schedule,
        f"schedule{operation}",
        "Put a session onto a worker or a seat",
        policy=SERVICES,
        kind=_SESSION,
        query=OneQuery,
        body=ScheduleWish,
        answer=LabletSession,
    )
    yield Route(
        POST,
        f"/api/internal/{noun}/{{id}}/allocate-ports",
        _allocate,
        f"allocate{operation}Ports",
        "Give a session that has a worker its ports",
        policy=SERVICES,
        kind=_SESSION,
        query=OneQuery,
        body=PortWish,
        body_needed=False,
        answer=LabletSession,
    )


_SESSION: Final = KINDS["LabletSession"]
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/placement/preview",
        _preview,
        "previewPlacement",
        "Tell what would become of a booking, without making it",
        policy=permitted(_SESSION, Verb.READ),
        body=Wish,
        answer=Explanation,
    ),
    Route(
        GET,
        "/api/lablet-sessions/{id}/explanation",
        _explain,
        "explainLabletSession",
        "Tell why a session is where it is, or what it waits for",
        policy=permitted(_SESSION, Verb.READ),
        kind=_SESSION,
        query=OneQuery,
        answer=Explanation,
        also=_REFUSED,
    ),
    Route(
        GET,
        "/api/calendar",
        _calendar,
        "getCalendar",
        "Show seats, and workers outside of pools, against time",
        policy=permitted(_SESSION, Verb.READ),
        query=CalendarQuery,
        answer=CalendarView,
        also=_REFUSED,
    ),
    *_placing("lablet-sessions", "LabletSession"),
    *_placing("instances", "Instance"),
    Route(
        POST,
        "/api/internal/worker-pools/{id}/reseat",
        _reseat,
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
        _fulfil,
        "fulfilReservation",
        "Make the sessions that take over some of a reservation's claims",
        policy=SERVICES,
        kind=KINDS["Reservation"],
        query=OneQuery,
        body=ClaimNumbers,
        answer=MadeSessions,
    ),
)
