"""Events on stderr, as JSON lines or for people: flat fields, and never a text that came from a
message or a header."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import traceback
import warnings
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor

from om_proxy.bounded_cache import BoundedCache
from om_proxy.errors import OmError
from om_proxy.identity.keyed_hashes import label_thread
from om_proxy.memory.model import Key
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.reasons import Reason, Status
from om_proxy.telemetry.console import render_event

FLUSH_DELAY_S = 0.05  # seconds a line may wait for its neighbours
MAX_FIELD_CHARS = 300  # characters of a field: an identifier fits, a conversation does not
MAX_KNOWN_THREADS = 4_096  # whose labels are at hand
LEVELS_BY_METHOD = {
    "exception": "error",
    "warn": "warning",
}  # methods that are named otherwise than their level
# written as they are; the receipt's words are strings of a closed list, and short
SCALAR_TYPES = frozenset((int, float, bool, type(None), Status, Reason))
REPORTED_ELSEWHERE = (
    # a reply that the upstream broke off is broken off here too: the `turn` event says so
    "ASGI callable returned without completing",
    "Application startup failed",  # `start_failed` says why
)
HEARD_LIBRARIES = (
    "uvicorn.error",
    "asyncio",
)  # the libraries heard; HTTP clients log URLs and bodies, so nobody else is


def configure(
    log: Literal["auto", "json", "console", "off"], *, names_threads: bool = False
) -> None:
    """Set up `telemetry.log`; may be called again. `auto` is console on a terminal, JSON elsewhere.

    `names_threads`: whether a console shows a thread's own name, which is a header's value. Only
    where nobody but this machine's user is served; JSON lines, which are collected, never hold it.
    """
    console = log == "console" or (log == "auto" and sys.stderr.isatty())
    processors: list[Processor] = [ConsoleLine()] if console else [json_line]
    _ShownByLog.thread_names = console and names_threads
    structlog.configure(
        processors=processors,
        wrapper_class=_EventLogger,
        logger_factory=_make_logger(log),
        cache_logger_on_first_use=log != "off",
    )
    logging.basicConfig(
        handlers=[logging.NullHandler()], force=True
    )  # also silences logging's last resort
    for name in HEARD_LIBRARIES:
        logging.getLogger(name).handlers = [StdlibBridge(logging.WARNING)]


def capture_python_warnings() -> None:
    """What Python itself writes to stderr is an event too: warnings, and errors that end a thread
    or happen in a finaliser. Their words may hold anything (pydantic's warnings hold the value they
    are about), so a class and a place are all that is said. For a process of our own, for good."""
    warnings.showwarning = lambda message, category, filename, lineno, *_: _log_python_error(
        category, (filename, lineno)
    )
    sys.unraisablehook = lambda told: _log_python_error(
        told.exc_type, _place_of(told.exc_traceback)
    )
    threading.excepthook = lambda told: _log_python_error(
        told.exc_type, _place_of(told.exc_traceback)
    )


def start_failed(exc: Exception) -> None:
    """Why a program cannot start, for whoever started it: one line on stderr, whatever
    `telemetry.log` says, for there will be no other. Of an error that is none of ours its class and
    place."""
    unforeseen = (
        f"it cannot start: {type(exc).__name__} at {_short_place(_place_of(exc.__traceback__))}"
    )
    said = str(exc) if isinstance(exc, OmError) else unforeseen
    with contextlib.suppress(OSError, ValueError):  # as for `BufferedLineWriter`
        sys.stderr.write(f"om-proxy: {redact_secrets(said)}\n")
        sys.stderr.flush()


def _log_python_error(kind: type[BaseException], at: tuple[str, int | None] | None) -> None:
    if not issubclass(kind, SystemExit):  # how a thread may end
        structlog.get_logger("python").warning(
            "library", logger="python", error=kind.__name__, at=_short_place(at)
        )


class _ShownByLog:
    """What the log that is set up may show."""

    thread_names = False


def thread_name(key: Key | None) -> str | None:
    """The thread's own name, for a console that may show it; else None, and the label stands for
    it."""
    return key.thread if key and _ShownByLog.thread_names else None


@lru_cache(maxsize=MAX_KNOWN_THREADS)  # redacting costs 20 µs, and every request names its model
def model_name(model: str | None) -> str | None:
    """The model as the client names it: clipped, without what has a credential's shape."""
    return redact_secrets(model[:MAX_FIELD_CHARS]) if model else None


@lru_cache(maxsize=MAX_KNOWN_THREADS)  # 10 µs, and every request says it
def thread_label(secret: bytes, key: Key | None) -> str | None:
    """What events call a thread, whose name is a header's value: the label that the admin API shows
    beside the name."""
    return label_thread(secret, key) if key else None


def _make_logger(log: str) -> Any:
    if log == "off":
        return structlog.ReturnLoggerFactory()
    lines = BufferedLineWriter(sys.stderr.buffer)
    return lambda *_: lines


