"""Print what a server shows once it listens."""

from __future__ import annotations

import os

from om_proxy import __version__
from om_proxy.doctor.models import list_memory_model_warnings, list_missing_credentials
from om_proxy.settings import (
    Settings,
    list_warnings,
    render_admin_token_file,
    render_memory_summary,
    render_upstreams,
)


def print_banner(settings: Settings, port: int) -> None:
    """Print the address, then the servers and the memory settings in force, in the words of
    `om-proxy check`."""
    effective = settings.effective(None, None)
    lines = [
        f"om-proxy {__version__} on http://{settings.server.host}:{port}/v1",
        *render_upstreams(settings),
        *render_memory_summary(settings),
    ]
    if settings.server.api != "off":
        lines.append(f"dashboard: http://{settings.server.host}:{port}/om/")
    if admin_line := render_admin_token_file(settings, os.environ):
        lines.append(admin_line)
    warnings = [
        *list_missing_credentials(settings, effective, os.environ),
        *list_memory_model_warnings(effective, None),
        *list_warnings(settings),
    ]
    lines += [f"warning: {warning}" for warning in warnings]
    for line in lines:
        print(line, flush=True)
