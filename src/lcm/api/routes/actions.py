"""The actions of objects, each a sub-path of its object; and a worker's measurements."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import Answer, resource, value
from lcm.api.http.request import Request, shaped
from lcm.api.http.routing import GET, POST, Handler, Route, permitted
from lcm.api.routes.shapes import OneQuery, WriteQuery, bodies
from lcm.control.plane.protocol import Action
from lcm.control.plane.wire import ACTIONS, IDEMPOTENCY_KEY, WorkerHistory
from lcm.model.access.identity import Verb
from lcm.model.access.secret import holds_secrets
from lcm.model.base.errors import Gone
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import KINDS, Kind
from lcm.model.kinds.worker import LabWorker, WorkerTelemetry

_EVER: Final = datetime.min.replace(tzinfo=UTC)


class HistoryQuery(OneQuery):
    """From when on to tell; no more than a day is known."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET


def _acting(kind: Kind, action: type[Action], body: type[Part], *, needed: bool) -> Handler:
    struct: type[Any] = kind.struct
    empty = None if needed else body()

    async def act(request: Request) -> Answer:
        query, key, plane = request.query(WriteQuery), request.key, request.writing
        ref = request.ref(struct, query.namespace)
        asked = msgspec.structs.asdict(await _read(request, body, empty))
        return resource(await plane.act(ref, action(**asked), dry_run=query.dry_run, request=key))

    return act


async def _read(request: Request, body: type[Part], empty: Part | None) -> Part:
    """Read an action's body; secrets in clear are sealed at once."""
    if not holds_secrets(body):
        return await request.read(body, empty=empty)
    document = await request.read(dict[str, Any], empty=None if empty is None else {})
    sealed, faults = request.shared.core.sealing.raw(document, body)
    return shaped(sealed, body, faults)


def _body_of(action: type[Action]) -> type[Part]:
    """Make the type of an action's body: its fields without the tag, which the path says."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(action)
    ]
    return bodies(f"{action.__name__}Body", action.__doc__, fields)


def _routes(kind: Kind) -> Iterator[Route]:
    for action in ACTIONS.get(kind.name, ()):
        verb, body = str(action.__struct_config__.tag), _body_of(action)
        needed = any(field.required for field in msgspec.structs.fields(action))
        yield Route(
            POST,
            f"/api/{kind.plural}/{{id}}/{verb}",
            _acting(kind, action, body, needed=needed),
            f"{_camel(verb)}{kind.name}",
            (action.__doc__ or "").rstrip("."),
            policy=permitted(kind, Verb.ACT),
            kind=kind,
            query=WriteQuery,
            body=body,
            body_needed=needed,
            answer=kind.struct,
            headers=(IDEMPOTENCY_KEY,),
        )


def _camel(verb: str) -> str:
    first, *rest = verb.split("-")
    return first + "".join(map(str.title, rest))


async def _telemetry(request: Request) -> Answer:
    ref = request.ref(LabWorker, request.query(OneQuery).namespace)
    measured = await request.plane.telemetry(ref)
    if measured is None:
        raise Gone(f"there are no measurements of {ref.name} in namespace {ref.namespace}")
    return value(measured)


async def _history(request: Request) -> Answer:
    query = request.query(HistoryQuery)
    since = _EVER if isinstance(query.since, UnsetType) else query.since
    found = await request.plane.history(request.ref(LabWorker, query.namespace), since=since)
    return value(WorkerHistory(tuple(found)))


_WORKER: Final = KINDS["LabWorker"]
ROUTES: Final[tuple[Route, ...]] = (
    *(route for kind in KINDS.values() for route in _routes(kind)),
    Route(
        GET,
        "/api/workers/{id}/telemetry",
        _telemetry,
        "getWorkerTelemetry",
        "Read a worker's newest measurements",
        policy=permitted(_WORKER, Verb.READ),
        kind=_WORKER,
        query=OneQuery,
        answer=WorkerTelemetry,
    ),
    Route(
        GET,
        "/api/workers/{id}/history",
        _history,
        "getWorkerHistory",
        "Read a worker's measurements of the last day, minute by minute",
        policy=permitted(_WORKER, Verb.READ),
        kind=_WORKER,
        query=HistoryQuery,
        answer=WorkerHistory,
    ),
)
