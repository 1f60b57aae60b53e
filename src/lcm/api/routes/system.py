"""Questions to the process itself: health, readiness, metrics, the OpenAPI document, and who the caller is."""

import asyncio
from typing import Final

from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.metrics import MEDIA
from lcm.api.http.request import Request, RequestContext
from lcm.api.http.routing import GET, HEALTH, PUBLIC, SIGNED_IN, STAFF_AND_SERVICES, Route
from lcm.api.routes.shapes import Description, Health, Readiness, ReadyCheck
from lcm.control.plane.wire import Who
from lcm.model.base.errors import LcmError

_STORE_TIMEOUT_SECONDS: Final = 1.0


async def _healthz(_: Request) -> Answer:
    return json_answer(Health())


async def _readyz(request: Request) -> Answer:
    _, checks = await _check_readiness(request.shared)
    ready = all(checks.values())
    told = Readiness(ready, request.shared.clock.now(), tuple(ReadyCheck(name, ok) for name, ok in checks.items()))
    return json_answer(told, 200 if ready else 503)


async def _metrics(request: Request) -> Answer:
    shared = request.shared
    revision, checks = await _check_readiness(shared)
    body = shared.meter.render(
        revision=revision, streams=shared.streams.total, checks=checks, usage=shared.core.health.usage
    )
    return Answer(body=body, media=MEDIA)


async def _openapi(request: Request) -> Answer:
    return Answer(body=request.shared.description)


async def _whoami(request: Request) -> Answer:
    caller = request.signed_in
    return json_answer(Who(caller.name, caller.role))


async def _check_readiness(shared: RequestContext) -> tuple[int | None, dict[str, bool]]:
    """Return the store's revision, None if it does not answer in time, and what must hold to serve requests."""
    try:
        async with asyncio.timeout(_STORE_TIMEOUT_SECONDS):
            revision = (await shared.core.store.scan("settings/", limit=1)).revision
    except (LcmError, TimeoutError):
        revision = None
    return revision, {
        "store": revision is not None,
        "tokens": shared.tokens.caught_up,
        "events": shared.feed.caught_up,
        "writes": shared.core.health.is_writable,
    }


ROUTES: Final[tuple[Route, ...]] = (
    Route(GET, "/healthz", _healthz, "healthz", "Check whether the process answers", policy=HEALTH, answer=Health),
    Route(
        GET,
        "/readyz",
        _readyz,
        "readyz",
        "Check whether requests can be served",
        policy=HEALTH,
        answer=Readiness,
        also=(503,),
    ),
    Route(
        GET,
        "/metrics",
        _metrics,
        "metrics",
        "Read metrics in the format of Prometheus",
        policy=STAFF_AND_SERVICES,
        answer=str,
        answer_media=MEDIA,
    ),
    Route(
        GET,
        "/api/openapi.json",
        _openapi,
        "openapi",
        "Read this description",
        policy=PUBLIC,
        answer=Description,
    ),
    Route(GET, "/api/whoami", _whoami, "whoami", "Read who the caller is", policy=SIGNED_IN, answer=Who),
)
