"""Spans for OpenTelemetry, if `telemetry.otel` is on. Nothing else here is imported while it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from om_proxy.common.errors import ConfigError
from om_proxy.common.extras import render_install_command

if TYPE_CHECKING:
    from om_proxy.observability.tracing.spans import Tracing


def open_tracing(is_on: bool) -> Tracing | None:
    """Return the tracing of this process; None while it is off. Raise ConfigError if its packages
    are not installed."""
    if not is_on:
        return None
    try:
        from om_proxy.observability.tracing.spans import Tracing, create_provider  # noqa: PLC0415 - optional
    except ImportError as exc:
        raise ConfigError(
            "telemetry.otel needs packages that are not installed: "
            + render_install_command("otel")
        ) from exc
    return Tracing(create_provider())
