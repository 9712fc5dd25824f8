"""Events on stderr, as JSON lines or for people: flat fields, and never a text that came from a message or a header."""

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
from collections import OrderedDict
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType
from typing import Any, BinaryIO, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor

from om_proxy.console import render_event
from om_proxy.errors import OmError
from om_proxy.memory.identity import label
from om_proxy.memory.model import Key
from om_proxy.memory.redaction import redacted

SOON = 0.05  # seconds a line may wait for its neighbours
LONGEST = 300  # characters of a field: an identifier fits, a conversation does not
THREADS = 4_096  # whose labels are at hand
LEVELS = {"exception": "error", "warn": "warning"}  # methods that are named otherwise than their level
PLAIN = frozenset((int, float, bool, type(None)))
SAID_ELSEWHERE = (
    "ASGI callable returned without completing",  # how a reply the upstream broke off is broken off here too: the `turn` event
    "Application startup failed",  # `start_failed` says why
)
OTHERS = ("uvicorn.error", "asyncio")  # the libraries heard; HTTP clients log URLs and bodies, so nobody else is


def configure(log: Literal["auto", "json", "console", "off"], *, names_threads: bool = False) -> None:
    """Set up `telemetry.log`; may be called again. `auto` is console on a terminal, JSON elsewhere.

    `names_threads`: whether a console shows a thread's own name, which is a header's value. Only where nobody but this
    machine's user is served; JSON lines, which are collected, never hold it.
    """
    console = log == "console" or (log == "auto" and sys.stderr.isatty())
    processors: list[Processor] = [ConsoleLine()] if console else [json_line]
    _Shown.thread_names = console and names_threads
    structlog.configure(
        processors=processors,
        wrapper_class=_Events,
        logger_factory=_lines(log),
        cache_logger_on_first_use=log != "off",
    )
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)  # also silences logging's last resort
    for name in OTHERS:
        logging.getLogger(name).handlers = [_Heard(logging.WARNING)]


def hear_python() -> None:
    """What Python itself writes to stderr is an event too: warnings, and errors that end a thread or happen in a finaliser. Their words
    may hold anything (pydantic's warnings hold the value they are about), so a class and a place are all that is said. For a process
    of our own, for good."""
    warnings.showwarning = lambda message, category, filename, lineno, *_: _python(category, (filename, lineno))
    sys.unraisablehook = lambda told: _python(told.exc_type, _place_of(told.exc_traceback))
    threading.excepthook = lambda told: _python(told.exc_type, _place_of(told.exc_traceback))


def start_failed(exc: Exception) -> None:
    """Why a program cannot start, for whoever started it: one line on stderr, whatever `telemetry.log` says, for there will be no
    other. Of an error that is none of ours its class and place."""
    unforeseen = f"it cannot start: {type(exc).__name__} at {_short(_place_of(exc.__traceback__))}"
    said = str(exc) if isinstance(exc, OmError) else unforeseen
    with contextlib.suppress(OSError, ValueError):  # as for `Lines`
        sys.stderr.write(f"om-proxy: {redacted(said)}\n")
        sys.stderr.flush()


def _python(kind: type[BaseException], at: tuple[str, int | None] | None) -> None:
    if not issubclass(kind, SystemExit):  # how a thread may end
        structlog.get_logger("python").warning("library", logger="python", error=kind.__name__, at=_short(at))


class _Shown:
    """What the log that is set up may show."""

    thread_names = False


def thread_name(key: Key | None) -> str | None:
    """The thread's own name, for a console that may show it; else None, and the label stands for it."""
    return key.thread if key and _Shown.thread_names else None


@lru_cache(maxsize=THREADS)  # redacting costs 20 µs, and every request names its model
def model_name(model: str | None) -> str | None:
    """The model as the client names it: clipped, without what has a credential's shape."""
    return redacted(model[:LONGEST]) if model else None


@lru_cache(maxsize=THREADS)  # 10 µs, and every request says it
def thread_label(secret: bytes, key: Key | None) -> str | None:
    """What events call a thread, whose name is a header's value: the label that the admin API shows beside the name."""
    return label(secret, key) if key else None


def _lines(log: str) -> Any:
    if log == "off":
        return structlog.ReturnLoggerFactory()
    lines = Lines(sys.stderr.buffer)
    return lambda *_: lines


