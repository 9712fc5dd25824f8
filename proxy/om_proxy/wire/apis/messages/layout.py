"""Write the body of a request with memory's texts and the tail of its prompt.

The texts are a block behind the client's `system`, or in the layout `merged` the end of a `system`
that is a string. In front of the tail stand the steps that loaded tools. The first message must be
the user's: where it is not, the hint is. It is so too where system messages are kept, which follow
the first message of the user: what the request asks stays the last.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from msgspec import Raw, Struct

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece, list_own_ids
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
    remove_marks,
    write_element,
    write_mark,
)
from om_proxy.wire.apis.messages.reading import is_result, list_blocks, read_chat_message
from om_proxy.wire.apis.messages.writing import write_chat_message, write_value
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
# a message must not end in one of them; the first is that of a text without words
UNFOLLOWED_KINDS = frozenset({"", "thinking", "redacted_thinking"})

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
    messages = _join_units(_read_prompt_units(tail, sent, has_tools=request.offers_tools))
    _check_steps(messages, sent)
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
        if message.get("clear_at") != "next_user_message":
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
        elif isinstance(block, dict) and block.get("type") == "tool_search_tool_result":
            content = block.get("content")
            found = content.get("tool_references") if isinstance(content, dict) else None
        for item in list_blocks(found):
            if isinstance(item, dict) and item.get("type") == "tool_reference":
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


# ── the tail's units as messages ──────────────────────────────────────────────────────────────────
#
# Each result stands in the message right behind its call. A message of the client whose units are all
# there goes out as the client sent it. Of one that is there in part each block keeps its bytes.
# Neighbouring results become one message, where the store gives any of them.


class PromptUnit(Struct, frozen=True):
    """A unit of the prompt. `element`: of the client's list; -1: it comes from the store."""

    role: str
    calls: tuple[str, ...] = ()
    answers: str | None = None
    element: int = -1
    part: int = 0  # its number among the units of its element
    blocks: tuple[bytes, ...] = ()  # of one from the store


class PromptMessage:
    """Units that go out as one message."""

    def __init__(self, unit: PromptUnit) -> None:
        self.units = [unit]

    @property
    def role(self) -> str:
        return self.units[0].role

    @property
    def calls(self) -> dict[str, int]:
        """The ids of its calls, each with the element."""
        return {call_id: unit.element for unit in self.units for call_id in unit.calls}

    @property
    def answers(self) -> dict[str, int]:
        """The ids of the calls that it answers, each with the element."""
        return {unit.answers: unit.element for unit in self.units if unit.answers is not None}

    def takes(self, unit: PromptUnit) -> bool:
        """Return whether the unit belongs into this message."""
        last = self.units[-1]
        if unit.element >= 0 and last.element >= 0:
            return unit.element == last.element
        return unit.answers is not None and last.answers is not None

    def write(self, sent: Units) -> bytes:
        first = self.units[0]
        is_sent = first.element >= 0 and all(u.element == first.element for u in self.units)
        parts = [unit.part for unit in self.units]
        if is_sent and parts == list(range(sent.count_parts(first.element))):
            return sent.elements[first.element]
        results_first = sorted(self.units, key=lambda unit: unit.answers is None)
        return write_element(write_value(self.role), list(_list_blocks(results_first, sent)))


def _list_blocks(units: Iterable[PromptUnit], sent: Units) -> Iterator[bytes]:
    elements: dict[int, list[tuple[bytes, ...]]] = {}  # each is cut once: it may hold thousands
    for unit in units:
        if unit.element >= 0 and unit.element not in elements:
            elements[unit.element] = cut_element(sent.elements[unit.element])
        yield from elements[unit.element][unit.part] if unit.element >= 0 else unit.blocks


def _join_units(units: Iterable[PromptUnit]) -> list[PromptMessage]:
    messages: list[PromptMessage] = []
    for unit in units:
        if messages and messages[-1].takes(unit):
            messages[-1].units.append(unit)
        else:
            messages.append(PromptMessage(unit))
    return messages


def _read_prompt_units(
    tail: Sequence[Piece], sent: Units, *, has_tools: bool
) -> Iterator[PromptUnit]:
    """Read the units of the tail. One of which nothing is left is left out."""
    own_ids = list_own_ids(tail, "messages")
    for piece in tail:
        role = "user" if piece.role == "tool" else piece.role
        if piece.sent:
            element, part = sent.find_elements(piece.index).start, sent.find_part(piece.index)
            yield PromptUnit(role, piece.calls, piece.answers, element, part)
            continue
        is_step = bool(piece.calls) or piece.answers is not None
        if piece.api == "chat" or (is_step and not has_tools):
            read = parse_object if piece.api == "chat" else read_chat_message
            message = read(piece.raw) or {}
            written = write_chat_message(message, has_tools=has_tools, own_ids=own_ids)
            calls, answers = (piece.calls, piece.answers) if written.is_step else ((), None)
            unit = PromptUnit(written.role, calls, answers, blocks=written.blocks)
        else:
            blocks = tuple(_list_stored_blocks(piece.raw))
            unit = PromptUnit(role, piece.calls, piece.answers, blocks=blocks)
        if unit.blocks:
            yield unit


def _list_stored_blocks(raw: bytes) -> list[bytes]:
    """List the blocks but those that this API refuses, though its models write some: texts without
    words, and thoughts that nothing follows. An imported block may have marks."""
    blocks = [remove_marks(block) for unit in cut_element(raw) for block in unit]
    kinds = [_read_kind(block) for block in blocks]
    last = max((i for i, kind in enumerate(kinds) if kind not in UNFOLLOWED_KINDS), default=-1)
    return [block for block, kind in zip(blocks[: last + 1], kinds, strict=False) if kind]


def _read_kind(block: bytes) -> str:
    """Return the type of a block; empty for a text without words."""
    read = parse_object(block) or {}
    kind = str(read.get("type"))
    return "" if kind == "text" and not str(read.get("text") or "").strip() else kind


def _check_steps(messages: Sequence[PromptMessage], sent: Units) -> None:
    """Raise BrokenPrompt if a result is not right behind its call, or a call has no result there,
    unless the client's own request has it so."""
    for before, after in pairwise((None, *messages, None)):
        calls, answers = (before.calls if before else {}), (after.answers if after else {})
        alone = {call_id: calls[call_id] for call_id in calls.keys() - answers.keys()}
        orphans = {call_id: answers[call_id] for call_id in answers.keys() - calls.keys()}
        if _is_fault(alone, 1, sent) or _is_fault(orphans, -1, sent):
            raise BrokenPrompt("a call without its result, or a result without its call")


def _is_fault(elements: Mapping[str, int], step: int, sent: Units) -> bool:
    """Return whether a counterpart is missing by our doing: its unit is not the client's, or the
    neighbour of its element has it. `elements`: by id of the call. `step`: to that neighbour."""
    for element in set(elements.values()):
        neighbour = element + step
        if element < 0:
            return True
        if 0 <= neighbour < len(sent.elements):
            message = parse_object(sent.elements[neighbour]) or {}
            blocks = [b for b in list_blocks(message.get("content")) if isinstance(b, dict)]
            named = [b.get("tool_use_id" if step > 0 else "id") for b in blocks]
            if any(elements.get(str(call_id)) == element for call_id in named):
                return True
    return False
