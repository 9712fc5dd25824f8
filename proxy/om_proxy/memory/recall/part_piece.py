"""Write one part of a message in full, piece by piece.

p1 of m12 (p0 to p3), characters 0 to 7421 of 20134; go on with charOffset=7421
[m12] tool, May 8, 2023 13:56
[p1] tool-result
  …
"""

from __future__ import annotations

from datetime import tzinfo
from typing import NamedTuple

from om_proxy.memory.recall import faults
from om_proxy.memory.recall.clipping import CountTokens, find_fitting_chars
from om_proxy.memory.recall.quoted_message import (
    MAX_NAME_CHARS,
    QuotedMessage,
    QuotedPart,
    write_attachment,
    write_message_header,
)
from om_proxy.memory.recall.quoting import clean_line, quote

MAX_RESULT_TOKENS = 4_000  # of a tool's result, in all its pieces together


class PartPiece(NamedTuple):
    """A piece of a part."""

    text: str  # the answer's
    start: int  # of the piece, in characters of the part
    end: int
    readable_chars: int  # of the part: what all pieces show together
    chars: int  # of the part


def write_part_piece(
    message: QuotedMessage,
    index: int,
    offset: int,
    zone: tzinfo,
    max_tokens: int,
    count_tokens: CountTokens,
) -> PartPiece:
    """Write a piece of at most `max_tokens`, its headers included. Raise LookUpFault for a part or
    an offset that the message does not have."""
    if not 0 <= index < len(message.parts):
        raise faults.unknown_part(message.id, len(message.parts))
    part = message.parts[index]
    if part.kind in ("image", "file"):
        head = f"p{index} of {message.id}"
        text = f"{head}\n{write_message_header(message, zone)}\n[p{index}] {write_attachment(part)}"
        return PartPiece(text, 0, 0, 0, 0)
    readable = _find_readable_chars(part, count_tokens)
    if offset and offset >= readable:
        raise faults.offset_beyond_end(message.id, index, readable)
    rest = part.text[offset:readable]

    def write(chars: int) -> str:
        return _write_piece(message, index, offset, offset + chars, readable, zone)

    # a character more or less in the numbers of the header is less than this
    reserve = count_tokens(write(0)) + 8
    chars = find_fitting_chars(rest, max_tokens - reserve, lambda piece: count_tokens(quote(piece)))
    chars = max(chars, min(1, len(rest)))
    while chars > 1 and count_tokens(write(chars)) > max_tokens:
        chars -= 1 + chars // 64
    return PartPiece(write(chars), offset, offset + chars, readable, len(part.text))


def _find_readable_chars(part: QuotedPart, count_tokens: CountTokens) -> int:
    if part.kind != "tool-result":
        return len(part.text)
    return find_fitting_chars(part.text, MAX_RESULT_TOKENS, count_tokens)


def _write_piece(
    message: QuotedMessage, index: int, start: int, end: int, readable: int, zone: tzinfo
) -> str:
    part = message.parts[index]
    last = len(message.parts) - 1
    parts = f" (p0 to p{last})" if last else ""
    way_on = f"; go on with charOffset={end}" if end < readable else ""
    if end >= readable and readable < len(part.text):
        way_on = "; the rest of this result cannot be read"
    name = (
        ""
        if part.kind == "text"
        else f" {part.kind} {clean_line(part.name, MAX_NAME_CHARS)}".rstrip()
    )
    lines = [
        f"p{index} of {message.id}{parts}, characters {start} to {end} of {len(part.text)}{way_on}",
        write_message_header(message, zone),
        f"[p{index}]{name}",
    ]
    if end > start:
        lines.append(quote(part.text[start:end]))
    return "\n".join(lines)
