"""The seam between the chat route and tracing, which is imported only where it is on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from om_proxy.memory.model import Key
from om_proxy.observability.facts import TurnEnded
from om_proxy.wire.server.headers import Header


class ChatSpan(Protocol):
    """The span of one request, from its first byte upstream to its end."""

    def replace_context(self, headers: Sequence[Header]) -> list[Header]:
        """Return the headers with this span as the parent of the model server's."""

    def end(self, turn: TurnEnded) -> None: ...

    def abandon(self) -> None:
        """End the span of a request that ended without a fact; do nothing if it has ended."""


class ChatTracer(Protocol):
    """Begins spans (observability/tracing/spans.py)."""

    def begin_chat(
        self, headers: Sequence[Header], model: str | None, key: Key | None, upstream: str
    ) -> ChatSpan: ...
