"""Answer a question from the text of a prompt alone, and look up what the prompt does not show, with
the tool that the proxy offers.

The rule: split everything shown into statements, and take the one that shares the most rare words
with the question. A statement must share at least half of the question's words and every name in
it, and must not be a question itself. So an answer proves that the prompt held the fact; without
the fact, there is no answer. After a look-up, its result alone is shown.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_SHARED_WORDS_SHARE = 0.5  # of the question's words

_WORD = re.compile(r"[\w°]+(?:[.'’-]\w+)*")
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z]\w+(?: [A-Z]\w+)*")  # capitals inside a sentence
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'“`*(])")
_HEADING = re.compile(r"^\W*date:\s*(\w+\.? \d{1,2}, \d{4})", re.IGNORECASE)
_BULLET = re.compile(r"^\s*[*\-•]\s*(?:[🔴🟡🟢✅]\s*)?(?:\(\d{1,2}:\d{2}\)\s*)?")
_SPEAKER = re.compile(r"^(?:User|Assistant)(?: \w+)?:\s*")
# words that carry no meaning of their own in a question
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about again all am an and any are as at be been beginning but by can could day did do does exactly first for from gave "
        "give had has have how i if in into is it its just last let many may me more most much my need no not of off on one or our "
        "out over own please remember said say should so some still tell than thank thanks that the their them then there these "
        "they thing this to told two under up us very was we were what when where which who will with would write you your",
    )
)


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    date: str | None  # of the `Date:` heading above it, in an observation block


def find_statement(question: str, texts: Sequence[str]) -> Statement | None:
    """Find the statement in `texts` that answers the question. Return None if there is none."""
    question_words = frozenset(list_content_words(question))
    names = question_words.intersection(list_content_words(" ".join(_NAME.findall(question))))
    min_shared_words = max(1, MIN_SHARED_WORDS_SHARE * len(question_words))
    candidates = [
        (statement, question_words.intersection(list_content_words(statement.text)))
        for statement in split_statements(texts)
    ]
    occurrences = Counter(word for _, shared_words in candidates for word in shared_words)
    fitting = [
        (statement, shared_words)
        for statement, shared_words in candidates
        if shared_words >= names and len(shared_words) >= min_shared_words
    ]

    def score(candidate: tuple[Statement, frozenset[str]]) -> float:
        return sum(1 / occurrences[word] for word in candidate[1])

    # the first of equal statements wins: it is the source, the others repeat it
    best = max(fitting, key=score, default=None)
    return best[0] if best else None


def split_statements(texts: Iterable[str]) -> Iterator[Statement]:
    """Yield the sentences and bullet lines of the texts, without the questions."""
    for text in texts:
        date = None
        for line in text.splitlines():
            heading = _HEADING.match(line)
            date = heading[1] if heading else date
            if "🟡" in line:
                continue
            statement_text = _SPEAKER.sub("", _BULLET.sub("", line)).strip()
            for sentence in _SENTENCE_END.split(statement_text):
                if sentence and not sentence.endswith("?"):
                    yield Statement(sentence, date)


def list_content_words(text: str) -> Iterator[str]:
    """Yield the words that carry meaning, in lower case and without a plural's "s"."""
    for word in _WORD.findall(text.lower()):
        if word not in _STOP_WORDS and (len(word) > 2 or word[0].isdigit()):
            yield word[:-1] if len(word) > 3 and word.endswith("s") else word


TOOL_NAMES = ("recall", "om_recall")
CALL_ID_PREFIX = "look-up-"
MAX_RESULTS = 5  # fewer results show more of each message
QUOTE_INDENT = "  "  # of quoted lines; the others are the proxy's

Message = Mapping[str, Any]


def find_tool(request: Mapping[str, Any]) -> str | None:
    """Return the name of the tool for look-ups that a chat request offers."""
    names = [tool["function"]["name"] for tool in request.get("tools") or () if "function" in tool]
    return next((name for name in reversed(names) if name in TOOL_NAMES), None)


def call_tool(tool: str, question: str, number: int) -> Message:
    """Return the assistant's message that searches for the words of a question."""
    words = " ".join(dict.fromkeys(list_content_words(question)))
    arguments = json.dumps(
        {"mode": "search", "query": words, "limit": MAX_RESULTS}, ensure_ascii=False
    )
    call = {
        "id": f"{CALL_ID_PREFIX}{number}",
        "type": "function",
        "function": {"name": tool, "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def is_result(message: Message) -> bool:
    """Return whether the message is what a look-up found."""
    return message.get("role") == "tool" and str(message.get("tool_call_id", "")).startswith(
        CALL_ID_PREFIX
    )


def find_answer(question: str, results: Sequence[Message]) -> str | None:
    """Return the answer that the results hold; None if they hold none."""
    quotes = [
        line.strip()
        for result in results
        for line in str(result["content"]).splitlines()
        if line.startswith(QUOTE_INDENT)
    ]
    statement = find_statement(question, quotes)
    return None if statement is None else f"I looked it up: {statement.text}"
