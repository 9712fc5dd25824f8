"""Write events to stderr, as JSON lines or for people, and of some warnings only so many a minute.
An event has flat fields, and never holds a text from a message or a header."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.common.errors import OmError
from om_proxy.common.reasons import Reason, Status
from om_proxy.memory.model import Key
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.observability.console import render_event
from om_proxy.settings.identity.keyed_hashes import label_thread

FLUSH_DELAY_S = 0.05  # the longest wait of a line for the next ones
MAX_FIELD_CHARS = 300  # an identifier fits, a conversation does not
MAX_CACHED_LABELS = 4_096
LEVELS_BY_METHOD = {"exception": "error", "warn": "warning"}  # if the level has another name
# written as they are; the receipt's words are short strings of a closed list
SCALAR_TYPES = frozenset((int, float, bool, type(None), Status, Reason))
IGNORED_LIBRARY_MESSAGES = (
    # a reply that ended early at the upstream ends early here too: the `turn` event says so
    "ASGI callable returned without completing",
    "Application startup failed",  # `report_start_failure` gives the cause
)
MAX_LIBRARY_WARNINGS_A_MINUTE = 1  # from one place of a library
# no others: HTTP clients log URLs and bodies
LOGGED_LIBRARIES = ("uvicorn.error", "asyncio", "opentelemetry")


def configure_log(
    log: Literal["auto", "json", "console", "off"], *, show_thread_names: bool = False
) -> None:
    """Set up `telemetry.log`. The function may be called again. `auto` is console on a terminal,
    JSON elsewhere.

    `show_thread_names`: whether a console shows a thread's own name, which is a header's value:
    only for servers of this machine's user. JSON lines, which are collected, never hold the name.
    """
    is_console = log == "console" or (log == "auto" and sys.stderr.isatty())
    processors: list[Processor] = [ConsoleLine()] if is_console else [render_json_line]
    _Privacy.shows_thread_names = is_console and show_thread_names
    structlog.configure(
        processors=processors,
        wrapper_class=_EventLogger,
        logger_factory=_create_logger_factory(log),
        cache_logger_on_first_use=log != "off",
    )
    # without any handler, logging's last resort would write to stderr
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    for name in LOGGED_LIBRARIES:
        logging.getLogger(name).handlers = [StdlibBridge(logging.WARNING)]


def capture_python_warnings() -> None:
    """Log what Python itself would write to stderr as events: warnings, and errors that end a
    thread or happen in a finaliser. Their texts may hold anything (a warning of pydantic holds the
    value), so only class and place are logged. The hooks of the whole process are replaced."""
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
    """Write one line on stderr that says why the program cannot start, even if `telemetry.log` is
    off: nothing else would tell the operator. Name only class and place of an exception other than
    OmError."""
    if isinstance(exc, OmError):
        message = str(exc)
    else:
        place = _render_place(_find_raise_place(exc.__traceback__))
        message = f"it cannot start: {type(exc).__name__} at {place}"
    with contextlib.suppress(OSError, ValueError):  # as for `BufferedLineWriter`
        sys.stderr.write(f"om-proxy: {redact_secrets(message)}\n")
        sys.stderr.flush()


def _log_python_error(kind: type[BaseException], at: tuple[str, int | None] | None) -> None:
    if not issubclass(kind, SystemExit):  # a normal end of a thread
        structlog.get_logger("python").warning(
            "library", logger="python", error=kind.__name__, at=_render_place(at)
        )


class _Privacy:
    """The private fields that the configured log shows."""

    shows_thread_names = False


def get_shown_thread_name(key: Key | None) -> str | None:
    """Return the thread's own name if the configured log shows it, else None: the log then shows
    the label only."""
    return key.thread if key and _Privacy.shows_thread_names else None


@lru_cache(maxsize=MAX_CACHED_LABELS)  # redacting costs 20 µs, and every request names its model
def redact_model_name(model: str | None) -> str | None:
    """Return the model as the client names it, cut, and without anything that looks like a
    credential."""
    return redact_secrets(model[:MAX_FIELD_CHARS]) if model else None


@lru_cache(maxsize=MAX_CACHED_LABELS)  # hashing costs 10 µs, and every request names its thread
def get_thread_label(secret: bytes, key: Key | None) -> str | None:
    """Return the thread's label, which replaces its name in events: the name is a header's value.
    The admin API shows the label beside the name."""
    return label_thread(secret, key) if key else None


def _create_logger_factory(log: str) -> Any:
    if log == "off":
        return structlog.ReturnLoggerFactory()
    lines = BufferedLineWriter(sys.stderr.buffer)
    return lambda *_: lines


def flush_log() -> None:
    """Write the lines that wait. A fork would copy them, and an end without `atexit` lose them."""
    writer = structlog.get_config()["logger_factory"]()
    if isinstance(writer, BufferedLineWriter):
        writer.flush()


class BufferedLineWriter:
    """A log file that writes warnings and errors at once, with all lines before them. Other lines
    wait FLUSH_DELAY_S and are written together.

    A write for each request's line costs 50 µs, a tenth of the request. A SIGKILL can lose the
    waiting lines, which report no problem. If nothing can be written (a full disk, a closed pipe),
    the lines are lost: an error raised here would end the request that logs.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._waiting_lines: list[bytes] = []
        self._lock = threading.Lock()
        self._flushing_loop: asyncio.AbstractEventLoop | None = None  # it will call `flush`
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
        if self._flushing_loop is not loop:
            self._flushing_loop = loop
            loop.call_later(FLUSH_DELAY_S, self.flush)

    def flush(self) -> None:
        with self._lock:
            self._flushing_loop = None
            lines = self._waiting_lines
            self._waiting_lines = []
            if lines:
                with contextlib.suppress(OSError, ValueError):
                    self._out.write(b"".join(lines))
                    self._out.flush()

    def _add(self, line: bytes | str) -> None:
        encoded = line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")
        self._waiting_lines.append(encoded + b"\n")

    debug = info = write_later
    warning = warn = error = exception = critical = fatal = msg = write_now


