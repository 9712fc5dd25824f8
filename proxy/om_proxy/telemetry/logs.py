"""Write events to stderr, as JSON lines or for people: flat fields, and never a text from a message
or a header."""

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

FLUSH_DELAY_S = 0.05  # the longest wait of a line for the next ones
MAX_FIELD_CHARS = 300  # an identifier fits, a conversation does not
MAX_KNOWN_THREADS = 4_096  # threads whose labels are cached
LEVELS_BY_METHOD = {"exception": "error", "warn": "warning"}  # if the level has another name
# written as they are; the receipt's words are short strings of a closed list
SCALAR_TYPES = frozenset((int, float, bool, type(None), Status, Reason))
IGNORED_LIBRARY_MESSAGES = (
    # a reply that ended early at the upstream ends early here too: the `turn` event says so
    "ASGI callable returned without completing",
    "Application startup failed",  # `report_start_failure` gives the cause
)
# no others: HTTP clients log URLs and bodies
LOGGED_LIBRARIES = ("uvicorn.error", "asyncio")


def configure_log(
    log: Literal["auto", "json", "console", "off"], *, show_thread_names: bool = False
) -> None:
    """Set up `telemetry.log`; may be called again. `auto` is console on a terminal, JSON elsewhere.

    `show_thread_names`: whether a console shows a thread's own name, which is a header's value. It is
    for servers of this machine's user only. JSON lines, which are collected, never hold the name.
    """
    console = log == "console" or (log == "auto" and sys.stderr.isatty())
    processors: list[Processor] = [ConsoleLine()] if console else [render_json_line]
    _Shown.thread_names = console and show_thread_names
    structlog.configure(
        processors=processors,
        wrapper_class=_EventLogger,
        logger_factory=_create_logger_factory(log),
        cache_logger_on_first_use=log != "off",
    )
    logging.basicConfig(
        handlers=[logging.NullHandler()], force=True
    )  # also silences logging's last resort
    for name in LOGGED_LIBRARIES:
        logging.getLogger(name).handlers = [StdlibBridge(logging.WARNING)]


def capture_python_warnings() -> None:
    """Log as events what Python itself would write to stderr: warnings, and errors that end a
    thread or happen in a finaliser. Their texts may hold anything (pydantic's warnings hold the
    value they are about), so only class and place are logged. This changes the whole process, for
    good."""
    warnings.showwarning = lambda message, category, filename, lineno, *_: _log_python_error(
        category, (filename, lineno)
    )
    sys.unraisablehook = lambda raised: _log_python_error(
        raised.exc_type, _find_raise_place(raised.exc_traceback)
    )
    threading.excepthook = lambda raised: _log_python_error(
        raised.exc_type, _find_raise_place(raised.exc_traceback)
    )


def report_start_failure(exc: Exception) -> None:
    """Write one line on stderr that says why the program cannot start, whatever `telemetry.log`
    says: nothing else would tell the operator. An exception other than OmError is named by class
    and place only."""
    unforeseen = f"it cannot start: {type(exc).__name__} at {_render_place(_find_raise_place(exc.__traceback__))}"
    message = str(exc) if isinstance(exc, OmError) else unforeseen
    with contextlib.suppress(OSError, ValueError):  # as for `BufferedLineWriter`
        sys.stderr.write(f"om-proxy: {redact_secrets(message)}\n")
        sys.stderr.flush()


def _log_python_error(kind: type[BaseException], at: tuple[str, int | None] | None) -> None:
    if not issubclass(kind, SystemExit):  # a normal end of a thread
        structlog.get_logger("python").warning(
            "library", logger="python", error=kind.__name__, at=_render_place(at)
        )


class _Shown:
    """The private fields that the configured log may show."""

    thread_names = False


def thread_name(key: Key | None) -> str | None:
    """Return the thread's own name if the configured log may show it; None: show its label
    instead."""
    return key.thread if key and _Shown.thread_names else None


@lru_cache(maxsize=MAX_KNOWN_THREADS)  # redacting costs 20 µs, and every request names its model
def model_name(model: str | None) -> str | None:
    """Return the model as the client names it: cut, and without anything that looks like a
    credential."""
    return redact_secrets(model[:MAX_FIELD_CHARS]) if model else None


@lru_cache(maxsize=MAX_KNOWN_THREADS)  # 10 µs, and every request says it
def thread_label(secret: bytes, key: Key | None) -> str | None:
    """Return the thread's label, which replaces its name in events, as the name is a header's
    value. The admin API shows the label beside the name."""
    return label_thread(secret, key) if key else None


def _create_logger_factory(log: str) -> Any:
    if log == "off":
        return structlog.ReturnLoggerFactory()
    lines = BufferedLineWriter(sys.stderr.buffer)
    return lambda *_: lines


class BufferedLineWriter:
    """Writes warnings and errors at once, with all lines before them. Other lines wait
    FLUSH_DELAY_S and are written together.

    A write for each request's line costs 50 µs, a tenth of the request. A SIGKILL can lose the
    waiting lines, which report no problem. If nothing can be written (a full disk, a closed pipe),
    the lines are lost: an error raised here would end the request that logs.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._flushing: asyncio.AbstractEventLoop | None = None  # the loop that will flush
        atexit.register(self.flush)

    def write_now(self, line: bytes | str) -> None:
        self._add(line)
        self.flush()

    def write_later(self, line: bytes | str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no loop that could flush later
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
    """Renders events for people, in colour if stderr is a terminal and `NO_COLOR` is not set.

    Later lines about a thread (`observed`) name it as its turn's line did: by its own name, if
    names are shown.
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


def render_json_line(logger: Any, level: str, event: EventDict) -> bytes:
    return orjson.dumps(flatten_event(logger, level, event))


def _log_info(self: Any, event: str, **fields: Any) -> None:
    """Log an event at level info. structlog's own method takes four more calls, 40 µs of a busy
    server's time for every request."""
    said: Any = {**self._context, **fields, "event": event}
    try:
        for process in self._processors:
            said = process(self._logger, "info", said)
    except structlog.DropEvent:
        return
    self._logger.info(said)


_EventLogger = type(
    "Events", (structlog.make_filtering_bound_logger(logging.INFO),), {"info": _log_info}
)


class StdlibBridge(logging.Handler):
    """Logs a library's warning as an event: its place, and the exception's class and place. The
    warning's text is logged only if the server speaks of itself (a port in use): beside an
    exception, or from asyncio, it may hold an exception's text."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(IGNORED_LIBRARY_MESSAGES):
            return
        exc = record.exc_info[1] if record.exc_info else None
        at = _render_place(_find_raise_place(exc.__traceback__)) if exc else None
        own = record.name == LOGGED_LIBRARIES[0] and exc is None
        said = record.getMessage().strip() if own else f"{record.filename}:{record.lineno}"
        log = structlog.get_logger(record.name)
        log.log(record.levelno, "library", logger=record.name, said=said, error=exc, at=at)


def _find_raise_place(trace: TracebackType | None) -> tuple[str, int | None] | None:
    """Find the file and line that raised."""
    last = traceback.extract_tb(trace)[-1:]
    return (last[0].filename, last[0].lineno) if last else None


def _render_place(place: tuple[str, int | None] | None) -> str | None:
    return f"{place[0].rpartition('/')[2]}:{place[1]}" if place else None
