"""Write the body of a request with memory's texts and the tail of its prompt.

The texts are a block behind the client's `system`, or in the layout `merged` the end of a `system`
that is a string. In front of the tail stand the steps that loaded tools. The first message must be
the user's: where it is not, the hint is. It is so too where system messages are kept, which follow
the first message of the user: what the request asks stays the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw

from om_proxy.memory.prompt.layout import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import BrokenPrompt, Request
from om_proxy.wire.apis.chat.layout import JSON_EMPTY_LINE, write_json_text, write_message
from om_proxy.wire.apis.messages.elements import USER, read_element
from om_proxy.wire.apis.messages.kept import list_kept_system_messages, list_loaded_steps
from om_proxy.wire.apis.messages.marks import MARK, list_marks, write_mark
from om_proxy.wire.apis.messages.messages_request import get_units
from om_proxy.wire.apis.messages.prompt_messages import check_steps, join_units, read_units
from om_proxy.wire.apis.request_members import (
    UNSET_VALUES,
    join_list,
    replace_members,
    split_members,
)

MAX_MARKS = 4  # Anthropic refuses more

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
