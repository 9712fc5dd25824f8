"""A failure of a memory model is recorded with its thread, and no deadline is missed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from om_proxy.common.errors import ModelBusy, ModelError
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe, Reflect
from om_proxy.memory.lifecycle.transitions import FIRST_BACK_OFF_S
from om_proxy.memory.model import Failures
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY, chat, chunk
from tests.support.performing import (
    HeldAnswer,
    open_parts,
)

SIX = Observe(after=0, last=6, tokens=300)


@pytest.mark.parametrize(
    ("steps", "asked", "cause"),
    [
        (["", ""], 2, "om_unusable"),
        (["I'm sorry, but I can't help with that."] * 2, 2, "om_unusable"),
        (["A nice conversation about vans, all in all."] * 2, 2, "om_unusable"),
        ([bullets(*["the same again"] * 200)] * 2, 2, "om_unusable"),
        ([ModelError("refused", "see to it")], 1, "om_model: see to it"),
        ([ModelBusy("busy")] * 3, 3, "om_model_busy"),
    ],
    ids=["nothing", "refusal", "prose", "loop", "error", "busy"],
)
async def test_a_failure_is_recorded(steps: list[str | ModelError], asked: int, cause: str) -> None:
    """Any failure backs the thread off, with its cause, and moves nothing: no chunk, no coverage,
    no message lost."""
    async with open_parts(*steps) as p:
        memory = await p.store_tail(chat(4, 50))
        assert not await p.worker.perform(KEY, SIX, p.context())
        assert len(p.models.asked) == asked
        after = await p.memory()
        assert after.failures == Failures(
            1, p.clock.now + FIRST_BACK_OFF_S, cause=f"observe {cause}"
        )
        assert (after.coverage, after.chunks, after.tail) == (0, (), memory.tail)


async def test_a_model_that_does_not_answer_in_time() -> None:
    """A time-out is a failure like any other, and the call is given up."""
    held = HeldAnswer()
    async with open_parts(held, within=1.0) as p:
        await p.store_tail(chat(4, 50))
        assert not await p.worker.perform(KEY, SIX, p.context())
        assert held.given_up
        assert (await p.memory()).failures == Failures(
            1, p.clock.now + FIRST_BACK_OFF_S, cause="observe om_model_timeout"
        )


@pytest.mark.parametrize(("size", "deadlines"), [(500, 1.0), (10_000, 1.0), (25_000, 2.5)])
async def test_a_reflection_has_its_deadline_by_its_length(size: int, deadlines: float) -> None:
    """It writes nearly as much as it reads: 20 000 tokens of notes take a good model more than two
    minutes."""
    async with open_parts(within=120.0) as p:
        memory = await p.store_tail(chat(4, 50))
        logged = transitions.add_chunk(memory, chunk(memory, 6, tokens=size))
        logged = transitions.activate_chunks(logged, [logged.chunks[0].id], 5.0)
        assert p.guard._timeout_s(logged, Reflect(1, 400)) == 120.0 * deadlines
        assert p.guard._timeout_s(logged, SIX) == 120.0


async def test_a_success_ends_the_trouble() -> None:
    """A success clears the thread's failures."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(4, 50))
        await p.memories.update(KEY, lambda _: replace(memory, failures=Failures(7, 5.0)))
        assert await p.worker.perform(KEY, SIX, p.context())
        assert (await p.memory()).failures == Failures()
