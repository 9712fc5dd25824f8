"""Join the pieces in which a stream brings blocks of a reply, such as blocks of thought.

A stream appends them to a list: three pieces of one text and its signature are four objects there.
A signed block must come back whole, and some servers take one block of thought only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Block = Mapping[str, Any]

# Members of which each piece brings a part.
TEXT_MEMBERS = ("text", "summary", "thinking", "data")
# A block that has one of these is complete: more text begins the next block.
SEALING_MEMBERS = ("signature", "data")


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
