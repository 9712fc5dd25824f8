"""Create the server of one process, and print what it shows once it listens."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from om_proxy import __version__
from om_proxy.agents.models import create_encoder
from om_proxy.app.app import App, can_have_memory
from om_proxy.cli.doctor.models import (
    describe_chosen_models,
    list_memory_model_warnings,
    list_missing_credentials,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.engine.policy import find_token_prices, list_open_keys
from om_proxy.management.api.sign_in import LINK_LIFE_S, SignIn
from om_proxy.memory.escaping import escape
from om_proxy.settings.config import (
    Settings,
    WatchedSettings,
    list_warnings,
    render_admin_token_file,
    render_memory_summary,
    render_upstreams,
)
from om_proxy.wire.server.graceful_server import GracefulServer
from om_proxy.wire.server.protocol import BoundedProtocol


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
    print(*lines, sep="\n", flush=True)


def print_worker_banner(settings: Settings, port: int) -> None:
    """Print where a worker can be asked for its health, and the memory settings in force."""
    effective = settings.effective(None, None)
    warnings = [
        *list_missing_credentials(settings, effective, os.environ),
        *list_memory_model_warnings(settings, effective, None),
    ]
    print(
        f"om-proxy worker {__version__}, health at http://{settings.server.local_host}:{port}/readyz",
        *render_memory_summary(settings),
        *describe_chosen_models(settings, effective, None),
        *(f"warning: {warning}" for warning in warnings),
        sep="\n",
        flush=True,
    )


class AnnouncedServer(GracefulServer):
    """A server that calls `announce` with itself once it listens, so that a printed address
    answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[AnnouncedServer], None]) -> None:
        super().__init__(config)
        self._announce = announce

    @property
    def port(self) -> int:
        return int(self.servers[0].sockets[0].getsockname()[1])

    def serve_until_signal(self, sockets: list[socket.socket]) -> int:
        """Serve until SIGTERM or SIGINT, and return the exit status. Exit with CANNOT_START if the
        app cannot start; the app says why."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises the signal again after a clean stop, which would end the process with a
            # failure status
            signal.signal(signal_number, lambda *_: None)
        self.run(sockets)
        return DONE

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(self)


def load_for_memory(settings: Settings) -> None:
    """Load what requests with memory would wait for, in this thread and before the app is created.
    Loading frees 25 MB again; objects that are made meanwhile would keep 8 of them in use."""
    if can_have_memory(settings):
        for load in (create_encoder(""), find_token_prices, escape):
            with suppress(Exception):  # the app tries again, and reports the failure
                load("")


def create_server(
    watched: WatchedSettings,
    announce: Callable[[AnnouncedServer], None],
    *,
    figures_folder: Path | None = None,
    is_worker: bool = False,
    sign_in: SignIn | None = None,
) -> AnnouncedServer:
    """Create the server of this process. The options are those of `App`."""
    load_for_memory(watched.current)
    server_settings = watched.current.server
    config = uvicorn.Config(
        App(watched, figures_folder=figures_folder, is_worker=is_worker, sign_in=sign_in),
        host=server_settings.host,
        port=server_settings.port,
        loop="auto",  # uvloop if it is installed: there is none for Windows
        http=BoundedProtocol,
        ws="none",  # the app answers WebSockets with 501
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # the proxy never uses the client's address
        log_config=None,
        server_header=False,  # the upstream's own Server and Date are passed on
        date_header=False,
    )
    return AnnouncedServer(config, announce)
