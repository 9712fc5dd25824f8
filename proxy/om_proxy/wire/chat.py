"""A chat completion request: its bytes split into messages and put together again.

A request is split, not parsed: a thread's known messages come again with every call, so they stay raw slices until
someone asks for one. msgspec finds the slices at about 0.3 ms/MB; parsing everything takes three times that, and
writing it back would change numbers and keys we do not know. Behind a known split (split.py) only what follows is split at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from om_proxy.memory.digests import Digests
from om_proxy.memory.fingerprint import fingerprint
from om_proxy.memory.model import Item
from om_proxy.memory.side_requests import ANSWERING_ROLES
from om_proxy.wire.members import place_of
from om_proxy.wire.split import HERE, Slices, Split, split_of
from om_proxy.wire.surrogates import without_halves

LONGEST_NAME = 512  # characters of a model's name; what is remembered by it stays small
LARGE = 4 << 20  # bytes; only a larger body is counted in
MOST = 1_000_000  # JSON values of a large one: no model reads as many, and 64 MiB of `{},` would become 3 GB of objects
MAX_MESSAGES_OF_ONE_TURN = 64  # what a client says in one go: a question, or the results of all its calls
INSTRUCTION_ROLES = frozenset({"system", "developer"})


class Unreadable(ValueError):
    """This is no chat request we understand: forward the bytes as they came."""


_NULL = Raw(b"null")
QUOTE = ord('"')
# a text without an end goes on to the body's: else each quote in it would be tried as the beginning of another one
_TEXT_OR_VALUE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,\[{]', re.DOTALL)


class _Body(msgspec.Struct):
    messages: list[Raw]
    model: Raw = _NULL
    stream: Raw = _NULL
    n: Raw = _NULL


class _Speaker(msgspec.Struct):
    role: str = ""


_body = msgspec.json.Decoder(_Body)
_members = msgspec.json.Decoder(dict[str, Raw])
_speaker = msgspec.json.Decoder(_Speaker)
_object = msgspec.json.Decoder(dict[str, Any])
_any = msgspec.json.Decoder()


class ChatRequest(msgspec.Struct, frozen=True):
    """A request as sent. Messages are JSON texts, copied out of the body so that keeping one does not keep the body."""

    body: bytes
    frame: bytes  # the same, known messages left out
    readable: bytes  # that, half characters aside (wire/surrogates.py); of the same length
    model: str | None  # None: absent, not a string, or longer than any model's name
    stream: bool
    n: int
    instructions: tuple[bytes, ...]  # the leading run of system and developer messages
    instruction_roles: tuple[str, ...]  # theirs, in order
    messages: Sequence[bytes]  # all that follow; not looked at yet

    def __repr__(self) -> str:
        return f"<ChatRequest {self.model} {len(self.instructions)}+{len(self.messages)} messages>"

    @property
    def shows_replies(self) -> bool:
        """Whether a reply stands in it: its client sends what was said before again."""
        if len(self.messages) > MAX_MESSAGES_OF_ONE_TURN:
            return True
        try:
            return any(_speaker.decode(message).role == "assistant" for message in self.messages)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return True  # no message we know: nothing of it is kept

    @property
    def fields(self) -> dict[str, Raw]:
        """The top-level members in order, each as its raw JSON; split anew at every call."""
        return _members.decode(self.readable)


def parse(body: bytes, known: Split | None = None) -> ChatRequest:
    """Split a request. Raises Unreadable for whatever is not an object with a list of messages, and for one beyond all measure.

    `known`: the last split of the same thread. It makes the same request of the same body, in less time.
    """
    if len(body) > LARGE and is_endless(body):
        raise Unreadable("more JSON values than any model reads")
    if known is not None and (request := _continued(body, known)):
        return request
    readable, split = body, _split(body)
    if split is None and (whole := without_halves(body)) is not None:
        readable, split = whole, _split(whole)
    if split is None:
        raise Unreadable("not a JSON object with a list of messages")
    raws = tuple(map(bytes, split.messages))
    roles = tuple(_leading_roles(raws))
    return _request(body, body, readable, split, raws[: len(roles)], roles, raws[len(roles) :])


def kept_of(request: ChatRequest, digests: Digests, seed: int = 0) -> Split | None:
    """What the thread's next request is split behind. `digests`: of the messages, `Sent.digests`; `seed`: 64 bits that are secret."""
    if request.readable is not request.frame:
        return None  # half characters: the messages are not the bytes that were sent
    return split_of(request.body, request.instructions, request.messages, digests, seed)


def with_messages(request: ChatRequest, messages: Sequence[bytes]) -> bytes:
    """The request's body with these messages, instructions included; every other byte stays.

    Of a member that was sent twice only the last value is kept, as parsers have it.
    """
    members, frame = request.fields, request.frame
    if place := place_of("messages", members, request.readable):
        return b"".join((frame[: place.start], b"[", b",".join(messages), b"]", frame[place.stop :]))
    parts: list[bytes | Raw] = []
    separator = b"{"
    for name, raw in members.items():
        parts += (separator, msgspec.json.encode(name), b":")
        parts += (b"[", b",".join(messages), b"]") if name == "messages" else (raw,)
        separator = b","
    parts.append(b"}")
    return b"".join(parts)


