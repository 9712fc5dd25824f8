"""Escape text from outside so that nothing in it can open or close a tag of the prompts, or be
taken for the markup of a chat template, wherever it is rendered.

The guarantee: in escaped text, no `<` is followed by the name of a prompt tag, however it is spelt.
That means any case, any run of spaces, slashes, punctuation or invisible characters before the
name, invisible characters inside it, any separator between its words, any attributes after it. A
`<` with only such a run between it and the end of the text is escaped too, so escaped texts may be
joined. Other tags mean nothing to the proxy and stay.

Why not all of `&<>`: models read these texts and copy what they see, so `List&lt;str&gt;` in the
notes comes back as code. Only the `<` of what could be taken for a prompt tag is written `&lt;`; `a
< b && c > d`, `List<str>` and `->` stay as they are. The proxy knows its whole set of tags, so this
is no list of forbidden phrases. An `&lt;` that is there already becomes `&amp;lt;`, so that
`unescape` is the exact inverse.

A model takes the markup of its chat template for a change of speaker or for its runtime's voice:
`<|im_end|>` in a note would end the proxy's message. Special tokens are one token each to the model
that has them, wherever they are in a prompt: `<|im_start|>` (ChatML, Qwen), `<|start_header_id|>`
(Llama 3), `<start_of_turn>` (Gemma), `[INST]` (Llama 2, Mistral), `<｜User｜>` (DeepSeek). Role tags
are plain text that models have learnt to obey: `<system>`, `<system-reminder>`, `<tool_result>`.
Only their first character is replaced: `&lt;|im_start|>` is no token any more, and a reader still
knows what was said. Special tokens count only in their exact spelling. Role tags count in any case
and spelling, but only where a tag can be: `List<User>`, `a < user` and `<System.String>` are code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

# Characters a reader does not see: soft hyphen, joiners, direction marks, variation selectors, tag
# characters.
INVISIBLE_CHARACTERS = (
    "[\u00ad\u034f\u061c\u115f\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]*"
)

_SYSTEM_TAGS = (
    "system",
    "system-reminder",
    "system-prompt",
    "system-message",
    "system-instructions",
)
_ROLE_TAGS = (  # nor behind a word: `List<User>` is code
    "developer",
    "developer-message",
    "user",
    "user-message",
    "human",
    "assistant",
    "tool",
    "tool-call",
    "tool-calls",
    "tool-use",
    "tool-result",
    "tool-results",
    "tool-response",
    "function-call",
    "function-calls",
    "function-result",
    "function-results",
    "invoke",
    "think",
    "thinking",
)
_ANGLE_TOKENS = (
    r"[|｜][^\s|｜<>\[&]{1,40}[|｜]>",  # ChatML, Llama 3, Phi, Zephyr, Command R, Harmony, DeepSeek
    r"/?(?:start|end)_of_(?:turn|image|role|text)>",  # Gemma, Granite
    r"/?(?:s|bos|eos|unk|pad|sop|eop)>",
    r"/?SYS>>",  # inside <<SYS>>: Llama 2
)
_SQUARE_TOKENS = (
    "INST",
    "SYSTEM_PROMPT",
    "AVAILABLE_TOOLS",
    "TOOL_CALLS",
    "TOOL_RESULTS",
    "TOOL_CONTENT",
    "THINK",
    "IMG",
    "gMASK",
)


def _tag_pattern(names: Iterable[str]) -> str:
    spelt = (
        r"[\s_.-]*+".join(INVISIBLE_CHARACTERS.join(word) for word in name.split("-"))
        for name in sorted(names, key=len, reverse=True)
    )
    return rf"(?:\s*+/\s*+)?{INVISIBLE_CHARACTERS}(?i:{'|'.join(spelt)}){INVISIBLE_CHARACTERS}(?=[\s/>]|\Z)"


ESCAPED_ANGLE_BRACKET = r"&(?:amp;)*+lt;"
ESCAPED_SQUARE_BRACKET = r"&(?:amp;)*+#91;"


@cache
def compile_markup() -> re.Pattern[str]:
    """Return the pattern of the bracket that begins a template's markup, escaped or not. What must
    follow it holds neither a bracket nor an `&`: it is the same in the escaped text.

    It and the pattern of tags are compiled for the first text, not by the import: that takes 50 ms,
    which a server without memory saves."""
    return re.compile(
        rf"(?:<|{ESCAPED_ANGLE_BRACKET})(?={'|'.join(_ANGLE_TOKENS)}|{_tag_pattern(_SYSTEM_TAGS)})"
        rf"|(?<!\w)(?:<|{ESCAPED_ANGLE_BRACKET})(?={_tag_pattern(_ROLE_TAGS)})"
        rf"|(?:\[|{ESCAPED_SQUARE_BRACKET})(?=/?(?:{'|'.join(_SQUARE_TOKENS)})\])"
    )


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


@cache
def _compile_tag_beginning() -> re.Pattern[str]:
    """Return the pattern of a bracket, the run after it, and any spelling of a name of ours."""
    spelt = (
        r"[\W_]*".join(INVISIBLE_CHARACTERS.join(word) for word in name.split("-"))
        for name in sorted(PROMPT_TAGS, key=len, reverse=True)
    )
    name = f"(?:{'|'.join(spelt)}){INVISIBLE_CHARACTERS}(?![^\\W_])"
    # A run is taken whole (possessively) whether a name follows or not: that keeps the search
    # linear on `<<<<…`.
    return re.compile(
        rf"(?:<|{ESCAPED_ANGLE_BRACKET})(?:<|{ESCAPED_ANGLE_BRACKET}|[\W_])*+(?P<named>(?={name})|\Z)?",
        re.IGNORECASE,
    )


_OPENING_BRACKET = re.compile(rf"<|{ESCAPED_ANGLE_BRACKET}")
_ESCAPED_BRACKETS = {"<": "&lt;", "[": "&#91;"}
_UNESCAPED_BRACKETS = {escaped: bracket for bracket, escaped in _ESCAPED_BRACKETS.items()}


def escape(text: str) -> str:
    """Escape a text between prompt tags. A text without anything like a tag is returned as it
    is."""
    safe = _compile_tag_beginning().sub(
        lambda run: (
            _OPENING_BRACKET.sub(_escape_bracket, run[0]) if run["named"] is not None else run[0]
        ),
        text,
    )
    return compile_markup().sub(_escape_bracket, safe)


def unescape(text: str) -> str:
    """Undo `escape`, for text that a model copied out of escaped text."""
    without_markup = compile_markup().sub(_unescape_bracket, text)
    return _compile_tag_beginning().sub(
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
