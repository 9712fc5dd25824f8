"""Print what a server or a worker shows once it listens."""

from __future__ import annotations

import os
from collections.abc import Sequence

from om_proxy import __version__
from om_proxy.cli.doctor.models import (
    describe_chosen_models,
    list_memory_model_warnings,
    list_missing_credentials,
)
from om_proxy.engine.policy import list_open_keys
from om_proxy.management.api.sign_in import LINK_LIFE_S, SignIn
from om_proxy.settings.config import (
    Settings,
    list_warnings,
    render_admin_token_file,
    render_memory_summary,
    render_upstreams,
)


def create_sign_in(settings: Settings) -> SignIn | None:
    """Create the link that signs in, where only programs of this machine reach the server."""
    server = settings.server
    return SignIn() if server.is_loopback and server.api != "off" else None


def describe_sign_in(sign_in: SignIn, base_url: str) -> str:
    minutes = LINK_LIFE_S // 60
    return f"sign in (once, within {minutes} minutes): {sign_in.link_to(base_url)}"


def print_banner(settings: Settings, port: int, sign_in: SignIn | None = None) -> None:
    """Print the address, then the servers and the memory settings in force, in the words of
    `om-proxy check`."""
    server = settings.server
    base_url = f"http://{server.local_host}:{port}"
    is_on_all = server.local_host != server.host
    effective = settings.effective(None, None)
    lines = [
        f"om-proxy {__version__} on {base_url}/v1",
        *([f"listens on: all addresses ({server.host})"] if is_on_all else []),
        *render_upstreams(settings),
        *render_memory_summary(settings),
        *describe_chosen_models(settings, effective, None),
    ]
    if server.api != "off":
        lines.append(f"dashboard: {base_url}/om/")
    if sign_in is not None:
        lines.append(describe_sign_in(sign_in, base_url))
    if admin_line := render_admin_token_file(settings, os.environ):
        lines.append(admin_line)
    warnings = [
        *list_missing_credentials(settings, effective, os.environ),
        *list_open_keys(settings, os.environ),
        *list_memory_model_warnings(settings, effective, None),
        *list_warnings(settings),
    ]
    lines += [f"warning: {warning}" for warning in warnings]
    _print_lines(lines)


def print_worker_banner(settings: Settings, port: int) -> None:
    """Print where a worker can be asked for its health, and the memory settings in force."""
    effective = settings.effective(None, None)
    warnings = [
        *list_missing_credentials(settings, effective, os.environ),
        *list_memory_model_warnings(settings, effective, None),
    ]
    _print_lines(
        [
            f"om-proxy worker {__version__}, health at http://{settings.server.local_host}:{port}/readyz",
            *render_memory_summary(settings),
            *describe_chosen_models(settings, effective, None),
            *(f"warning: {warning}" for warning in warnings),
        ]
    )


def _print_lines(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)
