"""Read what a memory model answered: the observations in it, or the reason why nothing in it may enter a memory.

Lenient in form, strict in substance (docs/spec/behaviour.md#answers). Tags count wherever they
stand, in any case, on one line, inside code fences, unclosed, several times; without them, bullet
lines count, unless they are the list of an answer to somebody. But what is empty, a refusal, prose,
a loop, cut off, or much longer than what it is about, is `Unusable`.

The one hard question of form is whether a tag is meant or talked about (notes on a conversation about this very format). A tag
is *placed* if nothing but decoration shares its side of the line: an opening tag with what is before it, a closing tag with
either side. Placed tags are believed; others only where there is no placed one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple

from om_proxy.errors import CutOff, Oversized, Unusable
from om_proxy.memory.cut_off import Finish, is_cut_off
from om_proxy.memory.escaping import unescape
from om_proxy.memory.loops import loops
from om_proxy.memory.previous import previous_observations
from om_proxy.memory.tags import TAG_PATTERN, Tag, read_tags

__all__ = ["Parsed", "parse", "parse_reflection", "previous_observations"]

ALWAYS_ACCEPTED_TOKENS = 1_000  # a text up to here is never too long for what it is about
MAX_GROWTH_FACTOR = 2  # how many times as long as its source a longer one may be
MAX_HINT_CHARS = 2_000  # of a current task or suggested response; they are in every prompt
MAX_TITLE_CHARS = 100
REFUSAL_SEARCH_CHARS = 2_000  # of an answer or a bullet: a refusal begins within them

# Quantifiers that could meet a run of blanks or marks twice are possessive: an answer may be long, and is a model's.
_REASONING = re.compile(
    r"\A\s*+<think(?:ing)?>(?:.*?</think(?:ing)?>|.*)|\A.*?^[ \t]*+</think(?:ing)?>",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_ONLY_A_TAG = re.compile(r"\s*+</?(?:thread(?:\s[^<>\n]*)?|observations?)>\s*+", re.IGNORECASE)
_FENCE = re.compile(r"\s*+(?:```[\w-]*|\*\*)?\s*+")  # or what is left of a bold tag
_BULLET = re.compile(
    r"\s*+(?:(?:[*+•‣◦–—-]|\d{1,3}[.)])(?:\s++|(?=[🔴🟡🟢✅(]))|(?:[・·●]\s*+)?(?=[🔴🟡🟢✅]))"
    r"(?:[🔴🟡🟢✅]\ufe0f?\s*+)?(?:\(\d{1,2}:\d{2}\)\s*+)?(?P<said>.*\w.*)"
)
_DATE_LINE = re.compile(r"\W*+date:\s*\S", re.IGNORECASE)
_NEXT_BULLET = re.compile(r"(?<![ \t])[ \t]++(?=[*•-][ \t]*[🔴🟡🟢✅])")
_NOTED = re.compile(r"[🔴🟡🟢✅]|\(\d{1,2}:\d{2}\)|^[ \t#*]*+date:", re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(
    r"\s*+(?!#|\*\*)(?:\S++\s++\S++\s++\S++\s++\S|\S.{23})"
)  # four words, or 24 characters where none stand apart
_REFUSAL = re.compile(
    r"\W*+(?:(?:i['’]?m|i am|we['’]?re) (?:really |very |so )?(?:sorry|unable|not able|afraid)|sorry\b|as an ai\b|unfortunately,? i\b"
    r"|i (?:can['’]?t|can ?not|won['’]?t|must (?:respectfully )?decline|apologi[sz]e|do not feel comfortable)|(?:my )?apologies\b"
    r"|request (?:blocked|refused)|this (?:request|content) (?:violates|was blocked)"
    r"|(?:es )?tut mir (?:sehr )?leid|leider kann ich|(?:je suis )?(?:vraiment )?désolée?\b|je ne peux pas|lo siento|no puedo"
    r"|desculpe|sinto muito|não posso|mi dispiace|non posso|извините|к сожалению,? я|я не могу"
    r"|(?:非常|很|十分)?(?:抱歉|对不起|對不起)|我(?:无法|無法|不能)|(?:大変)?申し訳|죄송|미안)",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"\W*+(?:(?:none|nothing|n/?a|empty|no (?:new |notable )?observations?)(?: yet| to (?:observe|note|report))?"
    r"|nichts|keine(?: neuen)?(?: beobachtungen)?|rien|aucune?(?: observation)?|nada|ninguna?|nenhuma?|niente|nessuna?"
    r"|нет|ничего|无|無|没有|沒有|特?になし|なし|없음)\W*+",
    re.IGNORECASE,
)
_NO_HINT = re.compile(r"\W*+(?:none|n/?a|null|nothing|empty)?\W*+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What may enter a memory. A hint the answer left out is None: the older one stands. Its repr holds none of it: it may be logged."""

    text: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)


