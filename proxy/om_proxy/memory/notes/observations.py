"""Read a memory model's answer: the observations in it, or the reason why nothing in it may enter a
memory.

Reading is lenient in form, strict in substance (docs/contributing/behaviour.md#answers). Tags count
anywhere, in any case, on one line, inside code fences, unclosed, several times. Without tags,
bullet lines count, unless they are the list of an answer to a person. An answer that is empty, a
refusal, prose, a loop, cut off, or much longer than its source, is `Unusable`.

The one hard question of form is whether a tag is meant or quoted, in notes on a conversation about
this very format. A tag is *placed* if only decoration shares its side of the line: the side before
it for an opening tag, either side for a closing tag. A tag that is not placed counts only if no tag
is placed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple

from om_proxy.common.errors import CutOff, Oversized, Unusable
from om_proxy.common.late_patterns import compile_late
from om_proxy.memory.escaping import unescape
from om_proxy.memory.notes.cut_off import TAG_PATTERN, Finish, Tag, is_cut_off, read_tags
from om_proxy.memory.notes.repetition import is_repetition_loop

ALWAYS_ACCEPTED_TOKENS = 1_000  # a text up to here is never too long for what it is about
MAX_GROWTH_FACTOR = 2  # a longer text may be this many times as long as its source
MAX_HINT_CHARS = 2_000  # of a current task or suggested response; they are in every prompt
MAX_TITLE_CHARS = 100
REFUSAL_SEARCH_CHARS = 2_000  # of an answer or a bullet: a refusal begins within them

# Quantifiers that could meet a run of blanks or marks twice are possessive: a model may write a
# long answer, and matching must stay linear.
_THINK = r"think(?:ing)?|thought|reasoning"
_REASONING_BLOCK = compile_late(
    rf"\A\s*+<(?:{_THINK})>(?:.*?</(?:{_THINK})>|.*)|\A.*?^[ \t]*+</(?:{_THINK})>",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
# further ones, where a line begins, or a tag of the format ends; inside a line it may be a quotation
_INNER_REASONING = compile_late(
    rf"(?:^|(?<=observations>))[ \t]*+<({_THINK})>(?:.*?</\1>|.*)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
# the channels of OpenAI's open models, as they come from a server that does not read them, and
# without their special tokens
_CHANNEL = compile_late(
    r"(?:<\|start\|>[^<]*+)?<\|channel\|>\s*+(\w++)[^<]*+(?:<\|constrain\|>[^<]*+)?<\|message\|>"
)
_CHANNEL_END = compile_late(r"<\|(?:end|return|call)\|>")
_BARE_CHANNELS = compile_late(r"\A\s*+analysis.*?assistant\s*+final", re.DOTALL)
_ONLY_A_TAG = compile_late(r"\s*+</?(?:thread(?:\s[^<>\n]*)?|observations?)>\s*+", re.IGNORECASE)
_CODE_FENCE = compile_late(r"\s*+(?:```[\w-]*|\*\*)?\s*+")  # or what is left of a bold tag
_BULLET_LINE = compile_late(
    r"\s*+(?:(?:[*+•‣◦–—-]|\d{1,3}[.)])(?:\s++|(?=[🔴🟡🟢✅(]))|(?:[・·●]\s*+)?(?=[🔴🟡🟢✅]))"
    r"(?:[🔴🟡🟢✅]\ufe0f?\s*+)?(?:\(\d{1,2}:\d{2}\)\s*+)?(?P<said>.*\w.*)"
)
_DATE_LINE = compile_late(r"\W*+date:\s*\S", re.IGNORECASE)
_NEXT_BULLET = compile_late(r"(?<![ \t])[ \t]++(?=[*•-][ \t]*[🔴🟡🟢✅])")
_NOTE_MARK = compile_late(
    r"[🔴🟡🟢✅]|\(\d{1,2}:\d{2}\)|^[ \t#*]*+date:", re.IGNORECASE | re.MULTILINE
)
# four words, or 24 characters in a script without spaces
_WHOLE_SENTENCE = compile_late(r"\s*+(?!#|\*\*)(?:\S++\s++\S++\s++\S++\s++\S|\S.{23})")
_REFUSAL_TEXT = compile_late(
    r"\W*+(?:(?:i['’]?m|i am|we['’]?re) (?:really |very |so )?(?:sorry|unable|not able|afraid)|sorry\b|as an ai\b|unfortunately,? i\b"
    r"|i (?:can['’]?t|can ?not|won['’]?t|must (?:respectfully )?decline|apologi[sz]e|do not feel comfortable)|(?:my )?apologies\b"
    r"|request (?:blocked|refused)|this (?:request|content) (?:violates|was blocked)"
    r"|(?:es )?tut mir (?:sehr )?leid|leider kann ich|(?:je suis )?(?:vraiment )?désolée?\b|je ne peux pas|lo siento|no puedo"
    r"|desculpe|sinto muito|não posso|mi dispiace|non posso|извините|к сожалению,? я|я не могу"
    r"|(?:非常|很|十分)?(?:抱歉|对不起|對不起)|我(?:无法|無法|不能)|(?:大変)?申し訳|죄송|미안)",
    re.IGNORECASE,
)
_NOTHING_TEXT = compile_late(
    r"\W*+(?:(?:none|nothing|n/?a|empty|no (?:new |notable )?observations?)(?: yet| to (?:observe|note|report))?"
    r"|nichts|keine(?: neuen)?(?: beobachtungen)?|rien|aucune?(?: observation)?|nada|ninguna?|nenhuma?|niente|nessuna?"
    r"|нет|ничего|无|無|没有|沒有|特?になし|なし|없음)\W*+",
    re.IGNORECASE,
)
_NO_HINT = compile_late(r"\W*+(?:none|n/?a|null|nothing|empty)?\W*+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ParsedNotes:
    """Notes that may enter a memory. A hint that the answer left out is None: the older hint still
    holds. The repr holds no text, so it may be logged."""

    text: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)


class Span(NamedTuple):
    """A tagged section: the characters it takes with its tags, and what is between them."""

    start: int
    end: int
    body: str


def parse_observation(
    answer: str, *, source_tokens: int, tokens: Callable[[str], int], finish: Finish = "stop"
) -> ParsedNotes:
    """Parse an observer's answer about messages of `source_tokens`; `finish`: how the model ended
    it.

    Raises `Unusable` naming one of: empty, refusal, prose, loop, oversized; `CutOff` if its end is
    missing. The text of the answer is never in the error.
    """
    if finish == "cut":
        refuse_cut_off(answer, finish)
    answer = remove_reasoning(answer)
    without_hints, hints = _split_hints(answer)
    text, outside = _extract_observations(without_hints)
    if reason := _find_fault(text, without_hints):
        raise Unusable(f"the answer is no observation: {reason}")
    if _is_oversized(text, source_tokens, tokens):
        raise Oversized("the answer is no observation: oversized")
    refuse_cut_off(answer, finish)
    for name in ("task", "suggestion", "title"):
        hints.setdefault(name, _find_loose_hint(outside, name))
    title = " ".join((hints["title"] or "").split()).strip("\"'`*# ")[:MAX_TITLE_CHARS].strip()
    return ParsedNotes(unescape(text), hints["task"], hints["suggestion"], title or None)


def parse_reflection(
    answer: str, *, source_tokens: int, tokens: Callable[[str], int]
) -> ParsedNotes:
    """Parse a reflector's answer about entries of `source_tokens`, as an observer's, but without a
    title."""
    parsed = parse_observation(answer, source_tokens=source_tokens, tokens=tokens)
    return ParsedNotes(parsed.text, parsed.task, parsed.suggestion)


def refuse_cut_off(answer: str, finish: Finish) -> None:
    """Raise `CutOff` if the end of an answer is missing."""
    if is_cut_off(remove_reasoning(answer), finish):
        raise CutOff("the answer has no end: it was cut off")


def remove_reasoning(answer: str) -> str:
    """Remove the reasoning that a model wrote ahead of its answer, or inside it."""
    answer = answer.replace("\r\n", "\n")
    if "<|channel|>" in answer:
        _, *parts = _CHANNEL.split(answer)
        final = [
            text for name, text in zip(parts[::2], parts[1::2], strict=True) if name == "final"
        ]
        answer = _CHANNEL_END.sub("", "".join(final))
    answer = _REASONING_BLOCK.sub("", _BARE_CHANNELS.sub("", answer), count=1)
    return _INNER_REASONING.sub("", answer)


# ── form ──────────────────────────────────────────────────────────────────────────────────────────


def _extract_observations(text: str) -> tuple[str, str]:
    """Extract the observations, and the text outside their tags. Without tags, or with nothing in
    the tags, the bullet lines are the observations."""
    spans = list(_find_blocks(text))
    outside = _remove_spans(text, spans)
    bodies = [body for span in spans if (body := _tidy_bullets(span.body))]
    joined = "\n".join(bodies)
    if any(map(_BULLET_LINE.match, joined.split("\n"))):
        return joined, outside
    lines = TAG_PATTERN.sub("", text).split("\n")
    kept = [line.rstrip() for line in lines if _BULLET_LINE.match(line) or _DATE_LINE.match(line)]
    return ("\n".join(kept), outside) if any(map(_BULLET_LINE.match, kept)) else (joined, outside)


def _find_blocks(text: str) -> Iterator[Span]:
    """Find the blocks, each from an opening tag to the last closing tag before the next opening
    tag: a block may quote the tag that ends it."""
    tags = [tag for tag in read_tags(text) if tag.name == "observations"]
    has_placed = any(tag.placed and not tag.closes for tag in tags)
    opened: Tag | None = None
    close: Tag | None = None
    for tag in tags:
        if tag.closes:
            close = tag if tag.placed or close is None or not close.placed else close
        elif tag.placed or not has_placed:
            if opened:
                yield _make_span(text, opened, close, tag.start)
            opened, close = tag, None
        else:
            continue
        close = close if opened else None
    if opened:
        yield _make_span(text, opened, close, len(text))


def _make_span(text: str, opened: Tag, close: Tag | None, limit: int) -> Span:
    """Return the section between these tags; an unclosed section goes on to the limit."""
    if close is None:
        return Span(opened.start, limit, text[opened.end : limit])
    return Span(opened.start, close.end, text[opened.end : close.start])


def _split_hints(text: str) -> tuple[str, dict[str, str | None]]:
    """Split the placed hint sections from the text. The last hint of a name that is not empty
    counts."""
    hints: dict[str, str | None] = {}
    spans: list[Span] = []
    for tag, following in pairwise([*(tag for tag in read_tags(text) if tag.placed), None]):
        if tag is None or tag.closes or tag.name == "observations":
            continue
        close = following if following and following.closes and following.name == tag.name else None
        span = _make_span(text, tag, close, following.start if following else len(text))
        spans.append(span)
        hint = _read_hint(TAG_PATTERN.sub("", span.body))
        if hint:
            hints[tag.name] = hint
        elif hint == "" and close and tag.name == "task":
            hints.setdefault(tag.name, "")  # nothing is open any more
    return _remove_spans(text, spans), hints


def _find_loose_hint(text: str, name: str) -> str | None:
    """Find a hint whose tags are in the middle of a line outside the observations. Both tags are
    needed."""
    for tag, close in pairwise(tag for tag in read_tags(text) if tag.name == name):
        if not tag.closes and close.closes and (hint := _read_hint(text[tag.end : close.start])):
            return hint
    return None


def _read_hint(body: str) -> str | None:
    """Read a hint: empty if it says nothing, None if it only repeats itself. A long hint is cut,
    because it is in every prompt."""
    hint = unescape(_tidy_bullets(body).strip())
    if _NO_HINT.fullmatch(hint):
        return ""
    if is_repetition_loop(hint):
        return None
    return hint if len(hint) <= MAX_HINT_CHARS else hint[: MAX_HINT_CHARS - 1].rstrip() + "…"


def _remove_spans(text: str, spans: list[Span]) -> str:
    """Return the text without these spans, which are in order."""
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), len(text)]
    return "\n".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _tidy_bullets(body: str) -> str:
    """Remove fences around the body, lone tags, trailing blanks and repeated empty lines.
    Indentation stays."""
    body = _drop_closing_tags(body)
    if "\n" not in body.strip():
        body = _NEXT_BULLET.sub("\n", body.strip())
    lines = [line.rstrip() for line in body.split("\n") if not _ONLY_A_TAG.fullmatch(line)]
    inside = [i for i, line in enumerate(lines) if not _CODE_FENCE.fullmatch(line)]
    kept = lines[inside[0] : inside[-1] + 1] if inside else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept))


def _drop_closing_tags(body: str) -> str:
    """Drop the closing tags at the end of a body, which belong to tags inside tags."""
    end = len(body)
    for tag in reversed(read_tags(body)):
        if not tag.closes or body[tag.end : end].strip():
            break
        end = tag.start
    return body[:end]


# ── substance ─────────────────────────────────────────────────────────────────────────────────────


def _find_fault(text: str, answer: str) -> str | None:
    """Return the word for what makes the notes in `text` unusable. `answer`: without its hints."""
    bullets = [bullet["said"] for line in text.split("\n") if (bullet := _BULLET_LINE.match(line))]
    if not bullets:
        words = TAG_PATTERN.sub("", text or answer).strip()
        return "empty" if not words else "refusal" if _refuses(words) else "prose"
    if all(map(_NOTHING_TEXT.fullmatch, bullets)):
        return "empty"
    is_untagged = not TAG_PATTERN.search(answer)
    # a polite opening before a tagged block is no refusal; alternatives after a refusal are one
    if all(map(_refuses, bullets)) or (is_untagged and _refuses(answer)):
        return "refusal"
    if is_untagged and _is_addressed(answer):
        return "prose"
    return "loop" if is_repetition_loop(text) else None


def _refuses(text: str) -> bool:
    return _REFUSAL_TEXT.match(text, 0, REFUSAL_SEARCH_CHARS) is not None


def _is_addressed(answer: str) -> bool:
    """Return whether the answer speaks to a person: a sentence, then a list, and no mark, time or
    date as notes have them.

    Errors with their figures, advice with its steps and answers to the user look like this.
    """
    ahead = takewhile(lambda line: not _BULLET_LINE.match(line), answer.split("\n"))
    return not _NOTE_MARK.search(answer) and any(map(_WHOLE_SENTENCE.match, ahead))


def _is_oversized(text: str, source_tokens: int, tokens: Callable[[str], int]) -> bool:
    size = tokens(text)
    return size > ALWAYS_ACCEPTED_TOKENS and size > MAX_GROWTH_FACTOR * source_tokens
