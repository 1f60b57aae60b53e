"""Every route, in one table. What is not in it is not served, and a route without a policy serves nobody."""

from typing import Final

from lcm.api.gateway import consoles
from lcm.api.http.routing import Route
from lcm.api.routes import access, events, feeds, installation, internal, oidc, plans, resources, sinks, stream, system
from lcm.api.routes.operations import operation_routes
from lcm.control.plane.booking_operations import PlacementOperations, PoolOperations
from lcm.control.plane.lab_operations import LabOperations
from lcm.control.plane.operations import FleetOperations, MeasurementOperations

ROUTES: Final[tuple[Route, ...]] = (
    *system.ROUTES,
    *resources.ROUTES,
    *resources.ACTION_ROUTES,
    *operation_routes(MeasurementOperations),
    *operation_routes(FleetOperations),
    *events.WATCH_ROUTES,
    *stream.ROUTES,
    *events.EVENT_ROUTES,
    *sinks.ROUTES,
    *access.SECRET_ROUTES,
    *access.TOKEN_ROUTES,
    *access.SIGN_IN_ROUTES,
    *feeds.ROUTES,
    *oidc.ROUTES,
    *access.AUDIT_ROUTES,
    *access.FORGET_ROUTES,
    *operation_routes(PlacementOperations),
    *operation_routes(PoolOperations),
    *plans.ROUTES,
    *operation_routes(LabOperations),
    *consoles.ROUTES,
    *installation.ROUTES,
    *internal.ROUTES,
)
