"""Write a memory model's question as a request of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from om_proxy.wire.apis.messages.writing import write_content

# The API demands a limit. Every model since 2024 takes it.
DEFAULT_MAX_TOKENS = 8_192
# members that this API has by another name, or not at all
CHAT_MEMBERS = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "reasoning_effort")
)


def write_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a memory model's question in the words of this API. `question`: a chat completion
    request of a system message, or none, and a user message."""
    *instructions, user = question["messages"]
    limit = question.get("max_completion_tokens") or question.get("max_tokens")
    written = {
        "model": question["model"],
        "messages": [{"role": "user", "content": write_content(user["content"])}],
        "max_tokens": limit or DEFAULT_MAX_TOKENS,
    }
    if instructions:
        written["system"] = instructions[0]["content"]
    others = {name: value for name, value in question.items() if name not in CHAT_MEMBERS}
    return others | written
