"""Find the markup of chat templates in a text from outside: a model takes it for a change of
speaker or for its runtime's voice.

Two kinds. Special tokens are one token each to the model that has them, wherever they are in a
prompt: `<|im_start|>` (ChatML, Qwen), `<|start_header_id|>` (Llama 3), `<start_of_turn>` (Gemma),
`[INST]` (Llama 2, Mistral), `<｜User｜>` (DeepSeek). Role tags are plain text that models have learnt
to obey: `<system>`, `<system-reminder>`, `<tool_result>`.

Only their first character is replaced (memory/escaping.py): `&lt;|im_start|>` is no token any more,
and a reader still knows what was said. Special tokens count only in their exact spelling. Role tags
count in any case and spelling, but only where a tag can be:
`List<User>`, `a < user` and `<System.String>` are code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
# The bracket of each, escaped or not. What must follow it holds neither a bracket nor an `&`: it is
# the same in the escaped text.
MARKUP_PATTERN = re.compile(
    rf"(?:<|{ESCAPED_ANGLE_BRACKET})(?={'|'.join(_ANGLE_TOKENS)}|{_tag_pattern(_SYSTEM_TAGS)})"
    rf"|(?<!\w)(?:<|{ESCAPED_ANGLE_BRACKET})(?={_tag_pattern(_ROLE_TAGS)})"
    rf"|(?:\[|{ESCAPED_SQUARE_BRACKET})(?=/?(?:{'|'.join(_SQUARE_TOKENS)})\])"
)
