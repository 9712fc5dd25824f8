"""Create the server of one process: uvicorn, set up for the proxy."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from om_proxy.agents.models import create_encoder
from om_proxy.app.app import can_have_memory, create_app
from om_proxy.cli.exit_status import DONE
from om_proxy.engine.policy import find_token_prices
from om_proxy.management.api.sign_in import SignIn
from om_proxy.memory.escaping import escape
from om_proxy.settings.config import Settings, WatchedSettings
from om_proxy.wire.server.graceful_server import GracefulServer
from om_proxy.wire.server.protocol import BoundedProtocol


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
    """Create the server of this process. The options are those of `create_app`."""
    load_for_memory(watched.current)
    server_settings = watched.current.server
    config = uvicorn.Config(
        create_app(watched, figures_folder=figures_folder, is_worker=is_worker, sign_in=sign_in),
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
