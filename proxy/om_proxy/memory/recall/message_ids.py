"""Read and write the ids by which the model names messages and conversations.

`m12` is message 12 of the conversation that is meant. `3f9c2a77.m12` is one of another
conversation: before the dot is the beginning of its label. No name that a client gave a thread
is ever shown.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SHOWN_LABEL_DIGITS = 8
MIN_LABEL_DIGITS = 6
MAX_LABEL_DIGITS = 16
MAX_SHOWN_ID_CHARS = 40  # of what the model wrote in place of an id

_LABEL = rf"[0-9a-f]{{{MIN_LABEL_DIGITS},{MAX_LABEL_DIGITS}}}"
_LABEL_PATTERN = re.compile(_LABEL)
_ID_PATTERN = re.compile(
    rf"(?:(?P<label>{_LABEL})\.)?m?(?P<seq>-?[0-9]{{1,18}})"
    rf"(?:\s*[-–—]\s*(?:{_LABEL}\.)?m?(?P<last>[0-9]{{1,18}}))?"
)


class MessageId(NamedTuple):
    """The id of a message. Whether there is such a message is not known yet."""

    seq: int
    label: str = ""  # the beginning of a conversation's label; empty: of the one that is meant


class IdRange(NamedTuple):
    """Two ids, as the notes name a range."""

    first: MessageId
    last: MessageId


def parse_message_id(text: str) -> MessageId | IdRange | None:
    """Read an id or a range: `m12`, `12`, ` [M12] `, `m12-m40`. None: it is neither."""
    match = _ID_PATTERN.fullmatch(_strip_brackets(text))
    if match is None:
        return None
    first = MessageId(int(match["seq"]), match["label"] or "")
    return (
        first if match["last"] is None else IdRange(first, first._replace(seq=int(match["last"])))
    )


def parse_label(text: str) -> str | None:
    """Read the beginning of a conversation's label: 6 to 16 hexadecimal digits. None: it is
    none."""
    word = _strip_brackets(text)
    return word if _LABEL_PATTERN.fullmatch(word) else None


def write_message_id(seq: int, label: str = "") -> str:
    """Write the id of a message. `label`: of another conversation than the current one."""
    return f"{shorten_label(label)}.m{seq}" if label else f"m{seq}"


def shorten_label(label: str) -> str:
    """Return the beginning of a label, as it is shown."""
    return label[:SHOWN_LABEL_DIGITS]


def _strip_brackets(text: str) -> str:
    word = text.strip().lower()
    return word[1:-1].strip() if word.startswith("[") and word.endswith("]") else word
