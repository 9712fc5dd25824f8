"""Read the proxy's tags in a memory model's answer, and tell an answer that the model finished from
one that was cut off (docs/contributing/behaviour.md#answers).

A cut-off answer looks like a good one: its first notes are whole, and the later notes are missing.
If it counted, messages would leave the prompt although no note covers them.

- The server says that the model was stopped: cut off, however the text looks.
- The server says nothing, or an unknown word: cut off unless `<observations>` is closed.
- The server says that the model stopped by itself: small models forget the closing tag. Without it
  the answer counts only if nothing else is missing and its last line is whole.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Finish = Literal["stop", "cut", "unknown"]

# in lower case: `stop` is OpenAI's; the others are Anthropic's, Cohere's, TGI's and Replicate's
STOP_REASONS = frozenset(
    {
        "stop",
        "end_turn",
        "stop_sequence",
        "eos",
        "eos_token",
        "complete",
        "completed",
        "finish_reason_stop",
    }
)
# OpenAI, Anthropic, Gemini, Mistral, Cohere, DeepSeek, Z.ai, Bedrock. A memory model is offered no
# tools: a call of one is no answer.
CUT_REASONS = frozenset({
    "length", "max_tokens", "max_output_tokens", "max_length", "model_length", "model_context_window_exceeded", "content_filter",
    "content_filtered", "safety", "recitation", "language", "blocklist", "prohibited_content", "spii", "image_safety", "sensitive",
    "refusal", "guardrail_intervened", "malformed_function_call", "tool_calls", "tool_use", "function_call", "pause_turn", "error",
    "error_toxic", "error_limit", "user_cancel", "cancelled", "abort", "aborted", "timeout", "time_limit", "network_error",
    "insufficient_system_resource",
})  # fmt: skip

# Quantifiers that could meet a run of blanks or marks twice are possessive: a model may write a
# long answer, and matching must stay linear.
TAG_PATTERN = re.compile(
    r"<\s*+(?P<close>/?)\s*+(?:(?P<observations>observations?)|(?P<task>current[-_ ]?task)"
    r"|(?P<suggestion>suggested[-_ ]?response)|(?P<title>thread[-_ ]?title))(?:\s[^<>\n]*)?/?>",
    re.IGNORECASE,
)
_DECORATION_BEFORE = re.compile(r"\s*+(?:>\s*+)*+(?:\*\*|#{1,6}\s++|```\w*\s*+)?")
_DECORATION_AFTER = re.compile(r"\s*+(?:\*\*|```)?\s*+")

_THREAD_TAG = re.compile(r"<\s*+(?P<close>/?)\s*+thread\b[^<>\n]*>", re.IGNORECASE)
_CODE_FENCE = re.compile(r"\s*+```[\w-]*\s*+")
_DATE_HEADING = re.compile(r"\W*+date:", re.IGNORECASE)
_PARTIAL_TAG = re.compile(r"<[^<>\s][^<>]*$|<$")
_QUOTE_BEGIN = re.compile(r"(?:^|[\s(])[\"“«„](?=\S)")
_QUOTE_END = re.compile(r"[\"”»]")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’»)\]*`]*$")
_GOES_ON = tuple(",;:([{<-–—/=+&|、，：；（「")  # no line of notes ends so
_LINE_MARK = re.compile(r"[\s*+•🔴🟡🟢✅\ufe0f-]*+(?:\(\d{1,2}(?::\d{0,2})?\)?)?\s*+")


class Tag(NamedTuple):
    """A tag of the proxy in a text; `placed`: only decoration shares its side of the line."""

    name: str
    closes: bool
    start: int
    end: int
    placed: bool


def read_tags(text: str) -> list[Tag]:
    """Read every tag of the proxy in a text, in order."""
    matches = list(TAG_PATTERN.finditer(text))
    ends = [0, *(tag.end() for tag in matches)]
    starts = [*(tag.start() for tag in matches[1:]), len(text)]
    return [
        Tag(
            tag.lastgroup or "",
            bool(tag["close"]),
            tag.start(),
            tag.end(),
            _is_placed(text, tag, before, after),
        )
        for tag, before, after in zip(matches, ends, starts, strict=False)
    ]


def _is_placed(text: str, tag: re.Match[str], previous_end: int, next_start: int) -> bool:
    """Return whether only decoration shares the tag's side of the line. A neighbouring tag on the
    same line counts as the line's end."""
    before = text[previous_end : tag.start()].rpartition("\n")[2]
    if _DECORATION_BEFORE.fullmatch(before):
        return True
    after = text[tag.end() : next_start].partition("\n")[0]
    return bool(tag["close"] and _DECORATION_AFTER.fullmatch(after))


