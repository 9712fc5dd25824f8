"""Put memory's texts into the `input`, or at the end of the instructions.

The order is: what leads, kept items, the block, the hint, loaded tools, the tail.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from typing import Any

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece, has_steps, list_own_ids
from om_proxy.wire.apis.api import BrokenPrompt, Request
from om_proxy.wire.apis.chat.layout import (
    JSON_EMPTY_LINE,
    add_text,
    write_json_text,
    write_message,
)
from om_proxy.wire.apis.json_text import parse_object, write_canonical
from om_proxy.wire.apis.request_members import join_list, replace_members, split_members
from om_proxy.wire.apis.responses.items import (
    SEARCH_TYPE,
    Head,
    InputUnits,
    get_units,
    is_no_unit,
    is_text,
    read_head,
    write_text_item,
)
from om_proxy.wire.apis.responses.reading import read_chat_message
from om_proxy.wire.apis.responses.writing import write_stored

MAX_KEPT_INSTRUCTIONS = 32
MAX_KEPT_SEARCHES = 16
PASSING = "next_user_message"  # the `clear_at` of an instruction that is not kept

_DIGITS = re.compile(rb"\d+")


def rewrite_body(
    request: Request, block: str, hint: str, tail: Sequence[Piece], layout: Layout
) -> bytes:
    """Return the request's body with memory's texts, and this tail in place of its units. Every
    other byte stays. Raise BrokenPrompt for one that would break a rule of the API."""
    units = get_units(request)
    sent = {piece.index for piece in tail if piece.sent}
    shown = _write_tail(units, tail)
    block_json, hint_json = write_json_text(block), write_json_text(hint)
    starts_midway = bool(tail) and tail[0].role == "assistant"
    if layout != "blocks" and not (layout == "merged" and starts_midway):
        block_json, hint_json = _join_texts(block_json, hint_json), b""
    instructions, leading, blocks = _place_block(request, units, block_json, layout)
    items = (
        *leading,
        *list_kept(units, sent),
        *blocks,
        *([write_message("user", hint_json)] if hint_json else ()),
        *list_loaded(units, sent),
        *shown,
    )
    stays_text = units.text is not None and list(items) == [write_text_item(units.text)]
    written = units.text if stays_text else join_list(items)
    added = {"instructions": instructions} if instructions else {}
    # the server's past would come before the prompt, which shows it
    past = {} if request.previous is None else {"previous_response_id": None}
    return replace_members(request, {"input": written, **added, **past})


def _place_block(
    request: Request, units: InputUnits, block_json: bytes, layout: Layout
) -> tuple[bytes | None, Sequence[bytes], Sequence[bytes]]:
    """Return the new member `instructions`, if it changes; the items that lead; and an item with
    the block, if it is one."""
    leading = units.leading
    if not block_json:
        return None, leading, ()
    if layout == "merged":
        member = bytes(split_members(request).get("instructions", b"null"))
        if is_text(member):
            return member[:-1] + JSON_EMPTY_LINE + block_json + b'"', leading, ()
        if extended := _extend_leading(leading, block_json):
            return None, extended, ()
        if member in (b"null", b'""') and not request.instructions:
            return b'"' + block_json + b'"', leading, ()
    roles = [read_head(raw).role for raw in leading if not is_no_unit(raw)]
    role = "user" if layout == "user" else (roles[-1] if roles else None) or "developer"
    return None, leading, (write_message(role, block_json),)


def _extend_leading(leading: Sequence[bytes], block_json: bytes) -> Sequence[bytes] | None:
    """Return the items that lead, with the block at the end of the last instruction. None: there is
    none with a content that takes it."""
    for place in reversed(range(len(leading))):
        if not is_no_unit(leading[place]):
            part_type = b"input_text"
            item = add_text(leading[place], block_json, at_end=True, part_type=part_type)
            return (*leading[:place], item, *leading[place + 1 :]) if item else None
    return None


def _write_tail(units: InputUnits, tail: Sequence[Piece]) -> list[bytes]:
    """Return the items of the tail: the client's own as it sent them, the others from the store."""
    items: list[bytes] = []
    own_ids = list_own_ids(tail, "responses")
    for piece in tail:
        if not piece.sent:
            items += write_stored(piece.raw, piece.api, own_ids, is_held=piece.is_held)
        elif units.text is not None:
            items.append(write_text_item(units.text))
        else:
            items += list_items(units, piece.index)
    if has_steps([piece for piece in tail if not piece.sent]):
        _check_steps(items, tail)
    return items


