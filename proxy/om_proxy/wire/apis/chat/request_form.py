"""Write a stored message in the form of a request, where memory puts it into a prompt.

What a server says is not always what it takes back. A reply is stored as it came; what goes back
upstream differs in this:

- only members that requests have: not the remarks of an answer (`annotations`, `refusal`), and not
  its reasoning but in the members that some servers want back, with their signatures;
- no reply without a text and without calls: it says nothing, and many servers refuse it. What was
  refused or spoken stands for a text;
- blocks that a stream brought in pieces are whole, thinking in a content is one part at its
  beginning, a call has its arguments as a text of JSON, and no `index`;
- no cache marks: those of the client's own messages count, and servers take only a few.

Messages that the client sent in this request are not written here: they keep their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.wire.apis.chat.chat_message import view_parsed
from om_proxy.wire.apis.chat.plain_form import LEFT_OUT, has_text
from om_proxy.wire.apis.json_text import replace_lone_surrogates, write_json

CACHE_MARK = "cache_control"
# Thoughts that a server wants back: signed, or as DeepSeek asks for them. `reasoning` is not among
# them: a server that needs it back says `reasoning_details` too, and Groq refuses it.
THOUGHT_MEMBERS = (
    *("reasoning_content", "reasoning_details", "thinking_blocks"),
    *("extra_content", "reasoning_opaque", "reasoning_text"),
)
# of an assistant's message in a request
REQUEST_MEMBERS = frozenset(
    ("role", "name", "content", "tool_calls", "function_call", "audio", *THOUGHT_MEMBERS)
)
BLOCK_MEMBERS = ("reasoning_details", "thinking_blocks")
CALL_MEMBERS = ("tool_calls", "function_call")
THINKING_TYPES = frozenset(("thinking", "reasoning"))
# of a part of a content that an answer has, and a request does not
ANSWER_PART_MEMBERS = frozenset(("annotations", "logprobs", "index", CACHE_MARK))
# members of a block of which each piece brings a part
TEXT_MEMBERS = ("text", "summary", "thinking", "data")
# a block that has one of these is complete: more text begins the next block
SEALING_MEMBERS = ("signature", "data")
MAX_WRITTEN_BYTES = 8 * 2**20  # of the cached messages

Block = Mapping[str, Any]

NULL = Raw(b"null")
# `{"role":"assistant","content":"…"}` has so many quotes, if there is none in its text
USUAL_START, USUAL_QUOTES = b'{"role":"assistant","content":"', 8
BLANK_END = re.compile(rb'(?: |\\[nrt])*"}$')  # of such a message that says nothing

_members = msgspec.json.Decoder(dict[str, Raw])
_any = msgspec.json.Decoder()
_encode = msgspec.json.encode

# A stored message goes into many prompts.
_forms_by_raw: BoundedCache[bytes, bytes] = BoundedCache(max_bytes=MAX_WRITTEN_BYTES)
drop_request_forms = _forms_by_raw.clear


def write_request_form(raw: bytes) -> bytes:
    """Return the message in the form of a request: the very same bytes for most; LEFT_OUT for a
    reply that says nothing. What cannot be read stays as it is."""
    if raw.startswith(USUAL_START) and raw.count(b'"') == USUAL_QUOTES and raw.endswith(b'"}'):
        return LEFT_OUT if BLANK_END.match(raw, len(USUAL_START)) else raw
    written = _forms_by_raw.get(raw)
    if written is None:
        written = reshape_message(raw)
        size = len(raw) if written is raw else len(raw) + len(written)
        _forms_by_raw.put(raw, written, size)
    return written


def reshape_message(raw: bytes) -> bytes:
    """Return the message in the form of a request, and the very object where that is the same;
    LEFT_OUT for a reply that says nothing."""
    if b"assistant" not in raw and CACHE_MARK.encode() not in raw:
        return raw  # nobody escapes these words
    readable = replace_lone_surrogates(raw) or raw
    try:
        members = _members.decode(readable)
        reshape = _reshape_reply if _read(members, "role") == "assistant" else _drop_marks
        reshaped = reshape(members)
        if not reshaped:
            return LEFT_OUT
        return raw if reshaped == members else _encode(reshaped)
    except (ValueError, RecursionError, OverflowError):
        return raw


def _drop_marks(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return the members of a user's or tool's message without cache marks."""
    kept = {name: raw for name, raw in members.items() if name != CACHE_MARK}
    parts = _read(kept, "content")
    if isinstance(parts, list):
        unmarked = [_drop_members(part, (CACHE_MARK,)) for part in parts]
        if unmarked != parts:
            kept["content"] = _write(unmarked)
    return kept


