"""Collect what is logged, as the lines that an operator would read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import structlog

from om_proxy.observability.logs import BufferedLineWriter, render_json_line


class LogLines:
    def __init__(self) -> None:
        self._out = io.BytesIO()
        self.lines = BufferedLineWriter(self._out)

    @property
    def text(self) -> str:
        self.lines.flush()
        return self._out.getvalue().decode()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """List the lines about these events, in order."""
        told: list[dict[str, Any]] = [orjson.loads(line) for line in self.text.splitlines()]
        return [line for line in told if line["event"] in names]

    def threads(self, *events: str) -> dict[str, set[str | None]]:
        """Return the thread names in the lines about each of these events."""
        return {event: {line["thread"] for line in self.events(event)} for event in events}


@contextmanager
def collect_log_lines() -> Iterator[LogLines]:
    """Collect the log lines until the block ends. They go nowhere else."""
    found, before = LogLines(), structlog.get_config()
    structlog.configure(
        processors=[render_json_line],
        logger_factory=lambda *_: found.lines,
        cache_logger_on_first_use=False,
    )
    try:
        yield found
    finally:
        structlog.configure(**before)
