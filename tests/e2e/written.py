"""All that is logged while something goes on, as the lines that an operator would read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import structlog

from om_proxy.telemetry.logs import BufferedLineWriter, json_line


class Written:
    def __init__(self) -> None:
        self._out = io.BytesIO()
        self.lines = BufferedLineWriter(self._out)

    @property
    def text(self) -> str:
        self.lines.flush()
        return self._out.getvalue().decode()

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The lines about these events, in order."""
        told: list[dict[str, Any]] = [orjson.loads(line) for line in self.text.splitlines()]
        return [line for line in told if line["event"] in names]

    def threads(self, *events: str) -> dict[str, set[str | None]]:
        """What lines about these events call their threads."""
        return {event: {line["thread"] for line in self.events(event)} for event in events}


@contextmanager
def written() -> Iterator[Written]:
    """While the block lasts, log events go here and nowhere else."""
    found = Written()
    structlog.configure(
        processors=[json_line],
        logger_factory=lambda *_: found.lines,
        cache_logger_on_first_use=False,
    )
    try:
        yield found
    finally:
        structlog.reset_defaults()