def _check_steps(items: Sequence[bytes], tail: Sequence[Piece]) -> None:
    """Raise BrokenPrompt for a call without its result, or a result without its call, unless the
    client shows it so."""
    heads = [head for head in map(read_head, items) if head.call_id and not head.is_server_run]
    answered = {head.call_id for head in heads if head.is_result}
    called = {head.call_id for head in heads if not head.is_result}
    stored = {call for piece in tail if not piece.sent for call in piece.calls}
    shown = {call for piece in tail if piece.sent for call in (*piece.calls, piece.answers)}
    if (called ^ answered) - (shown - stored):
        raise BrokenPrompt("a call without its result, or a result without its call")


def _join_texts(block_json: bytes, hint_json: bytes) -> bytes:
    return JSON_EMPTY_LINE.join(filter(None, (block_json, hint_json)))


# ── items that stay though memory covers their place ──────────────────────────────────────────────
#
# Later instructions, offers of tools, and the tools that a search has loaded.


def list_kept(units: InputUnits, sent: Set[int]) -> list[bytes]:
    """Return the covered items that are kept, in order. `sent`: the units that the tail shows
    itself. Of equal instructions, digits aside, the newest is kept, and of equal offers the
    first."""
    covered = _list_covered(units, sent)
    newest: dict[bytes, int] = {}
    for place, head in covered.items():
        key = _read_key(units.elements[place]) if head.is_instruction else None
        if key is not None:
            newest[key] = place
    instructions = sorted(newest.values())[-MAX_KEPT_INSTRUCTIONS:]
    offered = [place for place in reversed(covered) if not covered[place].is_unit]
    offers = {units.elements[place]: place for place in offered}
    return [units.elements[place] for place in sorted((*instructions, *offers.values()))]


def _read_key(raw: bytes) -> bytes | None:
    """Return what an instruction says, without its digits; None if it is not kept."""
    message = read_chat_message(b"[" + raw + b"]")
    if b'"clear_at"' in raw and _read_object(raw).get("clear_at") == PASSING:
        return None
    return _DIGITS.sub(b"", write_canonical([message["role"], message["content"]]))


def list_loaded(units: InputUnits, sent: Set[int]) -> list[bytes]:
    """Return the items of the covered searches that loaded tools, each with its whole step and all
    its results; for each tool the newest."""
    known: set[str] = set()
    kept: set[range] = set()
    for place, head in reversed(_list_covered(units, sent).items()):
        if head.type != SEARCH_TYPE:
            continue
        names = _read_tool_names(units.elements[place])
        step = _find_whole_step(units, _unit_of(units, place), sent)
        if step and not names <= known:
            known |= names
            kept.add(step)
        if len(kept) >= MAX_KEPT_SEARCHES:
            break
    return [
        raw
        for step in sorted(kept, key=lambda step: step.start)
        for index in step
        for raw in list_items(units, index)
        if read_head(raw).is_unit
    ]


def list_items(units: InputUnits, index: int) -> Sequence[bytes]:
    """Return the items of a unit as sent, and those behind it that are part of none."""
    places = units.find_elements(index)
    return units.elements[places.start : places.stop]


def _list_covered(units: InputUnits, sent: Set[int]) -> dict[int, Head]:
    """List the marked items that the tail does not show, by their places."""
    covered = [place for place in units.marked if _unit_of(units, place) not in sent]
    return {place: read_head(units.elements[place]) for place in covered}


def _unit_of(units: InputUnits, place: int) -> int:
    return bisect_right(units.starts, place) - 1


def _read_tool_names(raw: bytes) -> set[str]:
    """Return the names of the tools that a search has loaded."""
    tools = _read_object(raw).get("tools")
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return {name for tool in named if isinstance(name := tool.get("name"), str)}


def _read_object(raw: bytes) -> Mapping[str, Any]:
    return parse_object(raw) or {}


def _find_whole_step(units: InputUnits, index: int, sent: Set[int]) -> range | None:
    """Return the units of the step that holds this one, from its calls to their last result. None:
    a result is missing, or the tail shows a part."""
    start = index
    while start and read_chat_message(units[start])["role"] == "tool":
        start -= 1
    calls = {call["id"] for call in read_chat_message(units[start]).get("tool_calls", ())}
    stop = start + 1
    while calls and stop < len(units):
        message = read_chat_message(units[stop])
        if message["role"] != "tool" or message["tool_call_id"] not in calls:
            break
        calls.discard(message["tool_call_id"])
        stop += 1
    step = range(start, stop)
    is_whole = not calls and index in step and sent.isdisjoint(step)
    return step if is_whole else None
