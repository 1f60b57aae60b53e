"""The API against its own description: generated input, sound and broken, from boundary values to random sequences.

Nothing may answer 5xx, and every answer must be one that the description promises. Each run takes every operation, with
a few examples each, by one of those who may call it, as the seed has it; under more chaos by each of them, with more
examples, and in sequences; `make chaos` adds every boundary value and a seed that is always the same. The other seed is
new every time and is told at the end of the run; `LCM_SEED` repeats it.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest
import schemathesis
from schemathesis.engine import from_schema
from schemathesis.engine.events import EngineEvent, FatalError, NonFatalError, ScenarioFinished

from harness import suite
from harness.api_world import ApiServer, served
from lcm.api.http.answers import NDJSON, SSE
from lcm.api.http.routing import Route
from lcm.api.openapi.description import DOCUMENTS
from lcm.api.routes.table import ROUTES
from lcm.model.access.identity import Role

EXHAUSTIVE = suite.TIMES >= 10
EXAMPLES = (4 if EXHAUSTIVE else 2) * suite.TIMES
FIXED = 4
FRESH = int(os.environ.get("LCM_SEED", random.SystemRandom().randrange(10_000, 1_000_000)))
CALLERS = {Role.ADMIN: "root", Role.USER: "ada", Role.SERVICE: "service"}
KEY = "a-key-for-services"
REFUSALS = [400, 401, 403, 404, 405, 406, 409, 412, 415, 422, 428, 429, "5xx"]
ENDLESS = (NDJSON, SSE)
"""What never ends by itself is tested elsewhere."""


def called_by(role: Role, seed: int) -> list[Route]:
    routes = [route for route in ROUTES if role in route.policy.roles and route.answer_media not in ENDLESS]
    if role is Role.SERVICE:
        return [route for route in routes if "/internal/" in route.path]
    return routes if suite.TIMES > 1 else [route for route in routes if caller_of(route, seed) is role]


def caller_of(route: Route, seed: int) -> Role:
    people = [role for role in (Role.ADMIN, Role.USER) if role in route.policy.roles]
    return random.Random(f"{seed} {route.operation}").choice(people)


def description(server: ApiServer, token: str, seed: int, operations: set[str]) -> schemathesis.BaseSchema:
    config = schemathesis.Config.from_dict(
        {
            "seed": seed,
            "headers": {"Authorization": f"Bearer {token}"},
            "generation": {"max-examples": EXAMPLES, "database": "none"},
            # Boundary values are the same whatever the seed, and thousands; so are examples, which others send.
            "phases": {
                "examples": {"enabled": suite.TIMES > 1},
                "coverage": {"enabled": seed == FIXED},
                "stateful": {"enabled": suite.TIMES > 1},
            },
            # What follows from several objects together, such as a slot in the past, no schema can say.
            # A change of what was changed meanwhile is refused for that, whatever it says.
            "checks": {
                "positive_data_acceptance": {"enabled": False},
                "negative_data_rejection": {"expected-statuses": REFUSALS},
            },
        }
    )
    schema: schemathesis.BaseSchema = schemathesis.openapi.from_url(f"{server.url}/api/openapi.json", config=config)
    for route in ROUTES:
        if route.operation not in operations:
            schema = schema.exclude(operation_id=route.operation)
    return schema


def faults(event: EngineEvent) -> Iterator[str]:
    if isinstance(event, NonFatalError | FatalError):
        yield repr(event)
    if isinstance(event, ScenarioFinished):
        for check in (check for checks in event.recorder.checks.values() for check in checks):
            if check.failure_info is not None:
                failure = check.failure_info.failure
                yield f"{event.label}: {failure.title}: {failure.message}\n{check.failure_info.code_sample}"


@pytest.fixture(name="server")
def serve() -> Iterator[ApiServer]:
    with served() as server:
        server.do(lambda plane: plane.apply(list(DOCUMENTS.values())))
        yield server


@pytest.mark.parametrize("seed", [FIXED, None] if EXHAUSTIVE else [None])
@pytest.mark.parametrize("role", CALLERS)
@pytest.mark.timeout(600 * suite.TIMES)
def test_whatever_is_sent_the_answer_is_one_that_was_promised(
    server: ApiServer, role: Role, seed: int | None, tell: Callable[[str], None]
) -> None:
    seed = FRESH if seed is None else seed
    operations = {route.operation for route in called_by(role, seed)}
    token = server.tokens.get(CALLERS[role], KEY)
    sent, found, reached = 0, list[str](), set[str]()
    for event in from_schema(description(server, token, seed, operations)).execute():
        found += faults(event)
        if isinstance(event, ScenarioFinished):
            sent += len(event.recorder.interactions)
            reached |= {event.label} if event.label and event.recorder.interactions else set()
    tell(f"API schema: {sent} requests as {role} to {len(operations)} operations, seed {seed}, {len(found)} faults")
    assert not found, "\n\n".join(found[:5])
    wanted = {f"{route.method} {route.path}" for route in called_by(role, seed)} - {"GET /api/openapi.json"}
    assert reached >= wanted, "each of them, but for the description itself, which was read to begin with"
