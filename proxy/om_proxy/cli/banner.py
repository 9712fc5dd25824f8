"""Print what a server shows once it listens."""

from __future__ import annotations

import os

from om_proxy import __version__
from om_proxy.doctor.models import missing_credentials, model_warnings
from om_proxy.settings import (
    Settings,
    list_warnings,
    render_admin_token_file,
    render_upstreams,
    render_value,
)


def print_banner(settings: Settings, port: int) -> None:
    """Print the address, the servers behind it, and the memory settings in force."""
    effective = settings.effective(None, None)
    limits = effective.limits
    state = "on" if settings.memory.enabled else "off"
    buffering = (
        f"buffer every {limits.interval_tokens}" if limits.interval_tokens else "no buffering"
    )
    lines = [
        f"om-proxy {__version__} on http://{settings.server.host}:{port}/v1",
        *render_upstreams(settings),
        f"memory {state}: observe at {limits.observe_from_tokens} tokens ({buffering}, wait at "
        f"{limits.block_from_tokens}), reflect at {limits.reflect_from_tokens}; model "
        f"{render_value(('model',), effective.observer_model)}; store "
        f"{render_value(('url',), settings.storage.url)}",
    ]
    if place := render_admin_token_file(settings, os.environ):
        lines.append(place)
    missing = missing_credentials(settings, effective, os.environ)
    for warning in (*missing, *model_warnings(effective, None), *list_warnings(settings)):
        lines.append(f"warning: {warning}")
    for line in lines:
        print(line, flush=True)
