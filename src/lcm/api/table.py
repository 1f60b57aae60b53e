"""Every route, in one table. What is not in it is not served, and what says nothing about its policy serves nobody."""

from typing import Final

from lcm.api import (
    actions,
    alerts,
    audit,
    costs,
    events,
    internal,
    learning,
    licenses,
    placement,
    planning,
    resources,
    secrets,
    session_files,
    sign_in,
    sinks,
    stream,
    system,
    tokens,
    topologies,
    watch,
)
from lcm.api.routes import Route

ROUTES: Final[tuple[Route, ...]] = (
    *system.ROUTES,
    *resources.ROUTES,
    *actions.ROUTES,
    *alerts.ROUTES,
    *licenses.ROUTES,
    *costs.ROUTES,
    *watch.ROUTES,
    *stream.ROUTES,
    *events.ROUTES,
    *sinks.ROUTES,
    *secrets.ROUTES,
    *tokens.ROUTES,
    *sign_in.ROUTES,
    *audit.ROUTES,
    *placement.ROUTES,
    *planning.ROUTES,
    *learning.ROUTES,
    *topologies.ROUTES,
    *session_files.ROUTES,
    *internal.ROUTES,
)
