"""The proxy's own paths, and what serves those that need no credential. They are never forwarded to
a model server, even those without a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qs, unquote

from starlette.types import Receive, Scope, Send

from om_proxy.app.metrics_page import MetricsPage
from om_proxy.common.errors import NotFound, OmError
from om_proxy.edge.base_url import has_path_thread
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.storage.base import Store
from om_proxy.storage.promises import limit_search, list_promises, try_describe
from om_proxy.wire.server import responses

ABOUT_PAGE = {
    "service": "om-proxy",
    "base_url": "/v1",
    "thread": "send X-OM-Thread, or use /t/<thread>/v1 as the base URL",
    "health": ["/healthz", "/readyz"],
    "dashboard": "/om/",
    "metrics": "/metrics",
    "admin": "/om/v1/threads",
}
ABOUT_WORKER = {
    "service": "om-proxy worker",
    "health": ["/healthz", "/readyz"],
    "metrics": "/metrics",
}
_WORKER_MESSAGE = (
    "this is om-proxy worker: it answers /healthz, /readyz and /metrics only; "
    "send requests to om-proxy serve"
)
_MISSING_PAGE_MESSAGES = {
    "/docs": (
        "om-proxy has no page here; read its documentation, "
        "and send requests for the model server below /v1"
    ),
    # a browser asks for it by itself, also after another site's page led it here
    "/favicon.ico": "om-proxy has no icon here; the dashboard is at /om/",
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


async def describe_store(store: Store, search: str) -> dict[str, object] | None:
    """Return what the store promises, as `/readyz?verbose` says it; None if it cannot be asked.
    `search`: the setting `storage.search`."""
    promise = await try_describe(store)
    promise = promise and limit_search(promise, search)
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


class OwnPages:
    """The proxy's own pages by path, with the metrics and without the admin API. A worker serves
    nothing else."""

    def __init__(
        self,
        metrics: MetricsPage,
        pages: Mapping[str, Callable[[Scope, Send], Awaitable[None]]],
        current_config: Callable[[], EdgeConfig],
    ) -> None:
        self._metrics = metrics
        self._pages = pages
        self._current_config = current_config

    async def send(self, page: str, scope: Scope, send: Send) -> None:
        """Send the page of this path, as `find_own_page` returns it."""
        if page == METRICS_PATH:
            await self._metrics(scope, send, self._current_config())
        else:
            await self._pages[page](scope, send)

    async def serve(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Serve a request to a worker."""
        try:
            page = find_own_page(scope)
            if page is None or page == ADMIN_PATH:
                raise NotFound(_WORKER_MESSAGE)
        except OmError as exc:
            await responses.send_error(send, exc)
            return
        await self.send(page, scope, send)
