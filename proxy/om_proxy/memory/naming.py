"""How a thread or a resource may be called, and how its name stands in a header or in a path.

Letters, digits and `. _ : @ / + = -` stand for themselves. Every other character of a name is percent-encoded as UTF-8 (RFC 3986 2.1)
and decoded exactly once. No name of the first release holds a `%`, so an encoded name never meets a stored one by accident.
"""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import quote, unquote_to_bytes

MAX_NAME_BYTES = 256  # of a name in UTF-8; encoded it is at most three times as long
PLAIN_CHARACTERS = "A-Z a-z 0-9 . _ : @ / + = -"
MAX_UNCOMPOSED_BYTES = (
    4 * MAX_NAME_BYTES
)  # letters with their marks apart; composing takes quadratic time on marks alone
_PLAIN = re.compile(rf"[A-Za-z0-9._:@/+=-]{{1,{MAX_NAME_BYTES}}}")
_ENCODED = re.compile(r"(?:[A-Za-z0-9._:@/+=-]|%[0-9A-Fa-f]{2})+")
_JOINERS = str.maketrans(
    "", "", "\u200c\u200d"
)  # Persian and emoji need them; no other format character is part of a name


def decode_name(text: str) -> str | None:
    """The name that a header's value stands for; None where it cannot be a name. Empty for encoded blanks alone."""
    if _PLAIN.fullmatch(text):
        return text
    return _decoded(text) if _ENCODED.fullmatch(text) else None


def decode_segment(segment: str) -> str | None:
    """The same of a segment of a path, where more characters than in a header may stand for themselves (RFC 3986 3.3)."""
    escapes_are_whole = "%" not in re.sub(r"%[0-9A-Fa-f]{2}", "", segment)
    return _decoded(segment) if segment.isascii() and escapes_are_whole else None


def canonical_name(text: str) -> str | None:
    """A name that is not encoded, as it is stored; None where the text cannot be a name.

    Composed (NFC), so that two devices that spell the same letters differently mean the same thread.
    """
    if _PLAIN.fullmatch(text):
        return text
    if (
        len(text) > MAX_UNCOMPOSED_BYTES or not text.translate(_JOINERS).isprintable()
    ):  # a control character, a lone surrogate, a change of writing direction
        return None
    name = normalize("NFC", text).strip(" ")
    return name if name and len(name.encode()) <= MAX_NAME_BYTES else None


def encode_name(name: str) -> str:
    """The name as a header can carry it; `decode_name` reads it back."""
    if _PLAIN.fullmatch(name):  # nearly all: 0.5 µs instead of 4
        return name
    return quote(name, safe=":@/+=").replace("~", "%7E")


def _decoded(text: str) -> str | None:
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
    return canonical_name(name) if name.strip(" ") else ""
