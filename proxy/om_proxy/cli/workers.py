"""Serve one port with several workers: processes forked from one that has imported and loaded what
all of them need. They share the store.

A pair of sockets, the line, joins the supervisor and each worker. The worker writes a beat when it
serves, and one each BEAT_INTERVAL_S. The supervisor reads the line's end when the worker has ended,
and the worker reads it when it shall end, or when the supervisor was killed.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import NoReturn

import structlog

from om_proxy.app.store_opening import check_drivers
from om_proxy.cli.exit_status import CANNOT_START, DONE
from om_proxy.cli.serving import AnnouncedServer, create_server, load_for_memory, print_banner
from om_proxy.management.api.sign_in import SignIn
from om_proxy.observability.figures.worker_folder import create_folder
from om_proxy.observability.logs import flush_log, report_start_failure
from om_proxy.settings.config import Settings, WatchedSettings

logger = structlog.get_logger("workers")

BEAT_INTERVAL_S = 5.0
MAX_SILENCE_S = 30.0  # a worker whose event loop stands still for longer is killed
RETRY_DELAY_S = 0.5  # after a worker that died before it served
MAX_READ_BYTES = 4_096  # of beats, or of signals
HANDLED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def serve_with_workers(
    watched: WatchedSettings, sign_in: SignIn | None, listeners: list[socket.socket]
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status. A worker that dies is replaced. If
    a worker cannot start, all of them end."""
    settings = watched.current
    with create_folder() if settings.telemetry.metrics else nullcontext() as folder:

        def serve(line: socket.socket) -> int:
            watched.catch_up()
            server = create_server(
                watched, lambda _: follow(server, line), figures_folder=folder, sign_in=sign_in
            )
            return server.serve_until_signal(listeners)

        return Supervisor(settings, listeners, serve, sign_in).run()


def load_shared(settings: Settings) -> None:
    """Load what all workers need, in this thread: a fork would break another one, and anything that
    is open. Raise ConfigError."""
    check_drivers(settings.storage)
    load_for_memory(settings)


def follow(server: AnnouncedServer, line: socket.socket) -> None:
    """Write beats on the line from now on, and let the server end at the line's end."""
    line.setblocking(False)
    loop = asyncio.get_running_loop()

    def beat() -> None:
        with suppress(OSError):  # a full line is beat enough, and a broken one has ended
            line.send(b".")
        loop.call_later(BEAT_INTERVAL_S, beat)

    def end() -> None:
        loop.remove_reader(line)
        server.should_exit = True

    loop.add_reader(line, end)
    beat()


@dataclass(slots=True, eq=False)
class Worker:
    """A worker as its supervisor knows it."""

    pid: int
    line: socket.socket
    is_serving: bool = False
    is_outdated: bool = False  # another one takes its place
    is_leaving: bool = False
    silence_s: float = 0.0  # since its last beat

    def fileno(self) -> int:
        return self.line.fileno()

    def dismiss(self) -> None:
        self.is_leaving = True
        with suppress(OSError):  # it has just ended by itself
            self.line.shutdown(socket.SHUT_WR)


