"""Every route, in one table. What is not in it is not served, and what says nothing about its policy serves nobody."""

from typing import Final

from lcm.api import actions, internal, resources, system, watch
from lcm.api.routes import Route

ROUTES: Final[tuple[Route, ...]] = (
    *system.ROUTES,
    *resources.ROUTES,
    *actions.ROUTES,
    *watch.ROUTES,
    *internal.ROUTES,
)
