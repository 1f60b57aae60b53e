"""The description: typed to the last object, named without surprises, and true to the table it is made from."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from harness.api_world import opened
from lcm.api.http.routing import Route
from lcm.api.openapi.description import DOCUMENTS, describe
from lcm.api.routes.table import ROUTES
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.validate import parse_document

DESCRIBED: dict[str, Any] = msgspec.json.decode(describe(ROUTES))
SCHEMAS = DESCRIBED["components"]["schemas"]
OPERATIONS = [(path, method, one) for path, methods in DESCRIBED["paths"].items() for method, one in methods.items()]
NAMED = re.compile(r"[A-Z][A-Za-z0-9]*")


def schemas(part: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find every schema within a part of the document."""
    if isinstance(part, dict):
        if any(name in part for name in ("type", "$ref", "anyOf", "oneOf", "enum", "properties")):
            yield where, part
        for name, inner in part.items():
            if name not in {"example", "examples", "default", "enum", "required", "discriminator"}:
                yield from schemas(inner, f"{where}/{name}")
    elif isinstance(part, list):
        for number, inner in enumerate(part):
            yield from schemas(inner, f"{where}/{number}")


def within(schema: dict[str, Any]) -> Any:
    """Make a schema of the document one that stands by itself."""
    return jsonschema_rs.Draft202012Validator({**schema, "components": DESCRIBED["components"]})


def media(holder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from holder.get("content", {}).values()


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_every_route_is_described_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, method, _ in OPERATIONS}
    assert described == {(route.method, route.path) for route in ROUTES}


def test_operations_have_names_of_their_own() -> None:
    names = [one["operationId"] for _, _, one in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][A-Za-z]+", name) for name in names), names


def test_the_names_of_operations_do_not_change_unnoticed() -> None:
    names = {one["operationId"] for _, _, one in OPERATIONS}
    nouns = [*(kind for kind in KINDS if kind != "Sink"), "EventSink"]
    kinds = [f"{verb}{noun}" for noun in nouns for verb in ("get", "create", "replace", "patch", "delete")]
    lists = ["listLabWorkers", "listLabWorkerPools", "listWorkerTemplates", "listLabletDefinitions"]
    lists += ["listLabletSessions", "listReservations", "listSystemSettings"]
    lists += ["listSinks", "getSink", "createSink", "replaceSink", "deleteSink", "listEventSinks"]
    actions = ["drainLabWorker", "undrainLabWorker", "pauseLabWorker", "resumeLabWorker", "snoozeLabWorker"]
    actions += ["observeResourcesLabletSession", "getLabletDefinitionObservations", "uploadTopology"]
    actions += ["extendLabletSession", "terminateLabletSession", "getWorkerTelemetry", "apply", "watch", "streamEvents"]
    assert names >= {*kinds, *lists, *actions, "healthz", "readyz", "metrics", "openapi", "whoami"}


def test_a_schema_has_a_plain_name_and_says_what_it_is() -> None:
    assert not [name for name, schema in SCHEMAS.items() if not NAMED.fullmatch(name) or not schema.get("description")]


def test_no_object_is_untyped() -> None:
    untyped = [
        where
        for where, schema in [*schemas(SCHEMAS, "schemas"), *schemas(DESCRIBED["paths"], "paths")]
        if schema.get("type") == "object"
        and not schema.get("properties")
        and not schema.get("additionalProperties")
        and schema.get("additionalProperties") is not False
    ]
    assert not untyped


def test_nothing_may_be_anything() -> None:
    fields = [
        (name, field)
        for name, schema in SCHEMAS.items()
        for field, part in schema.get("properties", {}).items()
        if not {"type", "$ref", "anyOf", "oneOf", "enum", "const"} & part.keys()
    ]
    assert not fields
    loose = [where for where, schema in schemas(SCHEMAS, "schemas") if schema.get("additionalProperties") in ({}, True)]
    assert not loose


def test_every_reference_leads_somewhere() -> None:
    found = {schema["$ref"] for _, schema in schemas(DESCRIBED, "") if "$ref" in schema}
    named = {f"#/components/schemas/{name}" for name in SCHEMAS}
    named |= {f"#/components/responses/{name}" for name in DESCRIBED["components"]["responses"]}
    assert found <= named
    assert {f"#/components/schemas/{kind}" for kind in KINDS} <= found


@pytest.mark.parametrize("route", ROUTES, ids=called)
def test_a_route_lists_its_problems_its_parameters_and_its_policy(route: Route) -> None:
    described = DESCRIBED["paths"][route.path][route.method.lower()]
    answers = set(described["responses"])
    assert {str(route.status), "422", "429", "500"} <= answers
    assert ("401" in answers) is (not route.policy.public or route.operation == "signIn")
    assert ("404" in answers) is ("{" in route.path)
    assert ({"400", "413", "415"} <= answers) is (route.body is not None)
    assert described["security"] == ([] if route.policy.public else [{"bearer": []}, {"serviceKey": []}])
    variables = {one["name"] for one in described["parameters"] if one["in"] == "path"}
    assert variables == set(re.findall(r"{(\w+)}", route.path))
    assert described["summary"]


@pytest.mark.parametrize("route", ROUTES, ids=called)
def test_every_body_and_answer_has_an_example_that_fits_its_schema(route: Route) -> None:
    described = DESCRIBED["paths"][route.path][route.method.lower()]
    bodies = list(media(described.get("requestBody", {})))
    answers = list(media(described["responses"][str(route.status)]))
    assert len(bodies) == (len(route.body_media) if route.body is not None else 0)
    for content in [*bodies, *answers]:
        if "example" not in content:
            assert route.operation in {"metrics", "openapi", "streamEvents", "showSignIn", "showFeed"}
            continue
        within(content["schema"]).validate(content["example"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_kind_is_sound(kind: str) -> None:
    assert parse_document(DOCUMENTS[kind]).kind == kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_patch_may_change_or_unset_any_field_and_no_other(kind: str) -> None:
    patch = within({"$ref": f"#/components/schemas/{kind}Patch"})
    assert patch.is_valid({})
    assert patch.is_valid({"spec": None, "metadata": {"labels": {"tier": None}}})
    assert patch.is_valid(DOCUMENTS[kind])
    assert not patch.is_valid({"spec": {"no_such_field": 1}})
    assert not patch.is_valid({"metadata": {"labels": {"tier": 1}}})


def test_the_document_is_a_description_of_its_own_kind() -> None:
    assert DESCRIBED["openapi"].startswith("3.1.")
    assert DESCRIBED["info"]["version"]
    assert DESCRIBED["components"]["securitySchemes"].keys() == {"bearer", "serviceKey"}


async def test_it_is_served_to_everybody() -> None:
    async with opened() as desk:
        assert (await desk.ask("", "GET", "/api/openapi.json")).json() == DESCRIBED
