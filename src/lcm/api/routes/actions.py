"""The actions of objects, each a sub-path of its object; and a worker's measurements."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import Answer, json_answer, resource_answer
from lcm.api.http.request import Request, convert_document
from lcm.api.http.routing import GET, POST, Handler, Route, policy_for
from lcm.api.routes.shapes import OneQuery, WriteQuery, define_body
from lcm.control.plane.protocol import Action
from lcm.control.plane.wire import ACTIONS, IDEMPOTENCY_KEY, WorkerHistory
from lcm.model.access.identity import Verb
from lcm.model.access.secret import holds_secrets
from lcm.model.base.errors import Gone
from lcm.model.base.resource import Moment, Part
from lcm.model.kinds.registry import KINDS, Kind
from lcm.model.kinds.worker import LabWorker, WorkerTelemetry

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


class HistoryQuery(OneQuery):
    """The start of the history to read. At most one day is kept."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET


def _action_handler(kind: Kind, action: type[Action], body: type[Part], *, needed: bool) -> Handler:
    struct: type[Any] = kind.struct
    empty = None if needed else body()

    async def act(request: Request) -> Answer:
        query, key, plane = request.query(WriteQuery), request.idempotency_key, request.write_plane
        ref = request.ref(struct, query.namespace)
        asked = msgspec.structs.asdict(await _read_action_body(request, body, empty))
        return resource_answer(await plane.act(ref, action(**asked), dry_run=query.dry_run, request=key))

    return act


async def _read_action_body(request: Request, body: type[Part], empty: Part | None) -> Part:
    """Read an action's body. Secrets in clear text are sealed at once."""
    if not holds_secrets(body):
        return await request.read(body, empty=empty)
    document = await request.read(dict[str, Any], empty=None if empty is None else {})
    sealed, faults = request.shared.core.sealing.seal_raw(document, body)
    return convert_document(sealed, body, faults)


def _body_type(action: type[Action]) -> type[Part]:
    """Return the body type of an action: its fields without the tag, which is part of the path."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(action)
    ]
    return define_body(f"{action.__name__}Body", action.__doc__, fields)


def _action_routes(kind: Kind) -> Iterator[Route]:
    for action in ACTIONS.get(kind.name, ()):
        verb, body = str(action.__struct_config__.tag), _body_type(action)
        needed = any(field.required for field in msgspec.structs.fields(action))
        yield Route(
            POST,
            f"/api/{kind.plural}/{{id}}/{verb}",
            _action_handler(kind, action, body, needed=needed),
            f"{_camel_case(verb)}{kind.name}",
            (action.__doc__ or "").rstrip("."),
            policy=policy_for(kind, Verb.ACT),
            kind=kind,
            query=WriteQuery,
            body=body,
            body_needed=needed,
            answer=kind.struct,
            headers=(IDEMPOTENCY_KEY,),
        )


def _camel_case(verb: str) -> str:
    first, *rest = verb.split("-")
    return first + "".join(map(str.title, rest))


async def _get_telemetry(request: Request) -> Answer:
    ref = request.ref(LabWorker, request.query(OneQuery).namespace)
    measured = await request.plane.telemetry(ref)
    if measured is None:
        raise Gone(f"there are no measurements of {ref.name} in namespace {ref.namespace}")
    return json_answer(measured)


async def _get_history(request: Request) -> Answer:
    query = request.query(HistoryQuery)
    since = _EARLIEST if isinstance(query.since, UnsetType) else query.since
    found = await request.plane.history(request.ref(LabWorker, query.namespace), since=since)
    return json_answer(WorkerHistory(tuple(found)))


_WORKER: Final = KINDS["LabWorker"]
ROUTES: Final[tuple[Route, ...]] = (
    *(route for kind in KINDS.values() for route in _action_routes(kind)),
    Route(
        GET,
        "/api/workers/{id}/telemetry",
        _get_telemetry,
        "getWorkerTelemetry",
        "Read a worker's newest measurements",
        policy=policy_for(_WORKER, Verb.READ),
        kind=_WORKER,
        query=OneQuery,
        answer=WorkerTelemetry,
    ),
    Route(
        GET,
        "/api/workers/{id}/history",
        _get_history,
        "getWorkerHistory",
        "Read a worker's measurements of the last day, minute by minute",
        policy=policy_for(_WORKER, Verb.READ),
        kind=_WORKER,
        query=HistoryQuery,
        answer=WorkerHistory,
    ),
)