class Lines:
    """Writes lines: warnings and errors at once, with all that was said before them; the rest together, SOON.

    A write of its own for every request's line costs 50 µs, a tenth of the request. What a SIGKILL can take is SOON's worth of
    lines that say all is well. Where nothing can be written (a full disk, a closed pipe) the lines are lost: there is nobody to
    tell, and an error raised here would end the request that had something to say.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._kept: list[bytes] = []
        self._lock = threading.Lock()
        self._flushing: asyncio.AbstractEventLoop | None = None  # the loop that will
        atexit.register(self.flush)

    def urgent(self, line: bytes | str) -> None:
        self._keep(line)
        self.flush()

    def quiet(self, line: bytes | str) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody there to come back later
            self.urgent(line)
            return
        self._keep(line)
        if self._flushing is not loop:
            self._flushing = loop
            loop.call_later(SOON, self.flush)

    def flush(self) -> None:
        with self._lock:
            self._flushing = None
            lines, self._kept = self._kept, []
            if lines:
                with contextlib.suppress(OSError, ValueError):
                    self._out.write(b"".join(lines))
                    self._out.flush()

    def _keep(self, line: bytes | str) -> None:
        self._kept.append((line if isinstance(line, bytes) else line.encode("utf-8", "backslashreplace")) + b"\n")

    debug = info = quiet
    warning = warn = error = exception = critical = fatal = msg = urgent


def flat(_: Any, level: str, event: EventDict) -> EventDict:
    """With level and time. Scalars pass, clipped; of an exception its class; of anything else its type.

    One processor and not three: every request waits for one event.
    """
    if "exc_info" in event and event.pop("exc_info"):
        event["error"] = sys.exc_info()[1]
    for key, value in event.items():
        if type(value) not in PLAIN and (type(value) is not str or len(value) > LONGEST):
            event[key] = _flat(value)
    event["level"] = LEVELS.get(level, level)
    event["timestamp"] = datetime.now(UTC).isoformat()
    return event


def _flat(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return [_flat(item) for item in value]
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__


class ConsoleLine:
    """Renders events for people, in colour where stderr is a terminal (and `NO_COLOR` is not set).

    What is told of a thread after its turn (`observed`) calls it as the turn's line did, by name where names are shown.
    """

    def __init__(self) -> None:
        self._colored = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        self._names_by_label: OrderedDict[str, str] = OrderedDict()  # the newest THREADS, the oldest first

    def __call__(self, logger: Any, level: str, event: EventDict) -> str:
        said = self._name_thread(flat(logger, level, event))
        clock_time = datetime.fromisoformat(said["timestamp"]).astimezone().strftime("%H:%M:%S")
        return render_event(said, clock_time, colored=self._colored)

    def _name_thread(self, said: EventDict) -> EventDict:
        thread, name = said.get("thread"), said.get("name")
        if thread and name:
            self._names_by_label[thread] = name
            self._names_by_label.move_to_end(thread)
            if len(self._names_by_label) > THREADS:
                self._names_by_label.popitem(last=False)
        elif thread and (known := self._names_by_label.get(thread)):
            said["thread"] = known
        return said


def json_line(logger: Any, level: str, event: EventDict) -> bytes:
    return orjson.dumps(flat(logger, level, event))


def _info(self: Any, event: str, **fields: Any) -> None:
    """structlog's own way to the same end takes four more calls, 40 µs of a busy server's time for every request."""
    said: Any = {**self._context, **fields, "event": event}
    try:
        for process in self._processors:
            said = process(self._logger, "info", said)
    except structlog.DropEvent:
        return
    self._logger.info(said)


_Events = type("Events", (structlog.make_filtering_bound_logger(logging.INFO),), {"info": _info})


class _Heard(logging.Handler):
    """A library's warning as an event of ours: where it was said, and the exception's class and place. Its words only where the
    server speaks of itself (a port in use): beside an exception, or from asyncio, they may hold an exception's text."""

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith(SAID_ELSEWHERE):
            return
        exc = record.exc_info[1] if record.exc_info else None
        at = _short(_place_of(exc.__traceback__)) if exc else None
        own = record.name == OTHERS[0] and exc is None
        said = record.getMessage().strip() if own else f"{record.filename}:{record.lineno}"
        log = structlog.get_logger(record.name)
        log.log(record.levelno, "library", logger=record.name, said=said, error=exc, at=at)


def _place_of(trace: TracebackType | None) -> tuple[str, int | None] | None:
    """The file and line that raised."""
    last = traceback.extract_tb(trace)[-1:]
    return (last[0].filename, last[0].lineno) if last else None


def _short(place: tuple[str, int | None] | None) -> str | None:
    return f"{place[0].rpartition('/')[2]}:{place[1]}" if place else None
