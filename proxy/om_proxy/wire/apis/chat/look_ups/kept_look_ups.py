"""Write the messages of a prompt's tail: the client's own as they came, stored ones in the form of a
request, and the look-ups of earlier replies, each before the reply that it was made for.

A round with calls of the proxy's tool alone is messages of its own. Where the client's tools were
called too, the proxy's calls go back into the one message that made them, which the client has
without them; every other byte of it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Raw

from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.rounds import LookedUp, Round
from om_proxy.wire.apis.chat.request_form import write_request_form
from om_proxy.wire.apis.json_text import find_value_span, replace_lone_surrogates

SIGNATURE = b'"thought_signature"'


class _Call(msgspec.Struct):
    id: str = ""


class _Answer(msgspec.Struct):
    tool_call_id: str = ""


class _Caller(msgspec.Struct):
    tool_calls: list[Raw] = []


_members = msgspec.json.Decoder(dict[str, Raw])
_call = msgspec.json.Decoder(_Call)
_answer = msgspec.json.Decoder(_Answer)
_caller = msgspec.json.Decoder(_Caller)


def write_tail(tail: Sequence[Piece]) -> list[bytes]:
    """Return the messages of the tail, with the look-ups that they show, and without stored replies
    that say nothing."""
    if all(piece.look_ups is None for piece in tail):
        written = [
            piece.raw if piece.index >= 0 else write_request_form(piece.raw) for piece in tail
        ]
    else:
        written = [raw for piece in tail for raw in _write_piece(piece)]
    return list(filter(None, written))


def _write_piece(piece: Piece) -> Iterator[bytes]:
    raw = piece.raw if piece.sent else write_request_form(piece.raw)
    look_ups = piece.look_ups or LookedUp()
    for one in look_ups.rounds:
        yield write_request_form(one.assistant)
        yield from one.results
    with_calls = look_ups.beside and _put_in_calls(raw, look_ups.beside)
    if look_ups.beside and with_calls:
        yield with_calls
        yield from look_ups.beside.results
    else:
        yield raw


def _put_in_calls(message: bytes, beside: Round) -> bytes | None:
    """Return the message with the proxy's calls before the client's, as their results come before
    the client's. None: it makes no calls, or is not read; then results would answer nothing. Of the
    calls of one message Gemini signs the first only, and demands that it stays the first."""
    readable = replace_lone_surrogates(message) or message  # of the same length
    try:
        calls = b",".join(_list_calls(beside))
        span = find_value_span("tool_calls", _members.decode(readable), readable)
    except (ValueError, RecursionError):
        return None
    if not calls or span is None or not readable.startswith(b"[", span.start):
        return None
    start, end = span.start + 1, span.stop - 1
    own = readable[start:end]
    if SIGNATURE in own and SIGNATURE not in calls:
        return message[:end] + b"," + calls + message[end:]
    if own.strip():
        calls += b","
    return message[:start] + calls + message[start:]


def _list_calls(beside: Round) -> Iterator[bytes]:
    """List the calls that the results answer. The message may hold the client's calls too."""
    answered = {_answer.decode(_repair(result)).tool_call_id for result in beside.results}
    assistant = write_request_form(beside.assistant)
    for call in _caller.decode(_repair(assistant)).tool_calls:
        if _call.decode(call).id in answered:
            yield bytes(call)


def _repair(message: bytes) -> bytes:
    return replace_lone_surrogates(message) or message
