"""Every route, in one table. What is not in it is not served, and a route without a policy serves nobody."""

from typing import Final

from lcm.api.http.routing import Route
from lcm.api.routes import (
    access,
    actions,
    audit,
    events,
    fleet,
    internal,
    labs,
    placement,
    plans,
    resources,
    sinks,
    stream,
    system,
)
from lcm.api.routes import audit as secrets
from lcm.api.routes import events as watch

ROUTES: Final[tuple[Route, ...]] = (
    *system.ROUTES,
    *resources.ROUTES,
    *actions.ROUTES,
    *fleet.ALERT_ROUTES,
    *fleet.LICENCE_ROUTES,
    *fleet.COST_ROUTES,
    *watch.WATCH_ROUTES,
    *stream.ROUTES,
    *events.EVENT_ROUTES,
    *sinks.ROUTES,
    *secrets.SECRET_ROUTES,
    *access.TOKEN_ROUTES,
    *access.SIGN_IN_ROUTES,
    *audit.AUDIT_ROUTES,
    *placement.ROUTES,
    *plans.ROUTES,
    *labs.OBSERVATION_ROUTES,
    *labs.TOPOLOGY_ROUTES,
    *labs.SESSION_FILE_ROUTES,
    *internal.ROUTES,
)
