"""The OpenAPI 3.1 document, made from the route table. Read by `api.http.app` at start.

Schemas are made by msgspec from the very types that are read and written; schemas of merge patches are derived.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, get_args

import msgspec

from lcm.api.http.answers import PROBLEM
from lcm.api.http.problems import REASONS
from lcm.api.http.routing import Patch, Route
from lcm.control.plane.batch import SCHEMAS
from lcm.control.plane.problems import Problem
from lcm.control.plane.wire import IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_PATTERN
from lcm.model.base.data_files import read_data_file
from lcm.model.base.event import Data
from lcm.model.base.resource import END, Part
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import parse_document

Json = Any
"""A JSON value: an example, or a part of a JSON Schema."""


class ExampleFile(Part):
    """The examples that are written down; those of stored objects are made from their documents."""

    documents: Mapping[str, Json]
    """Documents as a user would write them, in an order in which each finds what it refers to."""
    bodies: Mapping[str, Json]
    stored_metadata: Mapping[str, Json]
    """What the metadata of a stored object has besides."""


_FILE: Final = read_data_file("lcm.api.openapi", "examples.json", ExampleFile)
DOCUMENTS: Final = _FILE.documents


def _stored_example(kind: str) -> Json:
    """Return an object as the API answers it."""
    document = DOCUMENTS[kind]
    found = parse_document({**document, "metadata": document["metadata"] | _FILE.stored_metadata})
    return msgspec.json.decode(msgspec.json.encode(found))


def _examples_of_kind(kind: str) -> dict[str, Json]:
    stored = _stored_example(kind)
    return {
        kind: DOCUMENTS[kind],
        f"{kind}Patch": {"metadata": {"labels": {"tier": "exam"}}},
        f"{kind}List": {"items": [stored], "revision": 42, "next": None},
        f"{kind}StatusReport": {"resource_version": 42, "status": stored["status"], "reason": "nothing changed"},
    }


BODIES: Final[Mapping[str, Json]] = {
    **{name: example for kind in KINDS for name, example in _examples_of_kind(kind).items()},
    "MadeSessions": {"items": [_stored_example("LabletSession")]},
    **_FILE.bodies,
}
"""Examples by the name of the type in the OpenAPI document."""

ANSWERS: Final[Mapping[str, Json]] = {**BODIES, **{kind: _stored_example(kind) for kind in KINDS}}


_NULL: Final = {"type": "null"}
_REF_TEMPLATE: Final = SCHEMAS + "{name}"


class Schemas:
    """All schemas that a route table needs, by name."""

    def __init__(self, routes: Iterable[Route]) -> None:
        shapes = [shape for route in routes for shape in (route.body, route.answer) if isinstance(shape, type)]
        kinds = [kind.struct for kind in KINDS.values()]
        structs = [shape for shape in shapes if issubclass(shape, msgspec.Struct)]
        every = list(dict.fromkeys([Problem, *kinds, *get_args(Data), *structs]))
        _, self._named = msgspec.json.schema_components(every, ref_template=_REF_TEMPLATE)
        for route in routes:
            if isinstance(route.body, Patch):
                self._patch_ref(route.body.of.__name__)

    @property
    def by_name(self) -> Mapping[str, Json]:
        """All schemas, sorted by name."""
        return dict(sorted(self._named.items()))

    def schema_of(self, shape: Json) -> Json:
        """Return a reference to the schema of a type."""
        is_text = isinstance(shape, type) and issubclass(shape, str)
        return {"type": "string"} if is_text else {"$ref": SCHEMAS + schema_name(shape)}

    def _patch_ref(self, name: str) -> Json:
        """Make the schema of a merge patch and return a reference to it: nothing is required, and null unsets."""
        patch = f"{name}Patch"
        if patch not in self._named:
            whole = self._named[name]
            self._named[patch] = {}  # reserved before its parts are made, because one may refer to it
            self._named[patch] = {
                "title": patch,
                "description": f"A merge patch (RFC 7396): {whole['description']}",
                "type": "object",
                "properties": {field: self._nullable(part) for field, part in whole["properties"].items()},
                "additionalProperties": False,
            }
        return {"$ref": SCHEMAS + patch}

    def _nullable(self, schema: Json) -> Json:
        without_default = {key: part for key, part in schema.items() if key != "default"}
        options = [self._patch_option(one) for one in schema.get("anyOf", [without_default])]
        return {"anyOf": [*(one for one in options if one != _NULL), _NULL]}

    def _patch_option(self, schema: Json) -> Json:
        name = schema.get("$ref", "").removeprefix(SCHEMAS)
        if name and self._named[name].get("type") == "object":
            return self._patch_ref(name)
        values = schema.get("additionalProperties")
        return {**schema, "additionalProperties": self._nullable(values)} if isinstance(values, dict) else schema


def query_parameters(query: type[Part]) -> list[Json]:
    """Return the OpenAPI parameters for the fields of a query."""
    _, named = msgspec.json.schema_components([query], ref_template=_REF_TEMPLATE)
    whole = named[query.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in whole.get("required", ()),
            **({"description": schema["description"]} if "description" in schema else {}),
            "schema": {key: part for key, part in schema.items() if key != "description"},
        }
        for name, schema in whole["properties"].items()
    ]


def schema_name(shape: Json) -> str:
    """Return the name of a type's schema."""
    return f"{shape.of.__name__}Patch" if isinstance(shape, Patch) else str(shape.__name__)


