"""Removing older generations of one resource; what goes stands in test_retention.py."""

from __future__ import annotations

from om_proxy.engine.background.retention import GenerationPruner
from om_proxy.memory.model import resource_key
from tests.engine.background.test_retention import condense, key_of, list_numbers, open_run


async def test_a_resource_with_many_logs_leaves_the_store_to_others() -> None:
    """It may pause after each log that it reads, and after each transaction."""
    async with open_run("retention: {max_reflections: 3}") as run:
        logs = [await condense(run, key_of(name), 3) for name in "abcd"]
        rests: list[int] = []

        async def rest() -> None:
            rests.append(sum([len(await list_numbers(run, log)) for log in logs]))

        pruner = GenerationPruner(run.memories, 2)
        await pruner.prune(resource_key(key_of("a")), 3, rest)
        # after each log as it is looked for, and as it is read, and the page that lists them
        assert rests[:9] == [12] * 9
        assert rests[9:] == sorted(set(rests[9:]), reverse=True)
        assert len(rests) > 12, "after each transaction"
