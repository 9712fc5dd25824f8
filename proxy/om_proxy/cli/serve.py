"""`om-proxy serve`: run the proxy until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING

from om_proxy.cli.exit_status import CANNOT_START, DONE
from om_proxy.cli.serve_imports import import_for_serving
from om_proxy.errors import OmError
from om_proxy.server.listeners import open_listeners
from om_proxy.server.process_resources import keep_freed_memory, raise_open_file_limit

if TYPE_CHECKING:
    from om_proxy.app import App


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes, then let running streams end."""
    set_address(options)
    keep_freed_memory()
    with import_for_serving():
        from om_proxy.app import create_app
        from om_proxy.cli.banner import print_banner
        from om_proxy.cli.uvicorn_server import AnnouncedServer, server_config
        from om_proxy.settings import WatchedSettings, load
        from om_proxy.telemetry.logs import capture_python_warnings, configure, report_failed_start

        settings = load(options.config)
        configure(settings.telemetry.log, names_threads=settings.server.is_loopback)
        capture_python_warnings()
        raise_open_file_limit()
        if settings.server.workers == 1:
            app = create_app(WatchedSettings(settings, path=options.config))
            server = AnnouncedServer(
                server_config(app, settings), lambda port: print_banner(settings, port)
            )
    try:
        sockets = open_listeners(settings.server.host, settings.server.port)
        if settings.server.workers > 1:
            from om_proxy.cli.workers import serve_with_workers

            return serve_with_workers(settings, sockets, path=options.config)
    except OmError as exc:
        report_failed_start(exc)
        return CANNOT_START
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises the signal again after a clean stop, which is no failure
        signal.signal(number, lambda *_: None)
    server.run(sockets)  # exits with CANNOT_START if the app could not start; the app says why
    return DONE


def create_worker_app() -> App:
    """Create the app of one of several processes. uvicorn calls this function by its name."""
    keep_freed_memory()
    with import_for_serving():
        from om_proxy.app import create_app
        from om_proxy.settings import WatchedSettings, load
        from om_proxy.telemetry.logs import capture_python_warnings, configure

        settings = load(None)
        configure(settings.telemetry.log, names_threads=settings.server.is_loopback)
        capture_python_warnings()
        return create_app(WatchedSettings(settings))


def set_address(options: argparse.Namespace) -> None:
    """Put --host and --port into the environment, where this process and its workers read settings.

    So they are settings like all others: whatever depends on the address (who counts as local)
    uses them too."""
    for name in ("host", "port"):
        if (value := getattr(options, name)) is not None:
            os.environ[f"OM_PROXY__SERVER__{name.upper()}"] = value
