"""Write a page of messages as the text that answers a look-up.

    m12 to m31 of m1 to m812; more: page 2
    [m12] user, May 8, 2023 13:56
      I went to the support group.
    [m13] assistant, May 8, 2023 13:57
    [p0] (cut; partIndex=0 for all)
      That is wonderful. Did you …
    [p1] tool-call find_groups
      {"city": "Rome"}

Lines at the left edge are ours; what is quoted is indented. A part has a line of its own where its
message has several, where it is no plain text, or where it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import NamedTuple

from om_proxy.memory.recall.arguments import MAX_PAGE, LookUpFault
from om_proxy.memory.recall.clipping import CountTokens, find_fitting_chars, move_to_word_end
from om_proxy.memory.recall.message_ids import write_message_id
from om_proxy.memory.recall.quoted_message import (
    MAX_NAME_CHARS,
    MAX_TITLE_CHARS,
    QuotedMessage,
    QuotedPart,
    clean_line,
    quote,
    write_attachment,
    write_message_header,
)

# of an answer, for each message that a page may hold: its header, and some of its text
MIN_TOKENS_A_MESSAGE = 90


class _Clips(NamedTuple):
    """How much of each part is shown, in tokens; how many parts of a message are; and how many
    characters of a name or title."""

    text: int
    call: int
    other: int
    parts: int
    name: int = MAX_NAME_CHARS


# from the widest to the narrowest; the first that fits is taken. The fourth is for where no room is
# left over; the last one fits whatever the messages are
_CLIPS = (
    _Clips(200, 50, 50, 64),
    _Clips(160, 40, 42, 64),
    _Clips(130, 30, 36, 64),
    _Clips(100, 20, 30, 64),
    _Clips(80, 20, 25, 32),
    _Clips(65, 15, 20, 16),
    _Clips(50, 12, 15, 8),
    _Clips(35, 10, 12, 6, 30),
    _Clips(24, 8, 8, 4, 20),
    _Clips(12, 6, 6, 2, 12),
    _Clips(0, 0, 0, 1, 0),
)


class MessagePage(NamedTuple):
    """The messages of a page, by seq, and where they are."""

    messages: tuple[QuotedMessage, ...]
    span: tuple[int, int] | None  # seqs of the page's first and last message; None: it has none
    bounds: tuple[int, int] | None  # the same of the conversation
    page: int
    limit: int
    has_more: bool  # in the direction of reading
    next_seq: int = 0  # of the message after these in that direction, if there are more
    label: str = ""  # of the conversation, if it is another one than the current
    title: str | None = None


def find_page_limit(limit: int, max_tokens: int) -> int:
    """Return how many messages a page holds: as many as are asked for, if an answer of
    `max_tokens` has room for a little of each."""
    return max(1, min(limit, max_tokens // MIN_TOKENS_A_MESSAGE))


def write_message_page(
    page: MessagePage, zone: tzinfo, max_tokens: int, count_tokens: CountTokens
) -> str:
    """Write the page in at most `max_tokens`."""
    for clips in _CLIPS:
        header = write_page_header(page, clips.name)
        text = "\n".join((header, *_write_messages(page.messages, clips, zone, count_tokens)))
        if count_tokens(text) <= max_tokens:
            return text
    return text


def write_page_header(page: MessagePage, title_chars: int = MAX_TITLE_CHARS) -> str:
    title = clean_line(page.title, title_chars) if page.title and title_chars else ""
    where = f', in "{title}"' if title else ""
    if page.bounds is None:
        return f"no messages here; this conversation has none yet{where}"
    whole = _write_span(page.bounds, page.label)
    if page.span is None:
        return f"no messages here; this conversation has {whole}{where}"
    return f"{_write_span(page.span, page.label)} of {whole}{where}{_write_way_on(page)}"


def _write_span(span: tuple[int, int], label: str) -> str:
    return " to ".join(write_message_id(seq, label) for seq in span)


def _write_way_on(page: MessagePage) -> str:
    if not page.has_more:
        return ""
    if abs(page.page) < MAX_PAGE:
        return f"; more: page {page.page + (1 if page.page > 0 else -1)}"
    direction = 1 if page.page > 0 else -1
    return f"; more: cursor {write_message_id(page.next_seq, page.label)}, page {direction}"


def _write_messages(
    messages: Sequence[QuotedMessage], clips: _Clips, zone: tzinfo, count_tokens: CountTokens
) -> Iterator[str]:
    for message in messages:
        yield write_message_header(message, zone)
        yield from _write_parts(message.parts, clips, count_tokens)


def _write_parts(
    parts: Sequence[QuotedPart], clips: _Clips, count_tokens: CountTokens
) -> Iterator[str]:
    for index, part in enumerate(parts[: clips.parts]):
        if part.is_hidden:
            continue
        yield from _write_part(index, part, clips, count_tokens, is_only=len(parts) == 1)
    left_out = len(parts) - clips.parts
    if left_out > 0:
        yield f"({left_out} more parts; partIndex={clips.parts} for the next)"


def _write_part(
    index: int, part: QuotedPart, clips: _Clips, count_tokens: CountTokens, *, is_only: bool
) -> Iterator[str]:
    if part.kind in ("image", "file"):
        yield f"[p{index}] {write_attachment(part, clips.name)}"
        return
    max_tokens = {"text": clips.text, "tool-call": clips.call}.get(part.kind, clips.other)
    chars = find_fitting_chars(part.text, max_tokens, count_tokens)
    is_cut = chars < len(part.text)
    name = _write_name(part, clips.name)
    remark = f" (cut; partIndex={index} for all)" if is_cut else ""
    if name or remark or not is_only:
        yield f"[p{index}]{name}{remark}"
    shown = part.text[: move_to_word_end(part.text, chars)]
    if shown:
        yield quote(shown)


def _write_name(part: QuotedPart, max_chars: int) -> str:
    """Write the kind of a part that is no text, and the name of its tool."""
    if part.kind == "text":
        return ""
    return f" {part.kind} {clean_line(part.name, max_chars) if max_chars else ''}".rstrip()


# Write one part of a message in full, piece by piece.
#
# p1 of m12 (p0 to p3), characters 0 to 7421 of 20134; go on with charOffset=7421
# [m12] tool, May 8, 2023 13:56
# [p1] tool-result
#   …


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
        raise _describe_unknown_part(message)
    part = message.parts[index]
    if part.kind in ("image", "file"):
        head = f"p{index} of {message.id}"
        text = f"{head}\n{write_message_header(message, zone)}\n[p{index}] {write_attachment(part)}"
        return PartPiece(text, 0, 0, 0, 0)
    readable = _find_readable_chars(part, count_tokens)
    if offset and offset >= readable:
        raise LookUpFault(f"recall: p{index} of {message.id} has {readable} characters")
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


def _describe_unknown_part(message: QuotedMessage) -> LookUpFault:
    count = len(message.parts)
    has = f"p0 to p{count - 1}" if count > 1 else "p0 only" if count else "no parts"
    return LookUpFault(f"recall: {message.id} has {has}", is_unknown=True)


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
    lines = [
        f"p{index} of {message.id}{parts}, characters {start} to {end} of {len(part.text)}{way_on}",
        write_message_header(message, zone),
        f"[p{index}]{_write_name(part, MAX_NAME_CHARS)}",
    ]
    if end > start:
        lines.append(quote(part.text[start:end]))
    return "\n".join(lines)
