"""Run uvicorn for the proxy: one process, or several on one port if `server.workers` is above 1.
They share the store."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.supervisors import Multiprocess, multiprocess

from om_proxy.app.store_opening import open_store
from om_proxy.cli.exit_status import CANNOT_START, DONE
from om_proxy.cli.serving.banner import print_banner
from om_proxy.observability.figures.worker_folder import FOLDER_VARIABLE, create_folder
from om_proxy.settings.config import Settings
from om_proxy.wire.server.graceful_server import GracefulServer
from om_proxy.wire.server.protocol import BoundedProtocol

if TYPE_CHECKING:
    from om_proxy.app.app import App


WORKER_START_TIMEOUT_S = 60.0


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


class WorkerProcess(multiprocess.Process):
    """A worker that ends as a single server does."""

    @property
    def server(self) -> GracefulServer:
        if self._server is None:
            self._server = GracefulServer(self.config)
        assert isinstance(self._server, GracefulServer)
        return self._server


class Workers(Multiprocess):
    """The uvicorn supervisor. It prints the banner once every worker serves."""

    settings: Settings

    def terminate_all(self) -> None:
        """Tell the workers to end, and stop listening with the last of them: a connection that
        nobody accepts would wait in vain."""
        super().terminate_all()
        for listener in self.sockets:
            listener.close()

    def init_processes(self) -> None:
        super().init_processes()
        if all(
            process.wait_until_ready(WORKER_START_TIMEOUT_S, self.should_exit)
            for process in self.processes
        ):
            print_banner(self.settings, self.sockets[0].getsockname()[1])


def serve_with_workers(settings: Settings, sockets: list[socket.socket], path: str | None) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status. A worker that dies is replaced.
    If a worker cannot start, all of them end.

    `path`: the file that --config names."""
    asyncio.run(check_store(settings))
    if path:
        os.environ["OM_PROXY_CONFIG"] = path  # the workers read the file themselves, and watch it
    config = create_server_config(
        "om_proxy.cli.commands.serve:create_worker_app",
        settings,
        factory=True,
        workers=settings.server.workers,
    )
    # uvicorn takes the class of its workers from nowhere else
    multiprocess.Process = WorkerProcess  # type: ignore[misc] # it is a subclass
    workers = Workers(config, sockets=sockets)
    workers.settings = settings
    with share_figures(settings):
        workers.run()
    has_start_failure = any(process.exitcode == CANNOT_START for process in workers.processes)
    return CANNOT_START if has_start_failure else DONE


@contextmanager
def share_figures(settings: Settings) -> Iterator[None]:
    """Name a folder to the workers where they share their figures, if they count any."""
    if not settings.telemetry.metrics:
        yield
        return
    with create_folder() as folder:
        os.environ[FOLDER_VARIABLE] = str(folder)
        yield


async def check_store(settings: Settings) -> None:
    """Raise StorageError once for a bad store: otherwise every worker would report it."""
    if not settings.storage.required:
        return  # each worker passes requests on, and waits for a usable file
    await (await open_store(settings.storage, settings.retention.generations)).close()
