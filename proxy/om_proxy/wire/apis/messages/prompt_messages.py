"""Put the units of a prompt into messages: each result in the message right behind its call.

A message of the client whose units are all there goes out as the client sent it. Of one that is
there in part each block keeps its bytes. Neighbouring results become one message, where the store
gives any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from om_proxy.memory.prompt.tail import Piece, list_own_ids
from om_proxy.wire.apis.api import BrokenPrompt
from om_proxy.wire.apis.json_text import parse_object
from om_proxy.wire.apis.messages.elements import cut_element, remove_marks, write_element
from om_proxy.wire.apis.messages.reading import list_blocks, read_chat_message
from om_proxy.wire.apis.messages.writing import write_chat_message, write_value
from om_proxy.wire.apis.split import Units

# a message must not end in one of them; the first is that of a text without words
UNFOLLOWED_KINDS = frozenset({"", "thinking", "redacted_thinking"})


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


def join_units(units: Iterable[PromptUnit]) -> list[PromptMessage]:
    messages: list[PromptMessage] = []
    for unit in units:
        if messages and messages[-1].takes(unit):
            messages[-1].units.append(unit)
        else:
            messages.append(PromptMessage(unit))
    return messages


def read_units(tail: Sequence[Piece], sent: Units, *, has_tools: bool) -> Iterator[PromptUnit]:
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


def check_steps(messages: Sequence[PromptMessage], sent: Units) -> None:
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