class Supervisor:
    """Keeps `server.workers` workers running. `serve` is what a worker does with its line.

    SIGHUP replaces all workers, one after the other, each when its successor serves. SIGTTIN adds a
    worker, SIGTTOU takes one away.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: list[socket.socket],
        serve: Callable[[socket.socket], int],
        sign_in: SignIn | None = None,
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._serve = serve
        self._sign_in = sign_in
        self._count = settings.server.workers
        self._workers: list[Worker] = []
        self._is_announced = False
        self._exit_status = DONE
        self._signals, self._signal_writer = socket.socketpair()

    def run(self) -> int:
        """Supervise until SIGTERM or SIGINT, and return the exit status."""
        self._signal_writer.setblocking(False)
        signal.set_wakeup_fd(self._signal_writer.fileno())
        for number in HANDLED_SIGNALS:
            signal.signal(number, lambda *_: None)
        with self._signals, self._signal_writer:
            self._settle()
            while self._workers:
                for source in self._wait():
                    if isinstance(source, Worker):
                        self._hear(source)
                    else:
                        self._obey(self._signals.recv(MAX_READ_BYTES))
                self._settle()
            signal.set_wakeup_fd(-1)
        return self._exit_status

    def _wait(self) -> list[Worker | socket.socket]:
        """Wait until there is something to read, or a beat is due. Return what can be read."""
        began = time.monotonic()
        sources: list[Worker | socket.socket] = [self._signals, *self._workers]
        ready, _, _ = select.select(sources, (), (), BEAT_INTERVAL_S)
        # at most: a machine that was paused has silenced nobody
        waited_s = min(time.monotonic() - began, BEAT_INTERVAL_S)
        for worker in self._workers:
            worker.silence_s += waited_s
        return ready

    def _obey(self, numbers: bytes) -> None:
        for number in numbers:
            if not self._count:
                return  # it ends already
            match number:
                case signal.SIGHUP:
                    for worker in self._workers:
                        worker.is_outdated = True
                case signal.SIGTTIN:
                    self._count += 1
                case signal.SIGTTOU:
                    self._count = max(self._count - 1, 1)
                case _:
                    self._end()

    def _hear(self, worker: Worker) -> None:
        if worker.line.recv(MAX_READ_BYTES):
            worker.is_serving, worker.silence_s = True, 0.0
            return
        self._workers.remove(worker)
        worker.line.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not worker.is_leaving:
            self._judge(status, has_served=worker.is_serving)

    def _judge(self, status: int, *, has_served: bool) -> None:
        """Decide what a worker's unexpected end means for the others."""
        if status != CANNOT_START:
            logger.warning("worker.ended", status=status)
            time.sleep(0 if has_served else RETRY_DELAY_S)
        elif any(worker.is_outdated for worker in self._workers):
            for worker in self._workers:  # the old ones stay
                worker.is_outdated = False
        else:
            self._exit_status = CANNOT_START
            self._end()

    def _settle(self) -> None:
        """Fork, dismiss and kill workers, so that as many serve as there should be."""
        staying = [worker for worker in self._workers if not worker.is_leaving]
        outdated = [worker for worker in staying if worker.is_outdated]
        serving = [worker for worker in staying if worker.is_serving]
        if serving and len(serving) == self._count and not self._is_announced:
            self._is_announced = True
            port = self._listeners[0].getsockname()[1]
            print_banner(self._settings, port, self._sign_in)
        if len(serving) == len(staying) > self._count:
            (outdated or staying)[-1].dismiss()
        for worker in serving:
            if worker.silence_s > MAX_SILENCE_S:
                os.kill(worker.pid, signal.SIGKILL)
        # the first one alone: it creates the store, or says why none can start
        wanted = self._count + bool(outdated) if serving else min(self._count, 1)
        for _ in range(wanted - len(staying)):
            self._fork()

    def _end(self) -> None:
        """Let the workers end, and stop listening with the last of them: a connection that nobody
        accepts would wait in vain."""
        self._count = 0
        for listener in self._listeners:
            listener.close()
        for worker in self._workers:
            worker.dismiss()

    def _fork(self) -> None:
        ours, theirs = socket.socketpair()
        flush_log()  # what waits would be written twice
        pid = os.fork()
        if pid == 0:
            for end in (ours, self._signals, *(worker.line for worker in self._workers)):
                end.close()
            self._run_worker(theirs)
        theirs.close()
        self._workers.append(Worker(pid, ours))

    def _run_worker(self, line: socket.socket) -> NoReturn:
        """Serve, and end this process. Python's own end would write to all shared memory, which
        copies it."""
        status = CANNOT_START
        try:
            signal.set_wakeup_fd(-1)
            for number in HANDLED_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            with suppress(SystemExit):  # the app cannot start, and has said why
                status = self._serve(line)
        except Exception as exc:
            report_start_failure(exc)
        finally:
            flush_log()
            os._exit(status)