def item(raw: bytes, key: bytes) -> Item:
    """A message as the memory knows it; `key` is the tenant's for fingerprints. Raises Unreadable if it is no message."""
    message = _message(raw)
    role = message.get("role")
    if not isinstance(role, str):
        raise Unreadable("a message without a role")
    answers = message.get("tool_call_id")
    return Item(
        raw=raw,
        role=role,
        fp=fingerprint(message, key),
        calls=tuple(_call_ids(message.get("tool_calls"))),
        answers=answers if role == "tool" and isinstance(answers, str) else None,
    )


def prompt_text(raw: bytes) -> str:
    """A message's text, its text parts joined by newlines; empty for a message without text or one we cannot read."""
    try:
        content = _message(raw).get("content")
    except Unreadable:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(_texts(content))


def asking_text(raw: bytes) -> str:
    """The same of a message that asks for something; empty for one that a model or a tool wrote, which may quote anything."""
    return "" if _role(raw) in ANSWERING_ROLES else prompt_text(raw)


def offers_tools(request: ChatRequest) -> bool:
    """Whether the model may call any. (`functions` is what they were called until 2023.)"""
    if b'"tools"' not in request.readable and b'"functions"' not in request.readable:
        return False
    members = request.fields
    return any(_is_filled_list(members.get(name, _NULL)) for name in ("tools", "functions"))


def _is_filled_list(raw: Raw) -> bool:
    """Told by its first characters: tools may take 100 kB."""
    text = bytes(memoryview(raw)[:64]).lstrip()
    return text.startswith(b"[") and text[1:].lstrip()[:1] != b"]"


def is_endless(body: bytes) -> bool:
    """More values than MOST. First as if every comma were one between values: prose and code have fewer, tables in a text more."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= MOST:
        return False
    found = _TEXT_OR_VALUE.finditer(body)
    between = (each for each in islice(found, 3 * MOST) if body[each.start()] != QUOTE)
    # JSON has at most two texts to a value: of `""""""` no more is looked at than that
    return next(islice(between, MOST, None), None) is not None or next(found, None) is not None


def _continued(body: bytes, known: Split) -> ChatRequest | None:
    """Split behind what is known; None where that does not stand in the body as it stood, or not right behind instructions."""
    start = known.found_in(body)
    if start is None:
        return None
    frame = b"".join((body[:start], HERE, body[start + known.ends[-1] :]))
    split = _split(frame) if frame.count(HERE) == 1 else None
    raws = tuple(map(bytes, split.messages)) if split else ()
    if split is None or HERE not in raws:
        return None
    place = raws.index(HERE)
    roles = tuple(_leading_roles(raws[:place]))
    if len(roles) < place:
        return None
    messages = Slices(body, start, known, raws[place + 1 :])
    return _request(body, frame, frame, split, raws[:place], roles, messages)


def _request(
    body: bytes,
    frame: bytes,
    readable: bytes,
    split: _Body,
    instructions: tuple[bytes, ...],
    roles: tuple[str, ...],
    messages: Sequence[bytes],
) -> ChatRequest:
    n = _value(split.n)
    return ChatRequest(
        body=body,
        frame=frame,
        readable=readable,
        model=model if isinstance(model := _value(split.model), str) and len(model) <= LONGEST_NAME else None,
        stream=_value(split.stream) is True,
        n=n if type(n) is int and n > 0 else 1,
        instructions=instructions,
        instruction_roles=roles,
        messages=messages,
    )


def _split(body: bytes) -> _Body | None:
    try:
        return _body.decode(body)
    except (ValueError, RecursionError):  # a few thousand nested brackets raise RecursionError, not ValueError
        return None


def _leading_roles(raws: Sequence[bytes]) -> Iterator[str]:
    for raw in raws:
        role = _role(raw)
        if role not in INSTRUCTION_ROLES:
            return
        yield role


def _role(raw: bytes) -> str:
    """Empty if it has none."""
    try:
        return _speaker.decode(raw).role
    except (ValueError, RecursionError):
        return ""


def _message(raw: bytes) -> Mapping[str, Any]:
    try:
        return _object.decode(raw)
    except (ValueError, RecursionError):
        return _odd_message(raw)


def _odd_message(raw: bytes) -> Mapping[str, Any]:
    """What the strict parser refuses and clients send all the same: numbers beyond a double, NaN."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise Unreadable("a message that is no JSON object") from exc
    if not isinstance(message, dict):
        raise Unreadable("a message that is no JSON object")
    return message


def _value(raw: Raw) -> Any:
    """None for what cannot be decoded: the upstream shall say what is wrong with it."""
    if raw is _NULL:
        return None
    try:
        return _any.decode(raw)
    except (ValueError, RecursionError):
        return None


def _call_ids(calls: Any) -> Iterator[str]:
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict) and isinstance(call.get("id"), str):
            yield call["id"]


def _texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
