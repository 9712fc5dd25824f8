"""What real servers refuse. Each rule names where people have met it.

A check reads the body of a request, and returns the server's complaint, or None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Message = Mapping[str, Any]
Body = Mapping[str, Any]

GITHUB = "https://github.com/"
SYSTEM_ROLES = ("system", "developer")
CHARS_A_TOKEN = 4


@dataclass(frozen=True)
class Rule:
    words: str  # as the page says it
    source: str
    check: Callable[[Body], str | None]
    status: int = 400


def assistants(body: Body) -> list[tuple[int, Message]]:
    return [(i, m) for i, m in enumerate(body["messages"]) if m["role"] == "assistant"]


# ── calls and results ─────────────────────────────────────────────────────────────────────────────


def _check_pairs(body: Body) -> str | None:
    waiting: list[str] = []
    for i, message in enumerate(body["messages"]):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"messages[{i}]: role 'tool' must be a response to a preceding 'tool_calls'"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"messages[{i}]: tool_call_ids did not have response messages: {waiting}"
        waiting = [call.get("id") for call in message.get("tool_calls") or ()]
    return f"tool_call_ids did not have response messages: {waiting}" if waiting else None


PAIRS = Rule(
    "a tool's result without its call, a call without its result",
    GITHUB + "microsoft/autogen/issues/3178",
    _check_pairs,
)


def _check_call_ids(body: Body) -> str | None:
    ids = [c.get("id", "") for _, m in assistants(body) for c in m.get("tool_calls") or ()]
    bad = [id_ for id_ in ids if not re.fullmatch("[a-zA-Z0-9]{9}", id_)]
    return f"Tool call id was {bad[0]} but must be a-z, A-Z, 0-9, length of 9" if bad else None


NINE_CHARS = Rule(
    "a call's id that has not nine letters and digits",
    GITHUB + "anomalyco/opencode/issues/1680",
    _check_call_ids,
)


ALLOWED_AFTER = {
    "system": ("system", "user", "assistant"),
    "user": ("system", "user", "assistant"),
    "assistant": ("user", "assistant", "tool"),
    "tool": ("assistant", "tool"),
}


def _check_order(body: Body) -> str | None:
    messages = body["messages"]
    for before, after in pairwise(message["role"] for message in messages):
        if after not in ALLOWED_AFTER[before]:
            return f"Unexpected role '{after}' after role '{before}'"
    if messages[-1]["role"] not in ("user", "tool") and not messages[-1].get("prefix"):
        return "Expected last role User or Tool (or Assistant with prefix True) for serving"
    return None


MISTRAL_ORDER = Rule(
    "a user's message right after a tool's result, a system message behind a reply",
    GITHUB + "mistralai/mistral-common/blob/main/src/mistral_common/protocol/instruct/validator.py",
    _check_order,
)


def refuse_tools(words: str, source: str, complaint: str, status: int) -> Rule:
    return Rule(words, source, lambda body: complaint if body.get("tools") else None, status)


CALLS = Rule(
    "calls in a message, though it takes tools",
    GITHUB + "anomalyco/opencode/issues/1908",
    lambda body: (
        "Internal Server Error" if any(m.get("tool_calls") for _, m in assistants(body)) else None
    ),
    500,
)


# ── who speaks ────────────────────────────────────────────────────────────────────────────────────


def _check_system(body: Body) -> str | None:
    late = any(m["role"] in SYSTEM_ROLES for m in body["messages"][1:])
    return "System message must be at the beginning." if late else None


def refuse_late_system(source: str, status: int = 400) -> Rule:
    return Rule("a second system message", source, _check_system, status)


NO_SYSTEM = Rule(
    "any system message",
    GITHUB + "huggingface/chat-ui/issues/1386",
    lambda body: (
        "System role not supported"
        if any(m["role"] in SYSTEM_ROLES for m in body["messages"])
        else None
    ),
)


def _check_turns(body: Body) -> str | None:
    spoken = [m["role"] for m in body["messages"] if m["role"] not in SYSTEM_ROLES]
    is_even = all(role == ("user", "assistant")[i % 2] for i, role in enumerate(spoken))
    words = "Conversation roles must alternate user/assistant/user/assistant/..."
    return None if is_even else words


ALTERNATE = Rule(
    "two messages of one speaker in a row, or the assistant's first",
    GITHUB + "vllm-project/vllm/issues/6862",
    _check_turns,
)


# ── members of a reply that comes back ────────────────────────────────────────────────────────────


def _check_null(body: Body) -> str | None:
    for i, message in assistants(body):
        if message.get("content") is None and not message.get("tool_calls"):
            return f"messages.[{i}].content: expected a string, got null"
    return None


def refuse_null(source: str) -> Rule:
    return Rule("`null` for content without calls", source, _check_null)


def _check_empty(body: Body) -> str | None:
    for _, message in assistants(body):
        if not (read_text(message).strip() or message.get("tool_calls")):
            return "assistant messages must include non-empty content or tool_calls"
    return None


def refuse_empty(source: str) -> Rule:
    return Rule("no text, or an empty one, without calls", source, _check_empty)


def read_text(message: Message) -> str:
    """Return the texts of a message, without its thoughts."""
    content = message.get("content")
    parts: Sequence[Any] = content if isinstance(content, list) else [{"text": content or ""}]
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def refuse_members(names: Sequence[str], source: str, status: int = 400) -> Rule:
    """Refuse an assistant's message with one of these members."""

    def check(body: Body) -> str | None:
        for i, message in assistants(body):
            if found := [name for name in names if name in message]:
                return f"'messages.{i}' : property '{found[0]}' is unsupported"
        return None

    return Rule(f"{', '.join(f'`{name}`' for name in names)} of a reply", source, check, status)


