"""Find out from the log whether the sessions that hold a question's answer reached its prompt.

A session is one of the oracle's prompt. It reached the prompt of `om` if each of its messages stands
there raw, or was shown to the memory model under a day whose notes stand there. What the notes say of
it is another question: correctness is reported beside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from om_proxy.proof.evaluation.call_log import CallRecord
from om_proxy.proof.evaluation.logged_models import MEMORY_STEP
from om_proxy.proof.needed import NOTES_PATTERN

ACTOR_STEP, ORACLE_STEP = "actor:om", "actor:oracle"
COMPARED_CHARS = 200  # of a message: a long one is shown to the memory model in part
_SESSION_PATTERN = re.compile(r"^Session Content:\n\n(\[.*\])$", re.MULTILINE)
_DAY_PATTERN = re.compile(
    r"^Date: (?:on or before )?(?:[A-Z][a-z]+day, )?([A-Z][a-z]+ \d{1,2}, \d{4})", re.MULTILINE
)


class Reach(NamedTuple):
    """Of one question: the sessions that hold its answer, and how many reached its prompt."""

    sessions: int
    reached: int


class EvidenceReach:
    """Takes the records of a run in order. `by_question` has those that both systems were asked."""

    def __init__(self) -> None:
        self.by_question: dict[str, Reach] = {}
        self._case = ""
        self._shown: list[tuple[str, str]] = []  # of the case: day, and what was shown under it
        self._prompts: dict[str, str] = {}  # of the case, by question

    def add(self, record: CallRecord) -> None:
        step, case = record.key.step, record.key.case
        prompt = "\n".join(list_texts(record))
        if step == MEMORY_STEP:
            if case != self._case:
                self._case, self._shown, self._prompts = case, [], {}
            self._shown += split_days(prompt.partition("# New messages")[2])
        elif step == ACTOR_STEP:
            self._prompts[case] = prompt
        elif step == ORACLE_STEP and case in self._prompts:
            sessions = list(read_sessions(prompt))
            reached = sum(self._has_reached(messages, case) for messages in sessions)
            self.by_question[case] = Reach(len(sessions), reached)

    def _has_reached(self, messages: list[str], question: str) -> bool:
        prompt = self._prompts[question]
        days = set(_DAY_PATTERN.findall("".join(NOTES_PATTERN.findall(prompt))))
        noted = [text for day, text in self._shown if day in days]
        raw = join_words(NOTES_PATTERN.sub("", prompt))
        return all(any(m in text for text in (raw, *noted)) for m in messages)


def list_texts(record: CallRecord) -> Iterator[str]:
    for message in record.request["messages"]:
        content = message["content"]
        yield content if isinstance(content, str) else "\n".join(p.get("text", "") for p in content)


def split_days(transcript: str) -> Iterator[tuple[str, str]]:
    """Yield each day of a transcript with what was said on it."""
    _, *parts = _DAY_PATTERN.split(transcript)
    yield from zip(parts[::2], map(join_words, parts[1::2]), strict=True)


def read_sessions(prompt: str) -> Iterator[list[str]]:
    """Yield the messages of each session of the oracle's prompt, as they are compared."""
    for session in _SESSION_PATTERN.findall(prompt):
        yield [join_words(message["content"])[:COMPARED_CHARS] for message in json.loads(session)]


def join_words(text: str) -> str:
    return " ".join(text.split())
