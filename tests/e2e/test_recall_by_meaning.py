"""A running proxy makes vectors of what was said, finds by meaning, and forgets them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from om_proxy.agents.embedding import Embedded, EmbeddingModels
from tests.agents.onnx_file import write_model
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_recall import Curious

AUTH = {"authorization": "Bearer sk-a"}
# of [PAD], [UNK], cat, dog, violin, music
TEXT_VECTORS = [(0.0, 0.0), (0.1, 0.1), (1.0, 0.0), (1.0, 0.0), (0.0, 1.0), (0.0, 1.0)]


async def search(run: Running, query: str, thread: str = "pets") -> list[tuple[str, int]]:
    url = f"{run.base}/om/v1/threads/{thread}/recall?resource=ada"
    answer = await run.http.post(url, json={"mode": "search", "query": query}, headers=AUTH)
    items: list[dict[str, Any]] = answer.json()["items"]
    return [(item["thread"], item["seq"]) for item in items]


async def test_what_shares_no_word_with_the_query_is_found(tmp_path: Path) -> None:
    """Once its thread is quiet. Another resource has the same words and is never found; what is
    forgotten is not either."""
    model = write_model(tmp_path, TEXT_VECTORS)
    memory = f"scope: resource, retrieval: {{enabled: true, vector: true, embedding_model: 'local:{model}', timeout: 60s}}"
    async with run_with_scripted_models(
        tmp_path, memory, more="background: {observer_interval: 50ms}"
    ) as run:
        await run.chat("pets", **{"x-om-resource": "ada"}).say("cat dog cat")
        await run.chat("band", **{"x-om-resource": "ada"}).say("violin violin violin")
        await run.chat("other", **{"x-om-resource": "eve"}).say("music violin music")
        run.clock.now += 120
        async with asyncio.timeout(120):
            while not (found := await search(run, "music")):  # noqa: ASYNC110 - only a search tells
                await asyncio.sleep(0.05)
        assert found[0] == ("band", 1)
        assert {thread for thread, _ in found} <= {"band", "pets"}
        page = (await run.http.get(f"{run.base}/metrics")).text
        assert re.search(
            r'om_embedding_duration_seconds_count{[^}]*outcome="answered"} [1-9]', page
        )
        forgotten = await run.http.delete(
            f"{run.base}/om/v1/threads/band?resource=ada", headers=AUTH
        )
        assert forgotten.status_code == 200
        assert "band" not in {thread for thread, _ in await search(run, "music")}


async def test_a_query_counts_in_the_ledger_of_the_thread_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn stores it. What people ask of a whole resource is no thread's."""

    async def embed(_: EmbeddingModels, model: str, texts: Sequence[str]) -> Embedded:
        return Embedded(tuple([1.0, 0.0] for _ in texts), tokens=1_000_000)  # 2 cents

    monkeypatch.setattr(EmbeddingModels, "embed_texts", embed)
    models = Curious()
    models.look_up = {"mode": "search", "query": "music"}
    vectors = "vector: true, embedding_model: text-embedding-3-small, timeout: 60s"
    memory = f"scope: resource, retrieval: {{enabled: true, offer: always, {vectors}}}"
    async with run_with_scripted_models(
        tmp_path, memory, models=models, more="background: {observer_interval: 1h}"
    ) as run:
        await run.chat("band", **{"x-om-resource": "ada"}).say("violin music")
        await run.chat("asking", **{"x-om-resource": "ada"}).say("What is the serial number?")
        for number in range(2):
            answer = await run.http.get(
                f"{run.base}/om/v1/search",
                params={"q": f"violin {number}", "resource": "ada"},
                headers=AUTH,
            )
            assert answer.status_code == 200
        costs = {
            memory.key.thread: memory.ledger.full_memory.cost for memory in await run.memories()
        }
        assert costs == {"band": 0, "asking": 20_000}