def flatten_event(_: Any, level: str, event: EventDict) -> EventDict:
    """Add level and time to an event. Scalars stay, and strings are clipped. An exception becomes
    its class, anything else its type.

    One processor does all of this, because every request waits for its event.
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
    """The processor that renders events for people, in colour if stderr is a terminal and
    `NO_COLOR` is not set.

    Later lines about a thread (`observed`) name the thread as the line of its turn did: by its own
    name, if names are shown.
    """

    def __init__(self) -> None:
        self._is_colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._names_by_label: BoundedCache[str, str] = BoundedCache(max_items=MAX_CACHED_LABELS)

    def __call__(self, logger: Any, level: str, event: EventDict) -> str:
        fields = self._name_thread(flatten_event(logger, level, event))
        clock_time = datetime.fromisoformat(fields["timestamp"]).astimezone().strftime("%H:%M:%S")
        return render_event(fields, clock_time, is_colored=self._is_colored)

    def _name_thread(self, fields: EventDict) -> EventDict:
        """Replace the label of a thread by its name, if an earlier event had both."""
        label, name = fields.get("thread"), fields.get("name")
        if label and name:
            self._names_by_label.put(label, name)
        elif label and (known_name := self._names_by_label.get(label)):
            fields["thread"] = known_name
        return fields


def render_json_line(logger: Any, level: str, event: EventDict) -> bytes:
    return orjson.dumps(flatten_event(logger, level, event))


def _log_info(self: Any, event: str, **fields: Any) -> None:
    """Log an event at level info. structlog's own method takes four more calls, 40 µs of a busy
    server's time for every request."""
    rendered: Any = {**self._context, **fields, "event": event}
    try:
        for process in self._processors:
            rendered = process(self._logger, "info", rendered)
    except structlog.DropEvent:
        return
    self._logger.info(rendered)


_EventLogger = type(
    "Events", (structlog.make_filtering_bound_logger(logging.INFO),), {"info": _log_info}
)


class StdlibBridge(logging.Handler):
    """The handler that logs a library's warning as an event: its place, and the exception's class
    and place. The text is logged only for uvicorn's own warnings (a port in use). With an
    exception, or from asyncio, the text may quote the exception's. Of warnings from one place, one
    a minute is logged: a client that sends garbage causes one with each request."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._limits: dict[tuple[str | int | None, ...], WarningLimit] = {}  # by place in the code

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(IGNORED_LIBRARY_MESSAGES):
            return
        exc = record.exc_info[1] if record.exc_info else None
        at = _render_place(_find_raise_place(exc.__traceback__)) if exc else None
        place = (record.name, record.filename, record.lineno, at)
        fields = self._limits.setdefault(place, WarningLimit(MAX_LIBRARY_WARNINGS_A_MINUTE)).take()
        if fields is None:
            return
        has_safe_text = record.name == LOGGED_LIBRARIES[0] and exc is None
        text = (
            record.getMessage().strip() if has_safe_text else f"{record.filename}:{record.lineno}"
        )
        logger = structlog.get_logger(record.name)
        logger.log(
            record.levelno, "library", logger=record.name, said=text, error=exc, at=at, **fields
        )


def _find_raise_place(trace: TracebackType | None) -> tuple[str, int | None] | None:
    """Find the file and line that raised."""
    frames = traceback.extract_tb(trace)
    return (frames[-1].filename, frames[-1].lineno) if frames else None


def _render_place(place: tuple[str, int | None] | None) -> str | None:
    return f"{place[0].rpartition('/')[2]}:{place[1]}" if place else None


class WarningLimit:
    """The limit of one kind of warning, per process."""

    def __init__(self, max_a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_a_minute = max_a_minute
        self._clock = clock
        self._minute_ends = float("-inf")  # by `clock`
        self._warnings = 0  # in this minute
        self._left_out = 0  # since the last warning that was let through

    def take(self) -> dict[str, int] | None:
        """Return the fields that the warning gets: `left_out`, if any were left out since the last
        one. None: leave this one out too."""
        now = self._clock()
        if now >= self._minute_ends:
            self._minute_ends = now + 60.0
            self._warnings = 0
        self._warnings += 1
        if self._warnings > self._max_a_minute:
            self._left_out += 1
            return None
        fields = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        return fields
