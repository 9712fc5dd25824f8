"""Look up what a prompt does not show, with the tool that the proxy offers, and answer from its result
alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from om_proxy.testing import recollect

TOOL_NAMES = ("recall", "om_recall")
CALL_ID_PREFIX = "look-up-"
MAX_RESULTS = 5  # fewer results show more of each message
QUOTE_INDENT = "  "  # of quoted lines; the others are the proxy's

Message = Mapping[str, Any]


def find_tool(request: Mapping[str, Any]) -> str | None:
    """Return the name of the tool for look-ups that a chat request offers."""
    names = [tool["function"]["name"] for tool in request.get("tools") or () if "function" in tool]
    return next((name for name in reversed(names) if name in TOOL_NAMES), None)


def call_tool(tool: str, question: str, number: int) -> Message:
    """Return the assistant's message that searches for the words of a question."""
    words = " ".join(dict.fromkeys(recollect.list_content_words(question)))
    arguments = json.dumps(
        {"mode": "search", "query": words, "limit": MAX_RESULTS}, ensure_ascii=False
    )
    call = {
        "id": f"{CALL_ID_PREFIX}{number}",
        "type": "function",
        "function": {"name": tool, "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def is_result(message: Message) -> bool:
    """Return whether the message is what a look-up found."""
    return message.get("role") == "tool" and str(message.get("tool_call_id", "")).startswith(
        CALL_ID_PREFIX
    )


def find_answer(question: str, results: Sequence[Message]) -> str | None:
    """Return the answer that the results hold; None if they hold none."""
    quotes = [
        line.strip()
        for result in results
        for line in str(result["content"]).splitlines()
        if line.startswith(QUOTE_INDENT)
    ]
    statement = recollect.find_answer(question, quotes)
    return None if statement is None else f"I looked it up: {statement.text}"
