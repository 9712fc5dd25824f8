"""`om-proxy serve`: run the proxy, or a worker, until SIGTERM or SIGINT. It starts fast, and with
little memory."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from om_proxy.cli.exit_status import CANNOT_START
from om_proxy.common.errors import ConfigError, OmError
from om_proxy.wire.server.capacity.budget import keep_freed_heap
from om_proxy.wire.server.sockets import open_listeners, raise_open_file_limit

if TYPE_CHECKING:
    import socket

    from om_proxy.settings.config import Settings, WatchedSettings

# Libraries import these if they are installed, and a server never uses them: coloured tracebacks
# and httpx's command line (3 MB, 50 ms), C lists for aiohttp's tracing (1 MB, libstdc++), and
# greenlet for a deprecated part of structlog (1 MB).
SKIPPED_OPTIONAL_IMPORTS = ("rich", "pygments", "frozenlist._frozenlist", "greenlet")
# Almost all garbage of a turn is freed without the collector: Python's 700, 10, 10 cost a busy server
# 7 % of its time.
SERVING_GC_THRESHOLDS = (10_000, 20, 50)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, let running streams end, and return the exit status. A worker
    gives back what is under way."""
    export_address_options(options)
    keep_freed_heap()
    # the imports are here so that they run without garbage collection
    with start_up_faster():
        from om_proxy.observability.logs import report_start_failure
        from om_proxy.settings.config import WatchedSettings, load

        settings = load(options.config)
        if options.worker:
            require_shared_store(settings)
        set_up_log(settings)
        raise_open_file_limit()
        serve = prepare_serving(WatchedSettings(settings, options.config), is_worker=options.worker)
    try:
        return serve(open_listeners(settings.server.host, settings.server.port))
    except OmError as exc:
        report_start_failure(exc)
        return CANNOT_START


def prepare_serving(
    watched: WatchedSettings, *, is_worker: bool
) -> Callable[[list[socket.socket]], int]:
    """Import and load what serves. Return the function that serves on sockets and returns the exit
    status. Raise ConfigError."""
    from om_proxy.cli.serving import (
        AnnouncedServer,
        create_server,
        create_sign_in,
        print_banner,
        print_worker_banner,
    )

    settings = watched.current
    sign_in = None if is_worker else create_sign_in(settings)
    if settings.server.workers > 1 and not is_worker:
        if not hasattr(os, "fork"):
            raise ConfigError("server.workers: above 1 needs Linux or macOS")
        from om_proxy.cli.workers import load_shared, serve_with_workers

        load_shared(settings)
        return partial(serve_with_workers, watched, sign_in)

    def announce(server: AnnouncedServer) -> None:
        if is_worker:
            print_worker_banner(settings, server.port)
        else:
            print_banner(settings, server.port, sign_in)

    server = create_server(watched, announce, is_worker=is_worker, sign_in=sign_in)
    return server.serve_until_signal


def require_shared_store(settings: Settings) -> None:
    """Raise ConfigError for a store that no server can share with a worker."""
    if not settings.storage.is_shared:
        raise ConfigError(
            "storage.url: a worker needs a file or a server, because processes cannot share a store "
            "in memory"
        )


def set_up_log(settings: Settings) -> None:
    """Set up the log, and log Python's own warnings."""
    from om_proxy.observability.logs import capture_python_warnings, configure_log

    configure_log(settings.telemetry.log, show_thread_names=settings.server.is_loopback)
    capture_python_warnings()


def export_address_options(options: argparse.Namespace) -> None:
    """Put --host and --port into the environment, where this process and its workers read settings.

    So they override the file as any variable does, and everything that depends on the address uses
    them, such as the check for local callers."""
    for name in ("host", "port"):
        if (value := getattr(options, name)) is not None:
            os.environ[f"OM_PROXY__SERVER__{name.upper()}"] = str(value)


@contextmanager
def start_up_faster() -> Iterator[None]:
    """Collect garbage seldom, and skip optional imports, while a server imports its modules and
    creates its app. Almost none of these objects become garbage.

    With fewer garbage collections, a start takes a tenth less time. `gc.freeze` leaves these
    objects out of later collections, each of which would delay a request by 30 ms. Later ones come
    as `SERVING_GC_THRESHOLDS` says."""
    gc.set_threshold(20_000, 50, 1_000)
    try:
        with hide_modules(SKIPPED_OPTIONAL_IMPORTS):
            yield
        gc.freeze()
    finally:
        gc.set_threshold(*SERVING_GC_THRESHOLDS)


@contextmanager
def hide_modules(names: Sequence[str]) -> Iterator[None]:
    """Make imports of these modules fail, as if they were not installed. A module that is already
    imported stays."""
    hidden_names = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_names))  # type: ignore[arg-type]  # None is how Python spells "cannot be imported"
    try:
        yield
    finally:
        for name in hidden_names:
            del sys.modules[name]