class BufferedLineWriter:
    """Writes warnings and errors at once, with all lines before them. Other lines wait
    FLUSH_DELAY_S and are written together.

    A write for each request's line costs 50 µs, a tenth of the request. A SIGKILL can take the
    lines of FLUSH_DELAY_S that say all is well. Where nothing can be written (a full disk, a closed
    pipe) the lines are lost: an error raised here would end the request that logs.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._flushing: asyncio.AbstractEventLoop | None = None  # the loop that will
        atexit.register(self.flush)

    def write_now(self, line: bytes | str) -> None:
        self._add(line)
        self.flush()

    def write_later(self, line: bytes | str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody there to come back later
            self.write_now(line)
            return
        self._add(line)
        if self._flushing is not loop:
            self._flushing = loop
            loop.call_later(FLUSH_DELAY_S, self.flush)

    def flush(self) -> None:
        with self._lock:
            self._flushing = None
            lines, self._waiting = self._waiting, []
            if lines:
                with contextlib.suppress(OSError, ValueError):
                    self._out.write(b"".join(lines))
                    self._out.flush()

    def _add(self, line: bytes | str) -> None:
        self._waiting.append(
            (line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")) + b"\n"
        )

    debug = info = write_later
    warning = warn = error = exception = critical = fatal = msg = write_now


def flatten_event(_: Any, level: str, event: EventDict) -> EventDict:
    """Add level and time. Scalars pass, clipped; an exception becomes its class, anything else its
    type.

    One processor does it, not three: every request waits for one event.
    """
    if "exc_info" in event and event.pop("exc_info"):
        event["error"] = sys.exc_info()[1]
    for key, value in event.items():
        kind = type(value)
        if kind not in SCALAR_TYPES and (kind is not str or len(value) > MAX_FIELD_CHARS):
            event[key] = _flatten_value(value)
    event["level"] = LEVELS_BY_METHOD.get(level, level)
    event["timestamp"] = datetime.now(UTC).isoformat()
    return event


def _flatten_value(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_flatten_value(item) for item in value]
    if isinstance(value, str):
        return value if len(value) <= MAX_FIELD_CHARS else f"{value[:MAX_FIELD_CHARS]}…"
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__


class ConsoleLine:
    """Renders events for people, in colour where stderr is a terminal (and `NO_COLOR` is not set).

    What is told of a thread after its turn (`observed`) calls it as the turn's line did, by name
    where names are shown.
    """

    def __init__(self) -> None:
        self._colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._names_by_label: BoundedCache[str, str] = BoundedCache(max_items=MAX_KNOWN_THREADS)

    def __call__(self, logger: Any, level: str, event: EventDict) -> str:
        said = self._name_thread(flatten_event(logger, level, event))
        clock_time = datetime.fromisoformat(said["timestamp"]).astimezone().strftime("%H:%M:%S")
        return render_event(said, clock_time, colored=self._colored)

    def _name_thread(self, said: EventDict) -> EventDict:
        thread, name = said.get("thread"), said.get("name")
        if thread and name:
            self._names_by_label.put(thread, name)
        elif thread and (known := self._names_by_label.get(thread)):
            said["thread"] = known
        return said


def json_line(logger: Any, level: str, event: EventDict) -> bytes:
    return orjson.dumps(flatten_event(logger, level, event))


def _info(self: Any, event: str, **fields: Any) -> None:
    """structlog's own way to the same end takes four more calls, 40 µs of a busy server's time for
    every request."""
    said: Any = {**self._context, **fields, "event": event}
    try:
        for process in self._processors:
            said = process(self._logger, "info", said)
    except structlog.DropEvent:
        return
    self._logger.info(said)


_EventLogger = type(
    "Events", (structlog.make_filtering_bound_logger(logging.INFO),), {"info": _info}
)


class StdlibBridge(logging.Handler):
    """A library's warning as an event of ours: where it was said, and the exception's class and
    place. Its words only where the server speaks of itself (a port in use): beside an exception, or
    from asyncio, they may hold an exception's text."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(REPORTED_ELSEWHERE):
            return
        exc = record.exc_info[1] if record.exc_info else None
        at = _short_place(_place_of(exc.__traceback__)) if exc else None
        own = record.name == HEARD_LIBRARIES[0] and exc is None
        said = record.getMessage().strip() if own else f"{record.filename}:{record.lineno}"
        log = structlog.get_logger(record.name)
        log.log(record.levelno, "library", logger=record.name, said=said, error=exc, at=at)


def _place_of(trace: TracebackType | None) -> tuple[str, int | None] | None:
    """The file and line that raised."""
    last = traceback.extract_tb(trace)[-1:]
    return (last[0].filename, last[0].lineno) if last else None


def _short_place(place: tuple[str, int | None] | None) -> str | None:
    return f"{place[0].rpartition('/')[2]}:{place[1]}" if place else None
