"""Choose the items that stay in the prompt though memory covers their place: later instructions,
offers of tools, and the tools that a search has loaded."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from typing import Any

from om_proxy.wire.apis.json_text import parse_object, write_canonical
from om_proxy.wire.apis.responses.items import SEARCH_TYPE, Head, read_head
from om_proxy.wire.apis.responses.reading import read_chat_message
from om_proxy.wire.apis.responses.request import InputUnits

MAX_KEPT_INSTRUCTIONS = 32
MAX_KEPT_SEARCHES = 16
PASSING = "next_user_message"  # the `clear_at` of an instruction that is not kept

_DIGITS = re.compile(rb"\d+")


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
