"""The table of the admin API's routes. The router, the checks of queries and bodies, the OpenAPI
document, its page in docs/reference and the test of permissions are all made from it."""

from __future__ import annotations

from om_proxy.management.api.route import AdminRoute, Handler
from om_proxy.management.api.routes import (
    config,
    context,
    events,
    export_import,
    forgetting,
    generations,
    memory_work,
    messages,
    notes,
    recall,
    resources,
    search,
    stats,
    steering,
    threads,
)

ADMIN_ROUTES: tuple[AdminRoute, ...] = (
    *threads.ROUTES,
    *messages.ROUTES,
    *recall.ROUTES,
    *search.ROUTES,
    *context.ROUTES,
    *notes.ROUTES,
    *generations.ROUTES,
    *steering.ROUTES,
    *memory_work.ROUTES,
    *steering.PIN_ROUTES,
    *resources.ROUTES,
    *forgetting.ROUTES,
    *events.ROUTES,
    *export_import.ROUTES,
    *events.AUDIT_ROUTES,
    *config.ROUTES,
    *stats.ROUTES,
)
_ROUTES_BY_HANDLER = {route.handler: route for route in ADMIN_ROUTES}


def find_route(handler: Handler) -> AdminRoute:
    """Return the route that a handler answers."""
    return _ROUTES_BY_HANDLER[handler]