class Span(NamedTuple):
    """A tagged section: the characters it takes with its tags, and what is between them."""

    start: int
    end: int
    body: str


def parse(answer: str, *, source_tokens: int, tokens: Callable[[str], int], finish: Finish = "stop") -> Parsed:
    """An observer's answer about messages of `source_tokens`; `finish`: how the model ended it.

    Raises `Unusable` naming one of: empty, refusal, prose, loop, oversized; `CutOff` where its end is missing. The text of the
    answer is never in the error.
    """
    if finish == "cut":
        refuse_cut_off(answer, finish)
    answer = without_reasoning(answer)
    rest, hints = _without_hints(answer)
    text, outside = _observations(rest)
    if reason := _unusable(text, rest):
        raise Unusable(f"the answer is no observation: {reason}")
    if _is_oversized(text, source_tokens, tokens):
        raise Oversized("the answer is no observation: oversized")
    refuse_cut_off(answer, finish)
    for name in ("task", "suggestion", "title"):
        hints.setdefault(name, _loose_hint(outside, name))
    title = " ".join((hints["title"] or "").split()).strip("\"'`*# ")[:MAX_TITLE_CHARS].strip()
    return Parsed(unescape(text), hints["task"], hints["suggestion"], title or None)


def parse_reflection(
    answer: str, *, source_tokens: int, tokens: Callable[[str], int], finish: Finish = "stop"
) -> Parsed:
    """A reflector's answer about entries of `source_tokens`: read alike, but a reflection names no thread."""
    parsed = parse(answer, source_tokens=source_tokens, tokens=tokens, finish=finish)
    return Parsed(parsed.text, parsed.task, parsed.suggestion)


def refuse_cut_off(answer: str, finish: Finish) -> None:
    """Raise `CutOff` where the end of an answer is missing."""
    if is_cut_off(without_reasoning(answer), finish):
        raise CutOff("the answer has no end: it was cut off")


def without_reasoning(answer: str) -> str:
    """What a model wrote after it thought aloud."""
    return _REASONING.sub("", answer.replace("\r\n", "\n"), count=1)


# ── form ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _observations(text: str) -> tuple[str, str]:
    """The observations, and what stands outside of their tags. Without tags, or with nothing in them: the bullet lines."""
    spans = list(_blocks(text))
    outside = _cut_out(text, spans)
    bodies = [body for span in spans if (body := _tidy(span.body))]
    joined = "\n".join(bodies)
    if any(map(_BULLET.match, joined.split("\n"))):
        return joined, outside
    lines = TAG_PATTERN.sub("", text).split("\n")
    kept = [line.rstrip() for line in lines if _BULLET.match(line) or _DATE_LINE.match(line)]
    return ("\n".join(kept), outside) if any(map(_BULLET.match, kept)) else (joined, outside)


def _blocks(text: str) -> Iterator[Span]:
    """From each opening tag to the last closing one before the next: a block may quote the tag that ends it."""
    tags = [tag for tag in read_tags(text) if tag.name == "observations"]
    believed = any(tag.placed and not tag.closes for tag in tags)
    opened: Tag | None = None
    close: Tag | None = None
    for tag in tags:
        if tag.closes:
            close = tag if tag.placed or close is None or not close.placed else close
        elif tag.placed or not believed:
            if opened:
                yield _span(text, opened, close, tag.start)
            opened, close = tag, None
        else:
            continue
        close = close if opened else None
    if opened:
        yield _span(text, opened, close, len(text))