def _reshape_reply(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return the members of a reply as a request has them; none if it says nothing."""
    reply = {
        name: raw
        for name, raw in members.items()
        if name in REQUEST_MEMBERS and (raw != NULL or name == "content")
    }
    for name in BLOCK_MEMBERS:
        if isinstance(blocks := _read(reply, name), list):
            joined = join_pieces(blocks)
            if joined != blocks:
                reply[name] = _write(joined)
    if isinstance(calls := _read(reply, "tool_calls"), list):
        if not calls:
            del reply["tool_calls"]
        elif (reshaped := [_reshape_call(call) for call in calls]) != calls:
            reply["tool_calls"] = _write(reshaped)
    is_spoken = "audio" in reply and _reshape_audio(reply)
    has_calls = any(name in reply for name in CALL_MEMBERS)
    if not has_calls and not is_spoken and not _has_text(reply):
        words = _find_words(members)
        # right behind its role
        return {"role": reply["role"], **reply, "content": words} if words else {}
    if bytes(reply.get("content", NULL)).startswith(b"["):
        _reshape_content(reply)
    return reply


def _has_text(reply: dict[str, Raw]) -> bool:
    return has_text(view_parsed({"content": _read(reply, "content")}))


def _find_words(members: dict[str, Raw]) -> Raw | None:
    """Return what a reply without content says: what it refused, or what it spoke."""
    audio = _read(members, "audio")
    spoken = audio.get("transcript") if isinstance(audio, dict) else None
    for words in (_read(members, "refusal"), spoken):
        if isinstance(words, str) and words.strip():
            return _write(words)
    return None


def _reshape_audio(reply: dict[str, Raw]) -> bool:
    """Leave the id of a spoken reply, by which its server knows it. Return False, and leave
    nothing, if there is none."""
    audio = _read(reply, "audio")
    if isinstance(audio, dict) and isinstance(audio.get("id"), str):
        if len(audio) > 1:
            reply["audio"] = _write({"id": audio["id"]})
        return True
    del reply["audio"]
    return False


def _reshape_content(reply: dict[str, Raw]) -> None:
    """Join the parts of a content that came in pieces, and put what was thought before what was
    said. Signed blocks keep their order."""
    parts = _any.decode(reply["content"])
    whole = [_drop_members(part, ANSWER_PART_MEMBERS) for part in join_pieces(parts)]
    thoughts = [part for part in whole if _is_thinking(part)]
    if thoughts and not any(part.get("signature") for part in thoughts):
        # without their indices, of one type: pieces of one block
        others = [part for part in whole if not _is_thinking(part)]
        whole = join_pieces(thoughts) + join_texts(others)
    if whole != parts:
        reply["content"] = _write(whole)


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in THINKING_TYPES


def _reshape_call(call: Any) -> Any:
    """Return a call as requests have it. Every other member stays, such as a signature."""
    if not isinstance(call, dict):
        return call
    reshaped = _drop_members(call, ("index", CACHE_MARK))
    function = call.get("function")
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        return reshaped
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "{}" if arguments is None else write_json(arguments)
    written = {**function, "arguments": arguments if arguments.strip() else "{}"}
    return {**reshaped, "type": "function", "function": written}


def _drop_members(value: Any, names: Any) -> Any:
    if not isinstance(value, dict) or value.keys().isdisjoint(names):
        return value
    return {name: inner for name, inner in value.items() if name not in names}


def _read(members: dict[str, Raw], name: str) -> Any:
    """Return a member's value; None if there is none."""
    return _any.decode(members[name]) if name in members else None


def _write(value: Any) -> Raw:
    return Raw(_encode(value))


# ── blocks that a stream brought in pieces, such as blocks of thought ─────────────────────────────
#
# A stream appends the pieces to a list: three pieces of one text and its signature are four objects
# there. A signed block must come back whole, and some servers take one block of thought only.


def join_pieces(pieces: list[Any]) -> list[Any]:
    """Return the blocks that these pieces make, in the order in which they began. A piece belongs to
    the block of its type and index; without an index, to the block right before it, unless it is a
    plain text."""
    blocks: list[Any] = []
    newest: dict[tuple[str, str], int] = {}
    for piece in pieces:
        if not isinstance(piece, dict):
            blocks.append(piece)
            continue
        key = (str(piece.get("type")), str(piece.get("index")))
        place = newest.get(key)
        if (
            place is not None
            and _can_reach(piece, is_last=place == len(blocks) - 1)
            and blocks[place].continues_with(piece)
        ):
            blocks[place].add(piece)
        else:
            newest[key] = len(blocks)
            blocks.append(_Block(piece))
    return [block.join() if isinstance(block, _Block) else block for block in blocks]


def _can_reach(piece: Block, *, is_last: bool) -> bool:
    return piece.get("index") is not None or (is_last and piece.get("type") != "text")


class _Block:
    """A block that is being put together. Its texts are joined once: it may have thousands."""

    __slots__ = ("_first", "_members", "_texts")

    def __init__(self, piece: Block) -> None:
        self._first: Block | None = piece  # as it came, until another piece joins it
        self._members: dict[str, Any] = {}
        self._texts: dict[str, list[Any]] = {}
        self._take(piece)

    def continues_with(self, piece: Block) -> bool:
        """Return whether the piece belongs to this block, of the same type and index."""
        own_id, id_ = self._members.get("id"), piece.get("id")
        if own_id and id_ and own_id != id_:
            return False
        is_sealed = any(
            self._members.get(name) or self._texts.get(name) for name in SEALING_MEMBERS
        )
        if not is_sealed:
            return True
        if piece.get("data"):  # of an encrypted block, which has an index where it comes in pieces
            return piece.get("index") is not None and not self._members.get("signature")
        return not any(piece.get(name) for name in TEXT_MEMBERS) and self._agrees_with(piece)

    def _agrees_with(self, piece: Block) -> bool:
        signature = piece.get("signature")
        return not signature or signature == self._members.get("signature")

    def add(self, piece: Block) -> None:
        self._first = None
        self._take(piece)

    def _take(self, piece: Block) -> None:
        for name, value in piece.items():
            if name in TEXT_MEMBERS and isinstance(value, str | list):
                self._members.setdefault(name, value)  # its place among the members
                self._texts.setdefault(name, []).append(value)
            elif value not in (None, "") or name not in self._members:
                self._members[name] = value

    def join(self) -> Block:
        if self._first is not None:
            return self._first
        return {**self._members, **{name: _join(texts) for name, texts in self._texts.items()}}


def _join(texts: list[Any]) -> Any:
    """Join pieces of one text; where a piece is a list of parts, all are such parts."""
    if all(isinstance(text, str) for text in texts):
        return "".join(texts)
    return join_texts([part for text in texts for part in _list_parts(text)])


def join_texts(parts: list[Any]) -> list[Any]:
    """Return the parts of a content with neighbouring texts as one. A text with other members
    stays as it is."""
    joined: list[Any] = []
    texts: list[str] = []
    for part in [*parts, None]:  # None: the end
        text = read_lone_text(part)
        if text is not None:
            texts.append(text)
            continue
        if texts:
            joined.append({"type": "text", "text": "".join(texts)})
            texts = []
        if part is not None:
            joined.append(part)
    return joined


def read_lone_text(part: Any) -> str | None:
    """Return the text of a part that is nothing else; None for any other part."""
    if isinstance(part, str):
        return part
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
    return part["text"] if is_text and isinstance(part["text"], str) else None


def _list_parts(text: Any) -> Iterator[Any]:
    if isinstance(text, list):
        yield from text
    else:
        yield {"type": "text", "text": text}
