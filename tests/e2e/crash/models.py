"""The model server of the crash tests: an actor that never says the same twice, and memory models
that can be held to account."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from om_proxy.testing.notes import extract_transcript
from om_proxy.testing.scripted import OBSERVER, REFLECTOR, Fault, ScriptedServer, message_text

SAID = re.compile(r"\b[MR]\d{5}\b")  # what a user's message or an actor's reply is known by
NOTED = re.compile(
    r"\bA\d{5}\b"
)  # what an observer's answer is known by, also after it was reflected
FILLER = "the pallets for dock seven leave by the evening train and the papers follow them on the next one"


class Models(ScriptedServer):
    """`shown`: which messages an observer's answer is about. A retried request gets another reply
    than the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, tuple[str, ...]] = {}
        self._replies = count(1)
        self._answers = count(1)

    def choose_answer(
        self, model: str, messages: Sequence[Mapping[str, Any]], fault: Fault | None
    ) -> Mapping[str, Any]:
        text = message_text(messages[-1])
        if model == OBSERVER:
            return _notes(f"{self._observed(text)} was noted", "Reply with what comes next.")
        if model == REFLECTOR:
            return _notes(f"{' '.join(dict.fromkeys(NOTED.findall(text)))} all in all")
        return {
            "role": "assistant",
            "content": f"R{next(self._replies):05d} was taken down: {FILLER}.",
        }

    def _observed(self, prompt: str) -> str:
        name = f"A{next(self._answers):05d}"
        self.shown[name] = tuple(dict.fromkeys(SAID.findall(extract_transcript(prompt))))
        return name


def _notes(text: str, suggestion: str = "") -> Mapping[str, Any]:
    body = f"<observations>\nDate: Nov 21, 2023\n* 🔴 (10:00) {text}\n</observations>"
    hint = f"\n<suggested-response>{suggestion}</suggested-response>" if suggestion else ""
    return {"role": "assistant", "content": body + hint}
