"""Messages are counted, or estimated where they cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from om_proxy.agents.models import TokenCounter
from om_proxy.engine.turns.reconciling import count_messages
from om_proxy.observability.facts import ExtraFailed, Facts
from tests.memory.building import KEY

RAWS = {3: b'{"role":"user","content":"the van is at the dock"}', 4: b'{"role":"user"}'}


class Failing(TokenCounter):
    async def count(self, raws: Mapping[int, bytes], model: str, api: str) -> dict[int, int]:
        raise MemoryError


async def test_counts() -> None:
    counts, encoding = await count_messages(TokenCounter(), Facts(), KEY, RAWS, "gpt-4o", "chat")
    assert (counts, encoding) == ({3: 6, 4: 0}, "o200k_base")


async def test_without_messages_nothing_is_counted() -> None:
    assert await count_messages(Failing(), Facts(), KEY, {}, "gpt-4o", "chat") == ({}, "")


async def test_a_count_that_fails_is_estimated() -> None:
    """Its encoding stays unknown, so that the messages are counted again."""
    failed: list[ExtraFailed] = []
    facts = Facts()
    facts.subscribe(failed.append, ExtraFailed)
    counts, encoding = await count_messages(Failing(), facts, KEY, RAWS, "gpt-4o", "chat")
    assert (counts, encoding) == ({3: 13, 4: 4}, "")
    assert [(fact.extra, fact.error) for fact in failed] == [("tokens", "MemoryError")]
