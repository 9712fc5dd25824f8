"""Entries of a log become a reflection beside it, or none."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import PromptTooLong
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Reflect
from om_proxy.memory.model import Failures, replace_log
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY
from tests.support.performing import (
    HeldAnswer,
    open_parts,
    read_shown_prompt,
    store_logged_thread,
)


async def test_a_reflection_of_a_thread_that_is_forgotten_meanwhile() -> None:
    """A thread made anew begins at the same generation with the same ids: the reflection is of
    another row all the same."""
    held = HeldAnswer(bullets("all of it in short"))
    async with open_parts(held) as p:
        before = await store_logged_thread(p, 300, 300)
        work = asyncio.create_task(p.worker.perform(KEY, Reflect(2, 10_000), p.context()))
        await held.asked.wait()
        await p.memories.forget(KEY)
        now = await store_logged_thread(p, 300, 300)
        assert (now.log.generation, [o.id for o in now.log.entries]) == (
            before.log.generation,
            [o.id for o in before.log.entries],
        )
        held.go.set()
        await work
        assert await p.memory() == now


async def test_a_reflection_is_kept_beside_the_log() -> None:
    """A reflection that is short enough is kept with the entries it stands for. The log stays until
    it is swapped in."""
    async with open_parts(bullets("all in all")) as p:
        memory = await store_logged_thread(p, 200, 200)
        assert await p.worker.perform(KEY, Reflect(2, 300), p.context())
        after = await p.memory()
        assert after.log.reflection is not None
        assert (after.log.reflection.sources, after.log.reflection.generation) == (
            tuple(o.id for o in memory.log.entries),
            0,
        )
        assert (after.log.reflection.source_tokens, after.log.reflection.model) == (
            400,
            "memory-model",
        )
        assert after.log.entries == memory.log.entries
        assert len(p.models.asked) == 1


async def test_a_reflection_no_shorter_than_its_entries_is_none() -> None:
    """The reflector is shown more than entries count, as the marks of threads in a shared log: the
    log must not grow by it."""
    async with open_parts(bullets("all in all")) as p:
        await store_logged_thread(p, 200, 200)
        await p.memories.update(
            KEY,
            lambda m: replace_log(m, entries=tuple(replace(o, tokens=1) for o in m.log.entries)),
        )
        assert not await p.worker.perform(KEY, Reflect(2, 300), p.context())
        after = await p.memory()
        assert (after.log.reflection, after.log.unproductive_tokens) == (None, 2)


async def test_entries_that_come_meanwhile_survive() -> None:
    """A reflection of the first entries stands while new ones follow; swapped in, they follow it
    byte for byte."""
    held = HeldAnswer(bullets("all in all"))
    async with open_parts(held) as p:
        memory = await store_logged_thread(p, 200, 200)
        work = asyncio.create_task(p.worker.perform(KEY, Reflect(2, 300), p.context()))
        await held.asked.wait()
        late = replace(memory.log.entries[-1], id=memory.next_id, text="* 🔴 late")
        await p.memories.update(
            KEY,
            lambda m: replace(
                replace_log(m, entries=(*m.log.entries, late)), next_id=m.next_id + 1
            ),
        )
        held.go.set()
        assert await work
        swapped = transitions.swap_reflection(await p.memory(), 9.0)
        assert [o.text for o in swapped.log.entries][1:] == ["* 🔴 late"]
        assert "all in all" in swapped.log.entries[0].text


async def test_a_reflection_of_a_log_that_is_gone() -> None:
    """The log was rolled back while it was reflected on: the result changes nothing."""
    held = HeldAnswer(bullets("all in all"))
    async with open_parts(held) as p:
        await store_logged_thread(p, 200, 200)
        work = asyncio.create_task(p.worker.perform(KEY, Reflect(2, 300), p.context()))
        await held.asked.wait()
        await p.memories.update(
            KEY,
            lambda m: replace_log(
                m,
                entries=m.log.entries[1:],
                generation=m.log.next_generation,
                next_generation=m.log.next_generation + 1,
            ),
        )
        held.go.set()
        assert await work
        assert (await p.memory()).log.reflection is None


async def test_an_unproductive_reflection_is_not_repeated() -> None:
    """Four answers of which none is usable: the log stays, and is left alone until it grows;
    observing goes on."""
    async with open_parts(*[bullets("longer " * 500)] * 4) as p:
        memory = await store_logged_thread(p, 200, 200)
        assert not await p.worker.perform(KEY, Reflect(2, 300), p.context())
        assert len(p.models.asked) == 4
        after = await p.memory()
        assert (after.log.entries, after.log.reflection, after.log.unproductive_tokens) == (
            memory.log.entries,
            None,
            400,
        )
        assert after.failures == Failures(cause="reflect om_unusable")


@pytest.mark.parametrize(("refusals", "kept"), [(1, 3), (2, 2)])
async def test_a_log_that_is_too_long_for_the_reflector(refusals: int, kept: int) -> None:
    """The older entries are reflected, as many as fit; accepted below their share, and the newer
    ones stay word for word."""
    too_long = [PromptTooLong("send less")] * refusals
    above_its_share = bullets(" ".join(f"w{n}" for n in range(150 * kept)))
    async with open_parts(*too_long, above_its_share, bullets("all in all")) as p:
        memory = await store_logged_thread(p, 200, 200, 200, 200)
        assert await p.worker.perform(KEY, Reflect(4, 600), p.context())
        assert [[f"fact {n} " in read_shown_prompt(p, call) for n in range(1, 5)] for call in (0, refusals, -1)] == [
            [True] * 4, *[[True] * kept + [False] * (4 - kept)] * 2
        ]  # fmt: skip
        after = await p.memory()
        assert after.log.reflection is not None
        assert after.log.reflection.sources == tuple(o.id for o in memory.log.entries[:kept])
        assert after.log.reflection.source_tokens == 200 * kept
        assert "all in all" in after.log.reflection.text
        swapped = transitions.swap_reflection(after, 9.0)
        assert swapped.log.entries[1:] == memory.log.entries[kept:]
        assert (swapped.log.entries[0].after, swapped.log.entries[0].last) == (
            memory.log.entries[0].after,
            memory.log.entries[kept - 1].last,
        )
        assert swapped.coverage == memory.coverage


async def test_one_entry_that_is_too_long_for_the_reflector() -> None:
    """It cannot be split: the reflection has failed, the log stays, and it is not tried again
    before the log has grown."""
    async with open_parts(*[PromptTooLong("send less")] * 9) as p:
        memory = await store_logged_thread(p, 200, 200, 200)
        assert not await p.worker.perform(KEY, Reflect(3, 600), p.context())
        assert len(p.models.asked) == 3  # three entries, two, and the oldest
        after = await p.memory()
        assert (after.log.entries, after.log.reflection, after.log.unproductive_tokens) == (
            memory.log.entries,
            None,
            600,
        )
        assert after.failures == Failures(cause="reflect om_prompt_too_long")