def _span(text: str, opened: Tag, close: Tag | None, limit: int) -> Span:
    """An unclosed section goes on to the limit."""
    if close is None:
        return Span(opened.start, limit, text[opened.end : limit])
    return Span(opened.start, close.end, text[opened.end : close.start])


def _without_hints(text: str) -> tuple[str, dict[str, str | None]]:
    """The text without its placed hint sections, and what they say: of several the last that says something."""
    hints: dict[str, str | None] = {}
    spans: list[Span] = []
    for tag, following in pairwise([*(t for t in read_tags(text) if t.placed), None]):
        if tag is None or tag.closes or tag.name == "observations":
            continue
        close = following if following and following.closes and following.name == tag.name else None
        span = _span(text, tag, close, following.start if following else len(text))
        spans.append(span)
        hint = _hint(TAG_PATTERN.sub("", span.body))
        if hint:
            hints[tag.name] = hint
        elif hint == "" and close and tag.name == "task":
            hints.setdefault(tag.name, "")  # nothing is open any more
    return _cut_out(text, spans), hints


def _loose_hint(text: str, name: str) -> str | None:
    """A hint whose tags stand in the middle of a line outside the observations; both tags must be there."""
    for tag, close in pairwise(tag for tag in read_tags(text) if tag.name == name):
        if not tag.closes and close.closes and (hint := _hint(text[tag.end : close.start])):
            return hint
    return None


def _hint(body: str) -> str | None:
    """What a hint says, empty where it says nothing; None where it only repeats itself. A long one is cut: it is in every prompt."""
    said = unescape(_tidy(body).strip())
    if _NO_HINT.fullmatch(said):
        return ""
    if loops(said):
        return None
    return said if len(said) <= MAX_HINT_CHARS else said[: MAX_HINT_CHARS - 1].rstrip() + "…"


def _cut_out(text: str, spans: list[Span]) -> str:
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), len(text)]
    return "\n".join(text[end:start] for end, start in zip(ends, starts, strict=True))


def _tidy(body: str) -> str:
    """Without fences around it, lone tags, trailing blanks and more than one empty line; indentation stays."""
    body = _without_closing(body)
    if "\n" not in body.strip():
        body = _NEXT_BULLET.sub("\n", body.strip())
    lines = [line.rstrip() for line in body.split("\n") if not _ONLY_A_TAG.fullmatch(line)]
    told = [i for i, line in enumerate(lines) if not _FENCE.fullmatch(line)]
    kept = lines[told[0] : told[-1] + 1] if told else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept))


def _without_closing(body: str) -> str:
    """Without the closing tags it ends in: of tags inside of tags."""
    end = len(body)
    for tag in reversed(read_tags(body)):
        if not tag.closes or body[tag.end : end].strip():
            break
        end = tag.start
    return body[:end]


# ── substance ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _unusable(text: str, rest: str) -> str | None:
    said = [bullet["said"] for line in text.split("\n") if (bullet := _BULLET.match(line))]
    if not said:
        words = TAG_PATTERN.sub("", text or rest).strip()
        return "empty" if not words else "refusal" if _refuses(words) else "prose"
    if all(map(_NOTHING.fullmatch, said)):
        return "empty"
    untagged = not TAG_PATTERN.search(rest)
    if all(map(_refuses, said)) or (untagged and _refuses(rest)):
        return "refusal"  # a polite opening before a tagged block is none; a list of alternatives after a refusal is
    if untagged and _addressed(rest):
        return "prose"
    return "loop" if loops(text) else None


def _refuses(said: str) -> bool:
    return _REFUSAL.match(said, 0, REFUSAL_SEARCH_CHARS) is not None


def _addressed(rest: str) -> bool:
    """Whether it speaks to somebody: a sentence, then a list, and nowhere a mark, a time or a date as notes have them.

    So errors come with their figures, advice with its steps, and answers to what the user asked.
    """
    ahead = takewhile(lambda line: not _BULLET.match(line), rest.split("\n"))
    return not _NOTED.search(rest) and any(map(_SENTENCE.match, ahead))


def _is_oversized(text: str, source_tokens: int, tokens: Callable[[str], int]) -> bool:
    size = tokens(text)
    return size > ALWAYS_ACCEPTED_TOKENS and size > MAX_GROWTH_FACTOR * source_tokens
