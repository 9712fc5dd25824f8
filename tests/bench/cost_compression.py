"""How much shorter the notes are than what they stand for: of text, and of what tools returned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from om_proxy.agents.models import create_encoder
from om_proxy.memory.model import Memory
from om_proxy.proof.scripted_notes import RESULT_MARK
from tests.bench.replaying import Timed, counted
from tests.e2e.replay import Message


@dataclass(frozen=True, slots=True)
class Kind:
    """Tokens (o200k) that left the prompt, and those of the notes that stand for them."""

    source: int = 0
    notes: int = 0

    @property
    def times(self) -> float:
        return self.source / max(self.notes, 1)

    def __add__(self, other: Kind) -> Kind:
        return Kind(self.source + other.source, self.notes + other.notes)


@dataclass(frozen=True, slots=True)
class Compressed:
    """Calls of tools are text: their arguments are the assistant's words."""

    text: Kind
    results: Kind

    @property
    def whole(self) -> Kind:
        return self.text + self.results

    @classmethod
    def of(cls, memories: Sequence[Memory], calls: Sequence[Timed]) -> Compressed:
        newest = {call.thread: [*call.sent[1:], call.reply] for call in calls}
        covered = [
            m for memory in memories for m in newest[memory.key.thread][: memory.covered_count]
        ]
        results = sum(counted(m)[1] for m in covered if m["role"] == "tool")
        whole = sum(counted(m)[1] for m in covered)
        notes = [o.text for memory in memories for o in memory.log.entries]
        of_text, of_results = noted(notes, create_encoder(""))
        return cls(Kind(whole - results, of_text), Kind(results, of_results))


def noted(texts: Iterable[str], count: Callable[[str], int]) -> tuple[int, int]:
    """Tokens of the notes about text, and about what tools returned; dates belong to the first."""
    lines = [line for text in texts for line in text.splitlines()]
    results = [line for line in lines if line.startswith(f"* {RESULT_MARK}")]
    text = [line for line in lines if not line.startswith(f"* {RESULT_MARK}")]
    return count("\n".join(text)), count("\n".join(results))


def dialogues(path: Path) -> Iterator[Kind]:
    """Each recorded conversation of two people beside the observations that a model wrote of it,
    session by session."""
    count = create_encoder("")
    for conversation in json.loads(path.read_text(encoding="utf-8")):
        said, noted_ = conversation["conversation"], conversation["observation"]
        names = [name for name in said if f"{name}_observation" in noted_]
        source = sum(counted(_message(turn))[1] for name in names for turn in said[name])
        lines = [
            note[0]
            for name in names
            for notes in noted_[f"{name}_observation"].values()
            for note in notes
        ]
        yield Kind(source, count("\n".join(f"* (10:00) {line}" for line in lines)))


def _message(turn: dict[str, str]) -> Message:
    return {"role": "user", "content": f"{turn['speaker']}: {turn['text']}"}
