"""A scripted embedding model: it counts words of a small vocabulary, and fails by plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from om_proxy.agents.embedding import Embedded

TOPICS = (("cat", "kitten", "pet"), ("violin", "music", "song"), ("tax", "money", "bill"))


def embed_topics(text: str) -> list[float]:
    """Return how much a text is about each topic. No two texts about something else are alike."""
    words = text.lower().split()
    return [0.01, *(float(sum(words.count(word) for word in topic)) for topic in TOPICS)]


class ScriptedModel:
    """Gives `embed_topics`, or what `answer` gives in its place, which may raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.answer: Callable[[str, Sequence[str]], Sequence[Sequence[float]]] | None = None
        self.is_stalled = asyncio.Event()  # set: no call ends
        self.tokens = 0

    async def embed_texts(self, model: str, texts: Sequence[str]) -> Embedded:
        self.calls.append((model, tuple(texts)))
        if self.is_stalled.is_set():
            await asyncio.Event().wait()
        answer = self.answer or (lambda model, texts: [embed_topics(text) for text in texts])
        return Embedded(tuple(answer(model, texts)), self.tokens)