def _check_marks(body: Body) -> str | None:
    marks = sum(
        "cache_control" in part
        for message in body["messages"]
        for part in (message, *(message["content"] if isinstance(message["content"], list) else ()))
    )
    words = "A maximum of 4 blocks with cache_control may be provided"
    return f"{words}. Found {marks}." if marks > 4 else None


FOUR_MARKS = Rule(
    "more than four cache marks", GITHUB + "maximhq/bifrost/issues/6692", _check_marks
)


def _check_thoughts(body: Body) -> str | None:
    for _, message in assistants(body):
        parts = message["content"] if isinstance(message["content"], list) else []
        places = [i for i, part in enumerate(parts) if part.get("type") == "thinking"]
        if places not in ([], [0]):
            return f"Expected at most one leading ThinkChunk, got {len(places)}"
    return None


ONE_THOUGHT = Rule(
    "two thoughts in one content, or one that is not at its beginning",
    GITHUB + "earendil-works/pi/issues/9674",
    _check_thoughts,
)


def _check_text_and_thought(body: Body) -> str | None:
    for _, message in assistants(body):
        if message.get("tool_calls") and message.get("content") and "reasoning_content" in message:
            return (
                "Error rendering prompt with jinja template: Cannot pass both content and thinking "
                "in an assistant message with tool calls!"
            )
    return None


TEXT_OR_THOUGHT = Rule(
    "text and thoughts beside calls",
    GITHUB + "lmstudio-ai/lmstudio-bug-tracker/issues/842",
    _check_text_and_thought,
)


# ── beside the messages ───────────────────────────────────────────────────────────────────────────


def limit_output(context_tokens: int, words: str, source: str, status: int = 400) -> Rule:
    """Refuse an output limit that does not fit into the context beside the prompt."""

    def check(body: Body) -> str | None:
        asked = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        prompt = len(str(body["messages"])) // CHARS_A_TOKEN
        if prompt + asked <= context_tokens:
            return None
        return words.format(context=context_tokens, prompt=prompt, asked=asked)

    return Rule(f"more output than its context of {context_tokens} tokens", source, check, status)


def _check_new_limit(body: Body) -> str | None:
    if "max_tokens" not in body:
        return None
    return (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )


NEW_LIMIT = Rule("`max_tokens`", GITHUB + "anomalyco/opencode/issues/37964", _check_new_limit)
DEFAULT_TEMPERATURE = Rule(
    "any temperature but 1",
    GITHUB + "holoviz/lumen/pull/1087",
    lambda body: (
        "Unsupported value: 'temperature' does not support this value with this model."
        if body.get("temperature", 1) != 1
        else None
    ),
)
