"""Write a memory model's question as a request for a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from om_proxy.wire.apis.responses.writing import write_content

# members that this API has by another name
CHAT_MEMBERS = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "reasoning_effort")
)


def write_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return a memory model's question in the words of this API, as a request that the server does
    not keep. `question`: a chat completion request of a system message, or none, and a user
    message."""
    *instructions, user = question["messages"]
    content = write_content(user["content"])
    written = {
        "model": question["model"],
        "input": content if isinstance(content, str) else [{"role": "user", "content": content}],
        "store": False,
    }
    if instructions:
        written["instructions"] = instructions[0]["content"]
    if limit := question.get("max_completion_tokens") or question.get("max_tokens"):
        written["max_output_tokens"] = limit
    if effort := question.get("reasoning_effort"):
        written["reasoning"] = {"effort": effort}
    others = {name: value for name, value in question.items() if name not in CHAT_MEMBERS}
    return others | written
