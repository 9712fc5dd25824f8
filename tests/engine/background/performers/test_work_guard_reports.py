"""Each call of a memory model is reported once, however it ends."""

from __future__ import annotations

import asyncio

import pytest

from om_proxy.agents.model_access.llm import Answer
from om_proxy.common.errors import ModelBusy, ModelError
from om_proxy.engine.background.performers.work_guard import WorkCosts
from om_proxy.memory.ledger import EMPTY_LEDGER, NO_MEMORY_COSTS, Account, MemoryCosts
from om_proxy.memory.lifecycle.decisions import Observe, Reflect
from om_proxy.memory.notes.cut_off import Finish
from om_proxy.memory.token_prices import TokenPrices, Tokens, Usage, price_tokens
from om_proxy.observability.facts import Fact, MemoryCallEnded
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY, chat
from tests.support.performing import (
    NOTES,
    SMALL,
    HeldAnswer,
    Parts,
    open_parts,
    store_logged_thread,
)

SIX = Observe(after=0, last=6, tokens=300)


def collect_calls(parts: Parts) -> list[MemoryCallEnded]:
    calls: list[MemoryCallEnded] = []

    def keep_call(fact: Fact) -> None:
        if isinstance(fact, MemoryCallEnded):
            calls.append(fact)

    parts.memories.facts.subscribe(keep_call)
    return calls


async def test_an_answer_is_reported_with_its_usage() -> None:
    """The tokens of every try count, and the model is the one that answered."""
    answer = Answer(NOTES, "memory-model-2026", Usage(900, 300, 0, 40), finish="stop")
    async with open_parts(ModelBusy("busy"), answer) as p:
        calls = collect_calls(p)
        await p.store_tail(chat(4, 50))
        await p.worker.perform(KEY, SIX, p.context())
        (call,) = calls
        assert (call.keys, call.work, call.outcome) == ((KEY,), "observe", "answered")
        assert (call.model, call.calls) == ("memory-model-2026", 2)
        assert call.usage == Usage(900, 300, 0, 40)
        assert call.seconds >= 0


async def test_a_failed_call_is_reported() -> None:
    async with open_parts(ModelError("refused")) as p:
        calls = collect_calls(p)
        await p.store_tail(chat(4, 50))
        await p.worker.perform(KEY, SIX, p.context())
        assert [(c.outcome, c.model, c.usage, c.cost) for c in calls] == [
            ("failed", "memory-model", Usage(), 0)
        ]
        assert (await p.memory()).ledger == EMPTY_LEDGER


async def test_a_call_that_is_given_up_is_reported() -> None:
    held = HeldAnswer(bullets("all of it in short"))
    async with open_parts(held) as p:
        calls = collect_calls(p)
        await store_logged_thread(p, 300, 300)
        work = asyncio.create_task(p.worker.perform(KEY, Reflect(2, 10_000), p.context()))
        await held.asked.wait()
        work.cancel()
        await asyncio.wait([work])
        assert [(c.work, c.outcome) for c in calls] == [("reflect", "abandoned")]
        # the prompt was sent, so it is paid for; how much was written is not known
        assert calls[0].usage.input_tokens > 100
        assert calls[0].accounts[0][1].estimated == 1


PRICED = SMALL.replace("memory-model", "gpt-4o-mini")
CALL = TokenPrices(150_000, 75_000, 150_000, 600_000)


def told(text: str, finish: Finish = "stop") -> Answer:
    return Answer(text, "gpt-4o-mini-2024-07-18", Usage(10_000, 4_000, 0, 500), finish)


COST_OF_CALL = price_tokens(Tokens(6_000, 4_000, 0, 500), CALL)


@pytest.mark.parametrize(
    ("steps", "paid_calls"),
    [
        ([told(NOTES)], 1),
        ([told("prose"), told(NOTES)], 2),
        ([told("prose"), told("I'm sorry, but I can't help with that.")], 2),
        ([told(NOTES[:30], "length"), told(NOTES)], 2),
        ([ModelBusy("busy"), told(NOTES)], 1),
    ],
    ids=["notes", "unusable, then notes", "unusable twice", "cut off, then notes", "busy first"],
)
async def test_what_a_thread_pays_for_its_notes(
    steps: list[Answer | ModelError], paid_calls: int
) -> None:
    """Each answer is paid for, usable or not, at the price of the model that was asked. The sums
    are stored with the notes, or with the failure."""
    async with open_parts(*steps, settings=PRICED) as p:
        calls = collect_calls(p)
        await p.store_tail(chat(4, 50))
        await p.worker.perform(KEY, SIX, p.context())
        ledger = (await p.memory()).ledger
        assert ledger.full_memory.calls == paid_calls
        assert ledger.full_memory.cost == paid_calls * COST_OF_CALL
        assert ledger.net_saving == -paid_calls * COST_OF_CALL
        assert sum(call.cost or 0 for call in calls) == ledger.full_memory.cost
        assert {model for call in calls for model, _ in call.accounts} == {"gpt-4o-mini"}


async def test_an_unproductive_reflection_is_paid_for() -> None:
    """Four answers, none shorter than the log: the thread pays for all of them."""
    long = bullets(*(f"line {n} of a log that is no shorter at all" for n in range(120)))
    async with open_parts(*[told(long)] * 4, settings=PRICED) as p:
        await store_logged_thread(p, 300, 300)
        await p.worker.perform(KEY, Reflect(2, 10), p.context())
        ledger = (await p.memory()).ledger
        assert (ledger.full_memory.calls, ledger.full_memory.cost) == (4, 4 * COST_OF_CALL)


async def test_an_unknown_price() -> None:
    """The tokens are known, the cost is not."""
    async with open_parts(NOTES) as p:
        calls = collect_calls(p)
        await p.store_tail(chat(4, 50))
        await p.worker.perform(KEY, SIX, p.context())
        account = (await p.memory()).ledger.full_memory
        assert (account.input, account.cost, account.unpriced) == (100, 0, 1)
        assert calls[0].cost is None


def test_costs_are_taken_once() -> None:
    costs = WorkCosts(MemoryCosts(full=Account(calls=1, cost=3)))
    costs.add(Account(calls=1, cost=4), "full")
    costs.add(Account(calls=1, cost=5), "partial")
    assert costs.take() == MemoryCosts(Account(calls=2, cost=7), Account(calls=1, cost=5))
    assert costs.take() == NO_MEMORY_COSTS
