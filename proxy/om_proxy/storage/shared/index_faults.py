"""Say what is wrong with an index of original messages, whichever store keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from om_proxy.memory.model import Message
from om_proxy.memory.recall.passages import IndexPlace, cut_passages
from om_proxy.wire.apis.indexed_text import read_indexed_text

MAX_CHECKED_MESSAGES = 2_000  # without a passage: rarely one has words


def list_faults(stray: int, cut: int, without: Sequence[Message]) -> tuple[str, ...]:
    """Return the faults in sentences. `stray`: passages of no message that may be found; `cut`:
    messages with some of their passages; `without`: indexed messages without a passage, of which
    those with words lack theirs."""
    lacking = cut + sum(map(_has_words, without))
    return (
        *([f"{stray} passages are of no message that may be found"] if stray else []),
        *([f"messages that lack passages: {lacking}"] if lacking else []),
    )


def _has_words(message: Message) -> bool:
    return bool(cut_passages([read_indexed_text(message)], IndexPlace(), None)[0])
