"""Quote text of messages so that nothing in it can pass for a line of ours.

Our lines begin at the left edge. Each line of a quote is indented by two spaces, and tags of ours
and of chat templates in it are escaped. Of control characters, only line feed and tab stay.
"""

from __future__ import annotations

import re

from om_proxy.memory.escaping import escape

INDENT = "  "
# other line ends that a model or a terminal may take for one
_LINE_END_PATTERN = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTROL_PATTERN = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]")
_LONE_SURROGATE_PATTERN = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return the text with line feeds as its only line ends, without control characters. Offsets
    into a part count the characters of this text."""
    text = _CONTROL_PATTERN.sub("", _LINE_END_PATTERN.sub("\n", text))
    return _LONE_SURROGATE_PATTERN.sub("\ufffd", text)


def quote(text: str) -> str:
    """Return a cleaned text as a quote: escaped, each line indented."""
    return INDENT + escape(text).replace("\n", f"\n{INDENT}")


def clean_line(text: str, max_chars: int) -> str:
    """Return a name or a title in one line of ours: at most `max_chars` characters, without double
    quotes and square brackets, which close what it is in."""
    words = " ".join(clean_text(text[: 8 * max_chars]).split())
    words = words.replace('"', "'").replace("[", "(").replace("]", ")")
    return escape(words if len(words) <= max_chars else f"{words[: max_chars - 1].rstrip()}…")
