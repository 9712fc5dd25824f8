"""Write a memory model's question as a request of the Messages API, and read its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.messages.reply import read_usage
from om_proxy.wire.apis.messages.writing import write_content

# The API demands a limit. Every model since 2024 takes it.
DEFAULT_MAX_TOKENS = 8_192
CUT_OFF = "max_tokens"  # the stop reason of an answer that its limit cut off


class Answer(NamedTuple):
    """The answer of a memory model."""

    text: str
    is_cut_off: bool
    usage: Usage | None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Message(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None
    usage: Any = None


_message = msgspec.json.Decoder(_Message)


def write_question(
    model: str, system: str, content: Sequence[Any], max_tokens: int | None
) -> dict[str, Any]:
    """Write a request. `content`: the parts of a chat message; `max_tokens`: None for no limit of
    the caller's."""
    return {
        "model": model,
        "system": system,
        "messages": [{"role": "user", "content": write_content(content)}],
        "max_tokens": max_tokens or DEFAULT_MAX_TOKENS,
    }


def read_answer(body: bytes) -> Answer:
    """Read a reply in one piece. Raise ValueError for any other JSON."""
    message = _message.decode(body)
    text = "".join(block.text or "" for block in message.content if block.type == "text")
    return Answer(text, message.stop_reason == CUT_OFF, read_usage(message.usage))
