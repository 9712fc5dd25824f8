"""Prompts of the systems that are compared, and of the judge: LongMemEval's own, for every benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from om_proxy.proof.evaluation.cases import Question, Session

MAX_REPLY_TOKENS = 500
MAX_VERDICT_TOKENS = 10


def render_judge_prompt(question: Question, reply: str) -> str:
    """Return the template of the question's kind, filled in."""
    templates = read_prompts()["judge"]
    kind = "abstention" if question.is_unanswerable else question.kind
    template: str = templates.get(kind) or templates["general"]
    return template.format(question.text, question.answer, reply)


def is_right(verdict: str) -> bool:
    """Read the judge's answer as LongMemEval's script does."""
    return "yes" in verdict.lower()


def render_history_prompt(sessions: Sequence[Session], question: Question) -> str:
    """Return the prompt that holds whole sessions, in its JSON form."""
    history = "".join(
        f"\n### Session {number}:\nSession Date: {session.date}\nSession Content:\n"
        f"\n{json.dumps(list(session.messages))}\n"
        for number, session in enumerate(sessions, 1)
    )
    template: str = read_prompts()["answer_from_history"]
    return template.format(history, question.date, question.text)


@cache
def read_prompts() -> dict[str, Any]:
    """Return LongMemEval's prompts, with their source and their licence."""
    file = files("om_proxy.proof.evaluation") / "longmemeval_prompts.json"
    prompts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return prompts


def build_body(text: str, model: str, max_tokens: int) -> dict[str, Any]:
    """Build a request with one message of the user; the same form for every system."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
