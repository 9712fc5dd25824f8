"""Run several processes on one port if `server.workers` is above 1. They share the store."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from uvicorn.supervisors import Multiprocess, multiprocess

from om_proxy.app.store_opening import open_store
from om_proxy.cli.exit_status import CANNOT_START, DONE
from om_proxy.cli.serving.banner import print_banner
from om_proxy.cli.serving.uvicorn_server import create_server_config
from om_proxy.observability.figures.worker_folder import FOLDER_VARIABLE, create_folder
from om_proxy.settings.config import Settings
from om_proxy.wire.server.graceful_server import GracefulServer

WORKER_START_TIMEOUT_S = 60.0


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
