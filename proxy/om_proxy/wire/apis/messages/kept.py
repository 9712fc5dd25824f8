"""Find the messages of a request that stay in its prompt though their place is covered.

- A system message is an instruction, which no note replaces.
- A step that loaded tools: without it, the server knows them no more.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Set
from typing import Any

from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.messages.elements import (
    ASSISTANT,
    REFERENCE_WORD,
    SYSTEM_WORD,
    cut_element,
    list_elements_with,
    read_element,
    write_message,
)
from om_proxy.wire.apis.messages.reading import is_result, list_blocks
from om_proxy.wire.apis.units import Units

MAX_KEPT_SYSTEM_MESSAGES = 32
MAX_LOADED_STEPS = 16
UNTIL_NEXT_USER_MESSAGE = "next_user_message"

REFERENCE = "tool_reference"
SEARCH_RESULT = "tool_search_tool_result"

_DIGITS = re.compile(r"\d+")


def list_kept_system_messages(sent: Units, in_tail: Set[int]) -> list[bytes]:
    """List the system messages that are not in the tail, in order; of equal texts the newest."""
    kept: dict[str, bytes] = {}
    for element in reversed(list_elements_with(sent, SYSTEM_WORD)):
        if len(kept) == MAX_KEPT_SYSTEM_MESSAGES:
            break
        raw = sent.elements[element]
        message = parse_object(raw) or {}
        if message.get("role") != "system" or _is_in_tail(element, sent, in_tail):
            continue
        if message.get("clear_at") != UNTIL_NEXT_USER_MESSAGE:
            kept.setdefault(_read_text_without_digits(message), raw)
    return list(reversed(kept.values()))


def list_loaded_steps(sent: Units, in_tail: Set[int]) -> list[bytes]:
    """List the messages of the steps that loaded tools and are not in the tail, in order: for each
    tool the newest step."""
    steps: dict[int, tuple[bytes, ...]] = {}
    loaded: set[str] = set()
    for element in reversed(list_elements_with(sent, REFERENCE_WORD)):
        message = parse_object(sent.elements[element]) or {}
        names = set(_list_loaded_tools(message))
        # a client's search is answered by the user, a server's in the reply itself
        caller = element - (message.get("role") == "user")
        if names - loaded and _is_covered_reply(caller, sent, in_tail):
            steps[caller] = (sent.elements[caller], *_list_results(caller + 1, sent))
        loaded |= names
        if len(steps) == MAX_LOADED_STEPS:
            break
    return [raw for _, messages in sorted(steps.items()) for raw in messages]


def _is_covered_reply(element: int, sent: Units, in_tail: Set[int]) -> bool:
    is_reply = element >= 0 and read_element(sent.elements[element]).role == ASSISTANT
    return is_reply and not _is_in_tail(element, sent, in_tail)


def _is_in_tail(element: int, sent: Units, in_tail: Set[int]) -> bool:
    first = bisect_left(sent.starts, element)
    return any(unit in in_tail for unit in range(first, first + sent.count_parts(element)))


def _read_text_without_digits(message: Mapping[str, Any]) -> str:
    blocks = list_blocks(message.get("content"))
    texts = [str(block.get("text")) for block in blocks if isinstance(block, dict)]
    return _DIGITS.sub("", "\n".join(texts))


def _list_loaded_tools(message: Mapping[str, Any]) -> Iterator[str]:
    for block in list_blocks(message.get("content")):
        found: Any = None
        if is_result(block):
            found = block.get("content")
        elif isinstance(block, dict) and block.get("type") == SEARCH_RESULT:
            content = block.get("content")
            found = content.get("tool_references") if isinstance(content, dict) else None
        for item in list_blocks(found):
            if isinstance(item, dict) and item.get("type") == REFERENCE:
                yield str(item.get("tool_name"))


def _list_results(element: int, sent: Units) -> Iterator[bytes]:
    """List the results in an element as one message, as they were sent: it may hold more."""
    if element >= len(sent.elements):
        return
    raw = sent.elements[element]
    units = cut_element(raw)
    results = [unit for unit in units if len(unit) == 1 and is_result(parse_object(unit[0]))]
    if len(results) == len(units):
        yield raw
    elif results:
        yield write_message(b'"user"', [block for unit in results for block in unit])