_DESCRIPTION: Final = """\
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
        {"type": "string", "pattern": r'^(\*|"[0-9]{1,15}")' + END, "examples": ['"42"']},
    ),
    "If-None-Match": (
        "the ETag of what the client has; 304 while it is the same",
        {"type": "string", "maxLength": 1024, "examples": ['"5f2b0c91d7e84a36a1c0f4e2b9d86c37"']},
    ),
    IDEMPOTENCY_KEY: (
        "repeated with the same key, the request is done once and answered as the first time",
        {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY_PATTERN}{END}", "examples": ["4f0c2a51-7d0e"]},
    ),
    "Last-Event-ID": (
        "the id of the last event received; what happened since comes first, or `reset` if that is not known any more",
        {"type": "string", "maxLength": 128, "examples": ["9f3c1a2b.42.0"]},
    ),
}
_ETAG: Final = {"description": "the object's revision", "schema": {"type": "string", "examples": ['"42"']}}
_LOCATION: Final = {"description": "where the object is", "schema": {"type": "string"}}
_PATH_PARAMETERS: Final = {
    "id": ("the object's name or uid", {"type": "string", "minLength": 1, "maxLength": 128}),
    "file": ("the file's name", {"type": "string", "minLength": 1, "maxLength": 200}),
    "port": ("the console's name", {"type": "string", "minLength": 1, "maxLength": 128}),
    "secret": ("the secret of a calendar feed", {"type": "string", "minLength": 1, "maxLength": 200}),
    "name": ("the lease's name", {"type": "string", "minLength": 1, "maxLength": 512}),
}


@cache
def describe(routes: tuple[Route, ...]) -> bytes:
    """Return the OpenAPI document of a route table, encoded as JSON."""
    return msgspec.json.encode(document(routes))


def document(routes: Sequence[Route]) -> Json:
    """Return the OpenAPI document of a route table."""
    schemas = Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    problem = {PROBLEM.decode(): {"schema": {"$ref": f"{SCHEMAS}Problem"}}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lablet Cloud Manager",
            "version": version("lablet-cloud-manager"),
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": schemas.by_name,
            "responses": {
                f"Problem{status}": {"description": reasons, "content": problem} for status, reasons in REASONS.items()
            },
            "securitySchemes": _SECURITY,
        },
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, routes))],
    }


def problem_statuses(route: Route) -> Sequence[int]:
    """Return the statuses of the problems that a route may answer."""
    found = {422, 429, 500, *route.also}
    found |= set() if route.policy.public else {401, 403, 503}
    found |= {404} if "{" in route.path else set()
    found |= {409} if route.writes else set()
    found |= {412} if "If-Match" in route.headers else set()
    found |= {400, 408, 413, 415, 422} if route.body is not None else set()
    return sorted(found)


def _operation(route: Route, schemas: Schemas) -> Json:
    answers = {str(route.status): _success(route, schemas)}
    answers |= {str(status): _failure(route, status, schemas) for status in problem_statuses(route)}
    return {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [_tag(route)],
        "security": [] if route.policy.public else [{name: []} for name in _SECURITY],
        "x-roles": [] if route.policy.public else sorted(route.policy.roles),
        "parameters": list(_parameters(route)),
        **({"requestBody": _body(route, schemas)} if route.body is not None else {}),
        "responses": answers,
    }


def _body(route: Route, schemas: Schemas) -> Json:
    content = {"schema": schemas.schema_of(route.body), "example": BODIES[schema_name(route.body)]}
    return {"required": route.body_needed, "content": {media.decode(): content for media in route.body_media}}


def _success(route: Route, schemas: Schemas) -> Json:
    if route.answer is None:
        return {"description": "Done."}
    content = {"schema": schemas.schema_of(route.answer)}
    example = ANSWERS.get(schema_name(route.answer))
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
    if status == HTTPStatus.NOT_MODIFIED:
        return {"description": "What the client has is still so."}
    if route.policy.public and status == HTTPStatus.SERVICE_UNAVAILABLE:
        return _success(route, schemas) | {"description": "Not ready."}
    return {"$ref": f"#/components/responses/Problem{status}"}


def _parameters(route: Route) -> Iterable[Json]:
    for name, (about, schema) in _PATH_PARAMETERS.items():
        if f"{{{name}}}" in route.path:
            yield {"name": name, "in": "path", "required": True, "description": about, "schema": schema}
    yield from query_parameters(route.query)
    for name in route.headers:
        about, schema = _HEADERS[name]
        yield {"name": name, "in": "header", "required": False, "description": about, "schema": schema}


def _tag(route: Route) -> str:
    if "/internal/" in route.path:
        return "internal"
    return route.kind.name if route.kind else "system"
