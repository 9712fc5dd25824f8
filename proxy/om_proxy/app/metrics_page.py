"""Serve `/metrics`, the numbers that Prometheus reads (docs/contributing/http.md#metrics)."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

import structlog
from pydantic import SecretStr
from starlette.types import Scope, Send

from om_proxy.common.errors import BadRequest, NotFound, OmError, Overloaded, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import require_same_site
from om_proxy.observability.facts import Facts
from om_proxy.settings.identity.header_values import group_by_name
from om_proxy.settings.identity.local_requests import is_local_request
from om_proxy.wire.server import responses
from om_proxy.wire.server.headers import find_header

logger = structlog.get_logger("figures")

BEARER_PREFIX = b"bearer "
TOKEN_HEADERS = (b"authorization", b"x-om-admin")

# takes the header `Accept`; returns the page and its content type
RenderMetrics = Callable[[str], Awaitable[tuple[bytes, str]]]


class MetricsPage:
    """The page. `render` is None while `telemetry.metrics` is off."""

    def __init__(self, render: RenderMetrics | None, facts: Facts | None = None) -> None:
        self._render = render
        self._facts = facts or Facts()

    async def __call__(self, scope: Scope, send: Send, config: EdgeConfig) -> None:
        try:
            require_metrics_access(scope, config)
            if self._render is None:
                raise NotFound("metrics are off; set telemetry.metrics to true, and restart")
            page, content_type = await self._render_or_fail(scope, self._render)
        except OmError as exc:
            self._facts.emit_refusal(exc)
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
        return _is_token(value, settings.server.admin_token)
    if not value.lower().startswith(BEARER_PREFIX):
        return False
    token = value[len(BEARER_PREFIX) :].strip(b" \t")
    is_metrics_token = _is_token(token, settings.telemetry.metrics_token)
    return _is_token(token, settings.server.admin_token) or is_metrics_token


def _is_token(sent: bytes, expected: SecretStr | None) -> bool:
    return expected is not None and hmac.compare_digest(sent, expected.get_secret_value().encode())
