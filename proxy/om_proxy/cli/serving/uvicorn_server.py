"""Configure uvicorn for the proxy."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn

from om_proxy.settings.config import Settings
from om_proxy.wire.server.graceful_server import GracefulServer
from om_proxy.wire.server.protocol import BoundedProtocol

if TYPE_CHECKING:
    from om_proxy.app.app import App


class AnnouncedServer(GracefulServer):
    """A server that calls `announce` with its port once it listens, so that a printed address
    answers."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[int], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce(self.servers[0].sockets[0].getsockname()[1])


def create_server_config(
    app: App | str, settings: Settings, **worker_options: Any
) -> uvicorn.Config:
    """Create uvicorn's configuration. `app`: the application, or the name of its factory."""
    return uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        loop="auto",  # uvloop if it is installed: there is none for Windows
        http=BoundedProtocol,
        ws="none",  # the app answers WebSockets with 501
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # the proxy never uses the client's address
        log_config=None,
        server_header=False,  # the upstream's own Server and Date are passed on
        date_header=False,
        **worker_options,
    )
