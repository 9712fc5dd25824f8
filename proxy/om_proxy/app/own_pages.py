"""The proxy's own paths, and what serves those that need no credential. They are never forwarded to
a model server, even those without a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote

import structlog
from starlette.types import Receive, Scope, Send

from om_proxy.common.errors import BadRequest, NotFound, OmError, Overloaded, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.edge.routing import has_path_thread
from om_proxy.management.api.access import is_token, read_bearer, require_same_site
from om_proxy.observability.facts import Facts
from om_proxy.settings.identity.header_values import group_by_name
from om_proxy.settings.identity.local_requests import is_local_request
from om_proxy.storage.contract.status import StoreStatus
from om_proxy.storage.promises import limit_search, list_promises, try_describe
from om_proxy.wire.server import responses
from om_proxy.wire.server.headers import find_header

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
    "this is an om-proxy worker: it answers /healthz, /readyz and /metrics only; "
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


async def describe_store(store: StoreStatus, search: str) -> dict[str, object] | None:
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


@dataclass(frozen=True, slots=True, eq=False)
class OwnPages:
    """The proxy's own pages by path, with the metrics and without the admin API. A worker serves
    nothing else."""

    metrics: MetricsPage
    pages: Mapping[str, Callable[[Scope, Send], Awaitable[None]]]
    current_config: Callable[[], EdgeConfig]

    async def send(self, page: str, scope: Scope, send: Send) -> None:
        """Send the page of this path, as `find_own_page` returns it."""
        if page == METRICS_PATH:
            await self.metrics(scope, send, self.current_config())
        else:
            await self.pages[page](scope, send)

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


logger = structlog.get_logger("figures")

TOKEN_HEADERS = (b"authorization", b"x-om-admin")

# takes the header `Accept`; returns the page and its content type
RenderMetrics = Callable[[str], Awaitable[tuple[bytes, str]]]


@dataclass(frozen=True, slots=True, eq=False)
class MetricsPage:
    """The page. `render` is None while `telemetry.metrics` is off."""

    render: RenderMetrics | None
    facts: Facts = field(default_factory=Facts)

    async def __call__(self, scope: Scope, send: Send, config: EdgeConfig) -> None:
        try:
            require_metrics_access(scope, config)
            if self.render is None:
                raise NotFound("metrics are off; set telemetry.metrics to true, and restart")
            page, content_type = await self._render_or_fail(scope, self.render)
        except OmError as exc:
            self.facts.emit_refusal(exc)
            await responses.send_error(send, exc)
            return
        await responses.send_content(send, 200, page, content_type=content_type.encode())

    async def _render_or_fail(self, scope: Scope, render: RenderMetrics) -> tuple[bytes, str]:
        accept = (find_header(scope["headers"], b"accept") or b"").decode("latin-1")
        try:
            return await render(accept)
        except (OSError, ValueError) as exc:  # the folder of the workers is gone or unreadable
            logger.error("figures.unreadable", cause=type(exc).__name__)
            raise Overloaded("the numbers cannot be read now; the log says why") from exc


def require_metrics_access(scope: Scope, config: EdgeConfig) -> None:
    """Raise Unauthorized for a caller who may not read the numbers. They are for holders of the
    metrics token or the admin token, and on loopback for every program of this machine."""
    require_same_site(scope, config)
    tokens = [header for header in scope["headers"] if header[0] in TOKEN_HEADERS]
    if len(tokens) > 1:
        raise BadRequest("two tokens were sent; send one", "om_two_credentials", "authorization")
    if tokens:
        name, value = tokens[0]
        if not _is_accepted(name, value, config):
            raise Unauthorized(
                "the token is neither telemetry.metrics_token nor the admin token", "metrics"
            )
        return
    if not config.identity.loopback_only or not is_local_request(group_by_name(scope["headers"])):
        raise Unauthorized(
            "send telemetry.metrics_token or the admin token as `Authorization: Bearer …`"
        )


def _is_accepted(header: bytes, value: bytes, config: EdgeConfig) -> bool:
    settings = config.settings
    if header == b"x-om-admin":
        return is_token(value, settings.server.admin_token)
    token = read_bearer(value)
    is_metrics_token = is_token(token, settings.telemetry.metrics_token)
    return is_token(token, settings.server.admin_token) or is_metrics_token
