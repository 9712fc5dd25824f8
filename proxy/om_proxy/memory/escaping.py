"""Escape text from outside so that nothing in it can open or close a tag of ours, wherever it is rendered.

What we guarantee. In escaped text, no `<` is followed by one of our tag names, however it is spelt: any case, any run of
spaces, slashes, punctuation or invisible characters before the name, invisible characters inside it, any separator between
its words, any attributes after it. A `<` that only the end of the text keeps from its name is escaped too, so escaped texts
may be joined. Whatever else opens or closes is not ours and means nothing to us.

Why not all of `&<>`. These texts are read by models, which copy what they see: `List&lt;str&gt;` in the notes comes back as
code. So only the `<` of what could be taken for our tag is written `&lt;`; `a < b && c > d`, `List<str>` and `->` stay as they
are. This is no list of forbidden phrases: the whole set of tags is ours to know, and what must follow a `<` to matter is only
the name. An `&lt;` that stands there already becomes `&amp;lt;`, so that `unescape` is the exact inverse.

The same is done to the markup of chat templates (memory/markup.py): to a model whose template it is, `<|im_end|>` in a note would end
our message.
"""

from __future__ import annotations

import re

from om_proxy.memory.markup import ESCAPED_ANGLE_BRACKET as _LT
from om_proxy.memory.markup import INVISIBLE_CHARACTERS as _UNSEEN
from om_proxy.memory.markup import MARKUP_PATTERN

PROMPT_TAGS = (  # every tag any of our prompts uses; who needs another one adds it here
    "observation",
    "observations",
    "previous-observations",
    "current-task",
    "suggested-response",
    "thread-title",
    "thread",
    "other-conversation",
    "transcript",
    "about-assistant",
)


def _spelt(name: str) -> str:
    return r"[\W_]*".join(_UNSEEN.join(word) for word in name.split("-"))


def pattern_of(names: tuple[str, ...]) -> str:
    """Matches any spelling of these names, as a whole word."""
    longest_first = sorted(names, key=len, reverse=True)
    return f"(?:{'|'.join(map(_spelt, longest_first))}){_UNSEEN}(?![^\\W_])"


# A run is taken whole (possessively) whether a name follows or not: that keeps the search linear on `<<<<…`.
_RUN = re.compile(rf"(?:<|{_LT})(?:<|{_LT}|[\W_])*+(?P<ours>(?={pattern_of(PROMPT_TAGS)})|\Z)?", re.IGNORECASE)
_OPENING = re.compile(rf"<|{_LT}")
_ESCAPES = {"<": "&lt;", "[": "&#91;"}
_BRACKETS = {escaped: bracket for bracket, escaped in _ESCAPES.items()}


def escape(text: str) -> str:
    """The text as it may be rendered between our tags. Text that resembles none of them is returned as it is."""
    safe = _RUN.sub(lambda run: _OPENING.sub(_escaped, run[0]) if run["ours"] is not None else run[0], text)
    return MARKUP_PATTERN.sub(_escaped, safe)


def unescape(text: str) -> str:
    """What `escape` was given; for what a model copied out of escaped text."""
    told = MARKUP_PATTERN.sub(_unescaped, text)
    return _RUN.sub(lambda run: _OPENING.sub(_unescaped, run[0]) if run["ours"] is not None else run[0], told)


def _escaped(opening: re.Match[str]) -> str:
    return _ESCAPES.get(opening[0]) or f"&amp;{opening[0][1:]}"


def _unescaped(opening: re.Match[str]) -> str:
    if opening[0] in _ESCAPES:
        return opening[0]  # never escaped: the model's own
    return _BRACKETS.get(opening[0]) or f"&{opening[0][5:]}"
