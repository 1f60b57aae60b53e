"""The description of everything that is served: OpenAPI 3.1, made from the table of routes. Read by `app` at start."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import msgspec

from lcm.api.answers import PROBLEM
from lcm.api.examples import ANSWERS, BODIES
from lcm.api.openapi_schemas import Schemas, name_of, parameters
from lcm.api.problems import REASONS
from lcm.api.routes import Route
from lcm.api.shapes import SCHEMAS
from lcm.control.wire import IDEMPOTENCY_KEY, REQUEST_PATTERN

Json = Any
"""A part of the document."""

_ABOUT: Final = """\
Workers, labs and bookings of a Lablet Cloud Manager.

Send a token as `Authorization: Bearer TOKEN`; services may send their key as `X-API-Key` instead, say in `Lcm-Actor`
which of them they are, and bind any write to a lease's term with `Lcm-Fence: NAME;TERM`. `{id}` is an object's name or
its uid. Errors are problem documents (RFC 9457); programs look at `reason`. What belongs to somebody else is answered
like what does not exist.
"""
_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token made by `lcm token`."},
    "serviceKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The key of our services."},
}
_HEADERS: Final[Mapping[str, tuple[str, Json]]] = {
    "If-Match": (
        "the ETag that the object must still have; 412 if it has another",
        {"type": "string", "pattern": '^(\\*|"[0-9]{1,15}")$', "examples": ['"42"']},
    ),
    IDEMPOTENCY_KEY: (
        "repeated with the same key, the request is done once and answered as the first time",
        {"type": "string", "pattern": f"^{REQUEST_PATTERN}$", "examples": ["4f0c2a51-7d0e"]},
    ),
    "Last-Event-ID": (
        "the id of the last event received; what happened since comes first, or `reset` if that is not known any more",
        {"type": "string", "maxLength": 128, "examples": ["9f3c1a2b.42.0"]},
    ),
}
_ETAG: Final = {"description": "the object's revision", "schema": {"type": "string", "examples": ['"42"']}}
_LOCATION: Final = {"description": "where the object is", "schema": {"type": "string"}}
_PLACES: Final = {
    "id": ("the object's name or uid", {"type": "string", "minLength": 1, "maxLength": 128}),
    "file": ("the file's name", {"type": "string", "minLength": 1, "maxLength": 200}),
    "name": ("the lease's name", {"type": "string", "minLength": 1, "maxLength": 512}),
}
_RESPONSES: Final = "#/components/responses/"
_ANY_BODY: Final = (400, 408, 413, 415, 422)


@cache
def describe(routes: tuple[Route, ...]) -> bytes:
    """Write the description of a table of routes."""
    return msgspec.json.encode(document(routes))


def document(routes: Sequence[Route]) -> Json:
    """Make the description of a table of routes."""
    schemas = Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lablet Cloud Manager", "version": version("lablet-cloud-manager"), "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": schemas.named,
            "responses": {f"Problem{status}": _problem(reasons) for status, reasons in REASONS.items()},
            "securitySchemes": _SECURITY,
        },
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, routes))],
    }


def statuses(route: Route) -> Sequence[int]:
    """List the statuses of the problems that a route may answer."""
    found = {422, 429, 500, *route.also}
    found |= set() if route.policy.public else {401, 403, 503}
    found |= {404} if "{" in route.path else set()
    found |= {409} if route.writes else set()
    found |= {412} if "If-Match" in route.headers else set()
    found |= set(_ANY_BODY) if route.body is not None else set()
    return sorted(found)


def _operation(route: Route, schemas: Schemas) -> Json:
    answers = {str(route.status): _success(route, schemas)}
    answers |= {str(status): _failure(route, status, schemas) for status in statuses(route)}
    return {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [_tag(route)],
        "security": [] if route.policy.public else [{name: []} for name in _SECURITY],
        "x-roles": [] if route.policy.public else sorted(route.policy.roles),
        "parameters": [*_places(route), *parameters(route.query), *_headers(route)],
        **({"requestBody": _body(route, schemas)} if route.body is not None else {}),
        "responses": answers,
    }


def _body(route: Route, schemas: Schemas) -> Json:
    content = {"schema": schemas.of(route.body), "example": BODIES[name_of(route.body)]}
    return {"required": route.body_needed, "content": {media.decode(): content for media in route.body_media}}


def _success(route: Route, schemas: Schemas) -> Json:
    if route.answer is None:
        return {"description": "Done."}
    content = {"schema": schemas.of(route.answer)}
    example = ANSWERS.get(name_of(route.answer))
    if example is not None:
        content["example"] = example
    tagged = {"ETag": _ETAG} if route.kind is not None and route.answer is route.kind.struct else {}
    located = {"Location": _LOCATION} if route.status == HTTPStatus.CREATED else {}
    return {
        "description": f"{route.summary}: done.",
        "headers": tagged | located,
        "content": {route.answer_media.decode(): content},
    }


def _failure(route: Route, status: int, schemas: Schemas) -> Json:
    if route.policy.public and status == HTTPStatus.SERVICE_UNAVAILABLE:
        return _success(route, schemas) | {"description": "Not ready."}
    return {"$ref": f"{_RESPONSES}Problem{status}"}


def _problem(reasons: str) -> Json:
    return {"description": reasons, "content": {PROBLEM.decode(): {"schema": {"$ref": f"{SCHEMAS}Problem"}}}}


def _places(route: Route) -> Iterable[Json]:
    for name, (about, schema) in _PLACES.items():
        if f"{{{name}}}" in route.path:
            yield {"name": name, "in": "path", "required": True, "description": about, "schema": schema}


def _headers(route: Route) -> Iterable[Json]:
    for name in route.headers:
        about, schema = _HEADERS[name]
        yield {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


def _tag(route: Route) -> str:
    if "/internal/" in route.path:
        return "internal"
    return route.kind.name if route.kind else "system"