def read_finish(reason: object) -> Finish:
    """Read a server's finish reason, in any case."""
    word = reason.lower() if isinstance(reason, str) else ""
    return "stop" if word in STOP_REASONS else "cut" if word in CUT_REASONS else "unknown"


def is_cut_off(answer: str, finish: Finish) -> bool:
    """Return whether the end of an answer is missing. `answer` holds no reasoning any more."""
    if finish == "cut":
        return True
    notes = [tag for tag in read_tags(answer) if tag.name == "observations"]
    opened = _find_last_opened(notes)
    if any(tag.closes and tag.start > (opened.start if opened else -1) for tag in notes):
        return False
    if finish == "unknown":
        return True
    return opened is not None and not _lacks_only_its_tag(answer[opened.end :])


def _find_last_opened(notes: list[Tag]) -> Tag | None:
    """Find the last opening tag that is meant: the last placed one, or the last of all if none is
    placed."""
    opened = [tag for tag in notes if not tag.closes]
    placed = [tag for tag in opened if tag.placed]
    return next(reversed(placed or opened), None)


def _lacks_only_its_tag(block: str) -> bool:
    """Return whether an unclosed block is complete apart from its closing tag."""
    hints = [tag for tag in read_tags(block) if tag.placed and tag.name != "observations"]
    if hints and not hints[-1].closes:
        return False
    threads = [bool(tag["close"]) for tag in _THREAD_TAG.finditer(block)]
    if threads.count(False) > threads.count(True):
        return False
    ends = [hint.end for hint in hints] + [
        tag.end() for tag in _THREAD_TAG.finditer(block) if tag["close"]
    ]
    last_notes = block[max(ends, default=0) :]
    return bool(ends and not last_notes.strip()) or _has_whole_end(last_notes)


def _has_whole_end(notes: str) -> bool:
    """Return whether the last line of notes was written to its end, as far as a line can tell."""
    lines = [line.rstrip() for line in notes.split("\n") if line.strip()]
    if not lines or _DATE_HEADING.match(lines[-1]):
        return False
    last = lines[-1]
    if _CODE_FENCE.fullmatch(last) or notes.endswith("\n"):
        return True
    if (
        _LINE_MARK.fullmatch(last)
        or last.endswith(_GOES_ON)
        or _PARTIAL_TAG.search(last)
        or _has_open_pair(last)
    ):
        return False
    others = [line for line in lines[:-1] if not _DATE_HEADING.match(line)]
    ends_with_full_stops = len(others) > 1 and all(map(_SENTENCE_END.search, others))
    return not ends_with_full_stops or _SENTENCE_END.search(last) is not None


def _has_open_pair(line: str) -> bool:
    """Return whether a bracket, a quotation or a piece of code is open at the end of a line."""
    pairs = ("()", "[]", "{}", "（）", "「」")
    open_bracket = any(line.count(pair[0]) > line.count(pair[1]) for pair in pairs)
    return open_bracket or line.count("`") % 2 == 1 or _has_open_quote(line)


def _has_open_quote(line: str) -> bool:
    """Return whether a quotation is open at the end of a line. Only the last beginning counts: its
    end also ends the earlier ones, and a search from each beginning takes quadratic time."""
    start = next(reversed([quote.end() for quote in _QUOTE_BEGIN.finditer(line)]), None)
    return start is not None and _QUOTE_END.search(line, start + 1) is None
