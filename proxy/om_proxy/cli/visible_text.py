"""Make characters visible that a terminal would obey or hide. People, models and files write the
text of conversations, and a terminal sequence in it could change what a reader sees.

Control characters (C0, C1), changes of writing direction, line separators, zero-width characters
and halves of characters are written as escapes. Printable text stays as it is, in any script.
"""

from __future__ import annotations

import re

# beside blanks that take room: they move nothing, and Japanese text has its own
_VISIBLE_BLANKS = frozenset("\u00a0\u1680\u202f\u205f\u3000") | frozenset(
    map(chr, range(0x2000, 0x200B))
)
# Persian and emoji need these two between characters; between ASCII letters they only hide
_JOINER_IN_WORD = re.compile(
    "(?<=[^\x00-\x9f\u200b-\u200f])[\u200c\u200d](?=[^\x00-\x9f\u200b-\u200f])"
)
_KEPT_IN_TEXT = frozenset("\n\t")


def escape_line(text: str) -> str:
    """Return the text as one line that shows every character."""
    return text if text.isprintable() else "".join(map(_escape_character, text))


def escape_text(text: str) -> str:
    """Return a text of several lines. Its line ends and tabs stay, and so do joiners that belong to
    a word."""
    text = text.replace("\r\n", "\n")
    kept_places = {found.start() for found in _JOINER_IN_WORD.finditer(text)}
    return "".join(
        char if char in _KEPT_IN_TEXT or place in kept_places else _escape_character(char)
        for place, char in enumerate(text)
    )


def escape_json(json_text: str) -> str:
    """Return the same JSON value with every hidden character as a JSON escape. Line ends between
    members stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else _escape_in_json(char) for char in json_text
    )


def _escape_character(char: str) -> str:
    if char.isprintable() or char in _VISIBLE_BLANKS:
        return char
    number = ord(char)
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _escape_in_json(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
