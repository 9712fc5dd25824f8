"""Embedding models: what is loaded before the first query."""

from __future__ import annotations

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.model_access.litellm_adapter import LiteLLM


class CountingLiteLLM(LiteLLM):
    """A way to litellm that is only warmed up."""

    warmed = 0

    async def warm_up(self) -> None:
        self.warmed += 1


async def test_warming_up_asks_no_server() -> None:
    litellm = CountingLiteLLM()
    await EmbeddingModels(litellm).warm_up(())
    assert litellm.warmed == 0
    await EmbeddingModels(litellm).warm_up(["openai/text-embedding-3-small"])
    assert litellm.warmed == 1
