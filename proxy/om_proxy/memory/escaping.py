"""Escape text from outside so that nothing in it can open or close a tag of the prompts, wherever
it is rendered.

The guarantee: in escaped text, no `<` is followed by the name of a prompt tag, however it is spelt.
That means any case, any run of spaces, slashes, punctuation or invisible characters before the
name, invisible characters inside it, any separator between its words, any attributes after it. A
`<` with only such a run between it and the end of the text is escaped too, so escaped texts may be
joined. Other tags mean nothing to the proxy and stay.

Why not all of `&<>`: models read these texts and copy what they see, so `List&lt;str&gt;` in the
notes comes back as code. Only the `<` of what could be taken for a prompt tag is written `&lt;`;
`a < b && c > d`, `List<str>` and `->` stay as they are. The proxy knows its whole set of tags, so
this is no list of forbidden phrases. An `&lt;` that is there already becomes `&amp;lt;`, so
that `unescape` is the exact inverse.

The markup of chat templates is escaped likewise (memory/markup.py): for a model with that template,
`<|im_end|>` in a note would end the proxy's message.
"""

from __future__ import annotations

import re

from om_proxy.memory.markup import ESCAPED_ANGLE_BRACKET as _LT
from om_proxy.memory.markup import INVISIBLE_CHARACTERS as _UNSEEN
from om_proxy.memory.markup import MARKUP_PATTERN

# every tag that a prompt uses; add a new tag here
PROMPT_TAGS = (
    "observation",
    "observations",
    "previous-observations",
    "current-task",
    "suggested-response",
    "thread-title",
    "thread",
    "other-conversation",
    "pinned-notes",
    "transcript",
    "about-assistant",
)


def _spelling_pattern(name: str) -> str:
    return r"[\W_]*".join(_UNSEEN.join(word) for word in name.split("-"))


def names_pattern(names: tuple[str, ...]) -> str:
    """Return a pattern of any spelling of these names, as a whole word."""
    longest_first = sorted(names, key=len, reverse=True)
    return f"(?:{'|'.join(map(_spelling_pattern, longest_first))}){_UNSEEN}(?![^\\W_])"


# A run is taken whole (possessively) whether a name follows or not: that keeps the search linear on
# `<<<<…`.
_TAG_BEGINNING = re.compile(
    rf"(?:<|{_LT})(?:<|{_LT}|[\W_])*+(?P<named>(?={names_pattern(PROMPT_TAGS)})|\Z)?", re.IGNORECASE
)
_OPENING_BRACKET = re.compile(rf"<|{_LT}")
_ESCAPED_BRACKETS = {"<": "&lt;", "[": "&#91;"}
_UNESCAPED_BRACKETS = {escaped: bracket for bracket, escaped in _ESCAPED_BRACKETS.items()}


def escape(text: str) -> str:
    """Escape a text between prompt tags. A text without anything like a tag is returned as it
    is."""
    safe = _TAG_BEGINNING.sub(
        lambda run: (
            _OPENING_BRACKET.sub(_escape_bracket, run[0]) if run["named"] is not None else run[0]
        ),
        text,
    )
    return MARKUP_PATTERN.sub(_escape_bracket, safe)


def unescape(text: str) -> str:
    """Undo `escape`, for text that a model copied out of escaped text."""
    without_markup = MARKUP_PATTERN.sub(_unescape_bracket, text)
    return _TAG_BEGINNING.sub(
        lambda run: (
            _OPENING_BRACKET.sub(_unescape_bracket, run[0]) if run["named"] is not None else run[0]
        ),
        without_markup,
    )


def _escape_bracket(opening: re.Match[str]) -> str:
    return _ESCAPED_BRACKETS.get(opening[0]) or f"&amp;{opening[0][1:]}"


def _unescape_bracket(opening: re.Match[str]) -> str:
    if opening[0] in _ESCAPED_BRACKETS:
        return opening[0]  # never escaped: the model's own
    return _UNESCAPED_BRACKETS.get(opening[0]) or f"&{opening[0][5:]}"
