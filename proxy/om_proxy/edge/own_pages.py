"""The proxy's own paths. They are never forwarded to a model server, even those without a page."""

from __future__ import annotations

from urllib.parse import parse_qs, unquote

from starlette.types import Scope

from om_proxy.edge.base_url import has_path_thread
from om_proxy.errors import NotFound
from om_proxy.storage.base import Store
from om_proxy.storage.promises import list_promises, try_describe

ABOUT_PAGE = {
    "service": "om-proxy",
    "base_url": "/v1",
    "thread": "send X-OM-Thread, or use /t/<thread>/v1 as the base URL",
    "health": ["/healthz", "/readyz"],
    "dashboard": "/om/",
    "metrics": "/metrics",
    "admin": "/om/v1/threads",
}
_MISSING_PAGE_MESSAGES = {
    "/docs": (
        "om-proxy has no page here; read its documentation, "
        "and send requests for the model server below /v1"
    ),
}
METRICS_PATH = "/metrics"
ADMIN_PATH = "/om"
_EXACT_PATHS = ("/", "/healthz", "/readyz")
_READ_ONLY_PATHS = ("/", METRICS_PATH)
_FIRST_SEGMENTS = frozenset(
    root[1:] for root in (*_EXACT_PATHS, METRICS_PATH, ADMIN_PATH, *_MISSING_PAGE_MESSAGES)
)


def is_verbose(scope: Scope) -> bool:
    """Return whether the request asks for details: `?verbose`, with any value."""
    query = scope["query_string"].decode("latin-1")
    return "verbose" in parse_qs(query, keep_blank_values=True)


async def describe_store(store: Store) -> dict[str, object] | None:
    """Return what the store promises, as `/readyz?verbose` says it; None if it cannot be asked."""
    promise = await try_describe(store)
    return promise and {**promise._asdict(), "promises": list_promises(promise)}


def find_own_page(scope: Scope) -> str | None:
    """Return the proxy's own page that a request asks for: `/om` for every path below it. None: the
    request is forwarded.

    Raise NotFound for one of the proxy's own paths that has no page. Below a thread's prefix there
    is only the model server's API: otherwise a client could use the prefix to bypass a reverse
    proxy's rule for `/om/`.
    """
    if scope["raw_path"].startswith(b"/v1/"):  # nearly all requests: 0.2 µs instead of 6
        return None
    # `/%6fm` must not bypass such a rule either
    path = unquote(scope["raw_path"].decode("latin-1"))
    if not path.startswith("/"):
        return None
    first_segment = path.split("/", 2)[1]
    if first_segment not in _FIRST_SEGMENTS:
        return None
    root = f"/{first_segment}"
    if path != root and root in _EXACT_PATHS:
        return None
    if path != "/" and has_path_thread(scope):
        raise NotFound(
            "below a thread's prefix there is only the model server's API; leave the prefix out"
        )
    if path.startswith(f"{METRICS_PATH}/"):
        raise NotFound("the proxy's numbers are at /metrics; no model server is asked for its own")
    if path in _READ_ONLY_PATHS and scope["method"] not in ("GET", "HEAD"):
        raise NotFound("nothing can be sent here; the API is below /v1: add /v1 to the base URL")
    if message := _MISSING_PAGE_MESSAGES.get(root):
        raise NotFound(message)
    return root
