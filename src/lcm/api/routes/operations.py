"""The routes of the plane's operations, made from their table: read the arguments, perform, write the answer.

Two routes can do more than their operation: the report on costs filters and adds up, and the calendar has a usual span.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import UNSET, UnsetType

from lcm.api.http.answers import JSON, NO_CONTENT, Answer, json_answer, resource_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import Handler, NoQuery, Policy, Route
from lcm.control.objects.records import with_revision
from lcm.control.objects.writer import missing_error
from lcm.control.plane.bodies import MEDIA, CalendarQuery, CostQuery, FileBytes, OneQuery, cost_report
from lcm.control.plane.operation import Operation, OperationGroup, Value, operations_of
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.money.billing import local_days, sum_costs_by_day

_MOST_DAYS: Final = timedelta(days=62)
_SESSIONS: Final = "/api/internal/lablet-sessions/"
_INSTANCES: Final = "/api/internal/instances/"
"""The older noun under which our own processes reach sessions too."""


def operation_routes(group: type[OperationGroup]) -> Iterator[Route]:
    """Yield the routes of a group of operations. Neighbours about sessions follow once more under the older noun."""
    for older, several in groupby(operations_of(group), lambda one: one.path.startswith(_SESSIONS)):
        operations = tuple(several)
        yield from (_route(one, one.path, one.operation_id) for one in operations)
        if older:
            for one in operations:
                path, name = one.path.replace(_SESSIONS, _INSTANCES), one.operation_id
                yield _route(one, path, name.replace("LabletSession", "Instance"))


def _route(operation: Operation, path: str, operation_id: str) -> Route:
    return Route(
        operation.method,
        path,
        _HANDLERS.get(operation.name) or _handler(operation),
        operation_id,
        operation.summary,
        policy=Policy(operation.permission.roles, read_only=operation.read_only),
        kind=KINDS[operation.kind.__name__] if operation.kind else None,
        query=operation.query or NoQuery,
        body=operation.body,
        body_media=MEDIA.get(operation.body, (JSON,)),
        body_needed=operation.body_needed,
        large=operation.large,
        answer=operation.answer,
        answer_media=MEDIA.get(operation.answer, (JSON,))[0],
        status=204 if operation.answer is None else 200,
        also=operation.also,
    )


def _handler(operation: Operation) -> Handler:
    async def handle(request: Request) -> Answer:
        query = request.query(operation.query or NoQuery)
        plane = request.write_plane if operation.writes else request.plane
        arguments = _arguments_of(operation, request, query)
        if operation.in_body:
            if operation.body in MEDIA:
                body: Value = await request.text()
            else:
                empty = None if operation.body_needed else operation.body()
                body = await request.read(operation.body, empty=empty)
            arguments |= operation.arguments_in(body)
            if operation.has_revision:
                subject = operation.in_path[0]
                arguments[subject] = await read_at(plane, arguments[subject], body.resource_version)
        call = operation.unbind(arguments)
        return _answer(operation, arguments, await plane.perform(operation, *call.args, **call.kwargs))

    return handle


def _arguments_of(operation: Operation, request: Request, query: Part) -> dict[str, Value]:
    """Return the arguments in the path and the query."""
    arguments: dict[str, Value] = dict(zip(operation.in_path, request.params, strict=True))
    if isinstance(query, OneQuery):
        known = KINDS.get(operation.kind.__name__ if operation.kind else getattr(query, "kind", ""))
        if known is None:
            raise Invalid(Fault("kind", "there is no such kind", f"use {', '.join(KINDS)}"))
        arguments[operation.in_path[0]] = request.ref(known.struct, query.namespace)
    given = {name: getattr(query, name) for name in operation.in_query}
    return arguments | {name: value for name, value in given.items() if value is not UNSET}


async def read_at(plane: Plane, ref: Ref[Any], revision: int) -> Resource:
    """Return an object with the revision at which the caller saw it. Raise Gone when it is not there."""
    found: Resource | None = await plane.get(ref)
    if found is None:
        raise missing_error(ref)
    return with_revision(found, revision)


def _answer(operation: Operation, arguments: Mapping[str, Value], result: Value) -> Answer:
    if operation.answer is None:
        return NO_CONTENT
    if operation.missing and result is None:
        subject = arguments[operation.in_path[0]]
        raise Gone(operation.missing.format(**subject._asdict()) if isinstance(subject, Ref) else operation.missing)
    if operation.answer in MEDIA:
        data = result if isinstance(result, bytes) else result.encode()
        headers = ((b"content-disposition", b"attachment"),) if operation.answer is FileBytes else ()
        return Answer(body=data, media=MEDIA[operation.answer][0], headers=headers)
    if operation.answer_field:
        return json_answer({operation.answer_field: result})
    return resource_answer(result) if isinstance(result, Resource) else json_answer(result)


async def _list_costs(request: Request) -> Answer:
    query, now = request.query(CostQuery), request.shared.clock.now()
    until = now if isinstance(query.until, UnsetType) else query.until
    since = until - timedelta(days=30) if isinstance(query.since, UnsetType) else query.since
    wanted = [
        one
        for one in await request.plane.costs(since=since, until=until)
        if query.worker in {"", one.worker_name, one.worker_id}
        and query.pool in {"", one.pool}
        and (isinstance(query.lab_track, UnsetType) or query.lab_track == one.lab_track)
    ]
    report = cost_report(wanted, since=since, until=until, now=now)
    if query.time_zone:
        days = _days_of(since, min(until, now), query.time_zone)
        report = msgspec.structs.replace(report, by_day=tuple(sum_costs_by_day(wanted, days, now)))
    return json_answer(report if query.with_intervals else msgspec.structs.replace(report, intervals=()))


def _days_of(since: datetime, until: datetime, zone: str) -> Sequence[tuple[str, datetime, datetime]]:
    if until - since > _MOST_DAYS:
        raise Invalid(Fault("time_zone", "too many days", f"ask for at most {_MOST_DAYS.days} days, or leave it out"))
    try:
        return local_days(since, until, ZoneInfo(zone)) if since < until else ()
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise Invalid(Fault("time_zone", "there is no such zone", "use a name such as Europe/Berlin")) from error


async def _get_calendar(request: Request) -> Answer:
    query = request.query(CalendarQuery)
    since = request.shared.clock.now() if isinstance(query.since, UnsetType) else query.since
    try:
        until = since + timedelta(days=7) if isinstance(query.until, UnsetType) else query.until
    except OverflowError as error:
        raise Invalid(Fault("since", "too far away", "use an earlier moment")) from error
    namespace = None if isinstance(query.namespace, UnsetType) else query.namespace
    return json_answer(await request.plane.calendar(since=since, until=until, namespace=namespace))


_HANDLERS: Final[Mapping[str, Handler]] = {"costs": _list_costs, "calendar": _get_calendar}
