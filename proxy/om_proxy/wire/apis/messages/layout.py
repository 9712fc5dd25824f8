"""Write the body of a request with memory's texts and the tail of its prompt.

The texts are a block behind the client's `system`, or in the layout `merged` the end of a `system`
that is a string. In front of the tail stand the steps that loaded tools. The first message must be
the user's: where it is not, the hint is. It is so too where system messages are kept, which follow
the first message of the user: what the request asks stays the last.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Raw

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import BrokenPrompt, Request
from om_proxy.wire.apis.chat.layout import JSON_EMPTY_LINE, write_json_text, write_message
from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.messages.elements import (
    ASSISTANT,
    MARK,
    REFERENCE_WORD,
    SYSTEM_WORD,
    USER,
    cut_element,
    get_units,
    list_elements_with,
    list_marks,
    read_element,
    write_element,
    write_mark,
)
from om_proxy.wire.apis.messages.prompt_messages import check_steps, join_units, read_units
from om_proxy.wire.apis.messages.reading import is_result, list_blocks
from om_proxy.wire.apis.request_members import (
    UNSET_VALUES,
    join_list,
    replace_members,
    split_members,
)
from om_proxy.wire.apis.split import Units

MAX_MARKS = 4  # Anthropic refuses more
MAX_KEPT_SYSTEM_MESSAGES = 32
MAX_LOADED_STEPS = 16
UNTIL_NEXT_USER_MESSAGE = "next_user_message"
REFERENCE = "tool_reference"
SEARCH_RESULT = "tool_search_tool_result"

_DIGITS = re.compile(r"\d+")
_NULL = Raw(b"null")


def rewrite_body(
    request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
) -> bytes:
    """Return the request's body with this prompt. Raise BrokenPrompt for one that would break a
    rule of the API."""
    sent = get_units(request)
    in_tail = {piece.index for piece in tail if piece.sent}
    kept = list_kept_system_messages(sent, in_tail)
    messages = [*list_loaded_steps(sent, in_tail), *_write_tail(request, tail)]
    if hint and (kept or not _is_users(messages[:1])):
        messages.insert(0, write_message("user", write_json_text(hint)))
        hint = ""
    if not _is_users(messages[:1]) and _is_users(sent.elements[:1]):
        raise BrokenPrompt("the first message is not the user's")
    messages[1:1] = kept
    values: dict[str, bytes | None] = {"messages": join_list(messages)}
    if text_json := JSON_EMPTY_LINE.join(map(write_json_text, filter(None, (block, hint)))):
        members = split_members(request)
        mark = _choose_mark(members, messages)
        values["system"] = _write_system(members.get("system", _NULL), text_json, mark, layout)
    return replace_members(request, values)


def _write_tail(request: Request, tail: Sequence[Piece]) -> list[bytes]:
    sent = get_units(request)
    messages = join_units(read_units(tail, sent, has_tools=request.offers_tools))
    check_steps(messages, sent)
    return [message.write(sent) for message in messages]


def _is_users(messages: Sequence[bytes]) -> bool:
    return bool(messages) and read_element(messages[0]).role == USER


def _write_system(system: Raw, text_json: bytes, mark: bytes | None, layout: Layout) -> bytes:
    """Return the member with the text behind what the client says. A string has no mark."""
    own = b"" if bytes(system) in UNSET_VALUES else bytes(system)
    if own and own[:1] not in (b"[", b'"'):
        raise BrokenPrompt("a `system` that is neither a text nor a list")
    block = b'{"type":"text","text":"' + text_json + b'"'
    block += b',"%s":%s}' % (MARK.encode(), mark) if mark else b"}"
    if own.startswith(b"["):
        return join_list([*filter(None, (own[1:-1].strip(),)), block])
    if layout == "blocks":
        return join_list([b'{"type":"text","text":' + own + b"}", block] if own else [block])
    return b'"' + JSON_EMPTY_LINE.join(filter(None, (own[1:-1], text_json))) + b'"'


def _choose_mark(members: Mapping[str, Raw], messages: Sequence[bytes]) -> bytes | None:
    """Return the mark of our block; None for a client that marks nothing, or has no mark left. It
    lasts as long as the client's last one in front of it, else as its first one behind it."""
    before = [
        mark for name in ("tools", "system") for mark in _list_marks(members.get(name, _NULL))
    ]
    own = Raw(b'{"%s":%s}' % (MARK.encode(), members.get(MARK, _NULL)))
    behind = [mark for raw in (*messages, own) for mark in list_marks(raw)]
    if not 0 < len(before) + len(behind) < MAX_MARKS:
        return None
    return write_mark(before[-1] if before else behind[0])


def _list_marks(value: Raw) -> list[bytes]:
    return list(list_marks(b'{"content":' + bytes(value) + b"}"))


# ── messages that stay though their place is covered ──────────────────────────────────────────────
#
# - A system message is an instruction, which no note replaces.
# - A step that loaded tools: without it, the server knows them no more.


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
        yield write_element(b'"user"', [block for unit in results for block in unit])
