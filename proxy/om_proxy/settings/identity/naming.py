"""The form of a thread's or a resource's name, and its encoding in a header or in a path.

Letters, digits and `. _ : @ / + = -` are not encoded. Every other character of a name is
percent-encoded as UTF-8 (RFC 3986 2.1), and decoded exactly once. No name of the first release
contains a `%`, so an encoded name never equals a stored one by accident.
"""

from __future__ import annotations

import re
from unicodedata import normalize
from urllib.parse import quote, unquote_to_bytes

MAX_NAME_BYTES = 256  # in UTF-8; an encoded name is at most three times as long
PLAIN_CHARACTERS = "A-Z a-z 0-9 . _ : @ / + = -"
# of a name whose letters and marks are separate; composing marks alone takes quadratic time
MAX_UNCOMPOSED_BYTES = 4 * MAX_NAME_BYTES
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9._:@/+=-]{{1,{MAX_NAME_BYTES}}}")
_ENCODED_NAME = re.compile(r"(?:[A-Za-z0-9._:@/+=-]|%[0-9A-Fa-f]{2})+")
# removes the two format characters that a name may have: Persian and emoji need them
_WITHOUT_JOINERS = str.maketrans("", "", "\u200c\u200d")


def decode_name(text: str) -> str | None:
    """Return the name in the value of a header; None if it cannot be a name, and "" if only blanks
    are encoded."""
    if _PLAIN_NAME.fullmatch(text):
        return text
    return _unquote_name(text) if _ENCODED_NAME.fullmatch(text) else None


def decode_path_segment(segment: str) -> str | None:
    """Return the name in a segment of a path; None if it cannot be a name. A segment may contain
    more unencoded characters than a header (RFC 3986 3.3)."""
    are_escapes_complete = "%" not in re.sub(r"%[0-9A-Fa-f]{2}", "", segment)
    return _unquote_name(segment) if segment.isascii() and are_escapes_complete else None


def normalize_name(text: str) -> str | None:
    """Return the stored form of a name that is not encoded; None if the text cannot be a name.

    The stored form is composed (NFC): two devices that spell the same letters differently mean the
    same thread.
    """
    if _PLAIN_NAME.fullmatch(text):
        return text
    # a control character, a lone surrogate and a change of writing direction are not printable
    if len(text) > MAX_UNCOMPOSED_BYTES or not text.translate(_WITHOUT_JOINERS).isprintable():
        return None
    name = normalize("NFC", text).strip(" ")
    return name if name and len(name.encode()) <= MAX_NAME_BYTES else None


def is_valid_name(name: str) -> bool:
    """Return whether a thread or a resource can have this name."""
    return normalize_name(name) is not None


def encode_name(name: str) -> str:
    """Return the name as a header can carry it. `decode_name` reverses this."""
    if _PLAIN_NAME.fullmatch(name):  # nearly all names: 0.5 µs instead of 4
        return name
    return quote(name, safe=":@/+=").replace("~", "%7E")


def _unquote_name(text: str) -> str | None:
    try:
        name = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return None
    return normalize_name(name) if name.strip(" ") else ""
