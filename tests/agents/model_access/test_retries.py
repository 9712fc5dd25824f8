"""Ask a list of models until one answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.agents.model_access.retries import (
    GUESS_AGAIN_AFTER_S,
    MAX_WAIT_S,
    CallBill,
    ModelCaller,
    PaidCall,
    schedule_tries,
)
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong
from om_proxy.memory.token_prices import Usage
from tests.agents.scripted_llm import ScriptedLLM, Waits, named, words

A, B = Target("a"), Target("b")
PROMPT = Prompt("be exact", ("one two three",))


def asker(llm: ScriptedLLM, waits: Waits) -> ModelCaller:
    return ModelCaller(llm, tokens=words, sleep=waits, rng=Random(7))


@pytest.mark.parametrize(
    ("targets", "order"),
    [
        ([], ""),
        (named("a"), "aaa"),
        (named("ab"), "aab"),
        (named("abc"), "abc"),
        (named("abcd"), "abcd"),
        ([Target("a", max_retries=0), Target("b")], "abb"),
        ([Target("a", max_retries=0)], "a"),
        ([Target("a", max_retries=9)], "aaa"),
    ],
)
def test_schedule(targets: list[Target], order: str) -> None:
    """There are at most three tries in all, at least one for each model, in the list's order."""
    assert "".join(target.model for target in schedule_tries(targets)) == order


async def test_first_answer() -> None:
    """A first answer costs one call and no wait."""
    llm, waits = ScriptedLLM.of("fine"), Waits()
    bill = CallBill()
    answer = await asker(llm, waits).ask([A, B], lambda _: PROMPT, bill)
    assert (answer.text, bill.usage, waits.seconds) == ("fine", Usage(100, 40, 0, 10), [])
    assert (bill.tries, [call.model for call in bill.calls]) == (1, ["a"])


async def test_a_busy_model_is_asked_three_times_with_growing_jitter() -> None:
    """Each wait is drawn from [0, 1 s], then [0, 2 s]; after the third try the last error is
    raised."""
    llm, waits = ScriptedLLM.of(*[ModelBusy(f"busy {n}") for n in range(3)]), Waits()
    with pytest.raises(ModelBusy, match="busy 2"):
        await asker(llm, waits).ask([A], lambda _: PROMPT)
    rng = Random(7)
    assert waits.seconds == [rng.uniform(0, 1), rng.uniform(0, 2)]


async def test_retry_after_is_honoured() -> None:
    """The wait is the server's own, plus jitter, so that threads do not come back in one
    instant."""
    llm, waits = ScriptedLLM.of(ModelBusy("busy", 12.0), "fine"), Waits()
    bill = CallBill()
    await asker(llm, waits).ask([A], lambda _: PROMPT, bill)
    assert bill.tries == 2
    assert 12 <= waits.seconds[0] <= 13


async def test_a_long_retry_after_is_not_waited_for() -> None:
    """A model that names a longer wait is not asked again now; the list's next model is asked at
    once."""
    llm, waits = ScriptedLLM.of(ModelBusy("busy", MAX_WAIT_S + 1), "fine"), Waits()
    answer = await asker(llm, waits).ask([A, B], lambda _: PROMPT)
    assert (answer.model, llm.models, waits.seconds) == ("b", ["a", "b"], [])


async def test_another_model_is_asked_without_waiting() -> None:
    """Only the busy model is asked after a wait, not the next one."""
    llm, waits = ScriptedLLM.of(ModelBusy("busy"), ModelBusy("busy"), "fine"), Waits()
    bill = CallBill()
    answer = await asker(llm, waits).ask([A, B], lambda _: PROMPT, bill)
    assert (answer.model, llm.models, len(waits.seconds), bill.tries) == (
        "b",
        ["a", "a", "b"],
        1,
        3,
    )


async def test_a_failed_model_is_not_asked_again() -> None:
    """A model with a permanent fault is not asked again; the next one is."""
    llm, waits = ScriptedLLM.of(ModelError("no such model"), "fine"), Waits()
    answer = await asker(llm, waits).ask([A, B], lambda _: PROMPT)
    assert (answer.model, llm.models) == ("b", ["a", "b"])


async def test_all_fail() -> None:
    """The last failure is raised."""
    llm = ScriptedLLM.of(ModelBusy("busy", 99), ModelError("refused"))
    with pytest.raises(ModelError, match="refused"):
        await asker(llm, Waits()).ask([A, B], lambda _: PROMPT)


async def test_too_long_is_raised_at_once() -> None:
    """A too long prompt is not sent to another model."""
    llm = ScriptedLLM.of(PromptTooLong("too long"), "fine")
    with pytest.raises(PromptTooLong):
        await asker(llm, Waits()).ask([A, B], lambda _: PROMPT)
    assert llm.models == ["a"]


async def test_no_targets() -> None:
    """Without a model, it raises."""
    with pytest.raises(ModelError, match="no model to ask"):
        await asker(ScriptedLLM.of(), Waits()).ask([], lambda _: PROMPT)


async def test_usage_that_is_not_reported_is_counted() -> None:
    """Usage that a server does not report is counted."""
    llm = ScriptedLLM.of(Answer("four words of text", "a"))
    bill = CallBill()
    await asker(llm, Waits()).ask([A], lambda _: PROMPT, bill)
    assert bill.calls == [PaidCall("a", Usage(5, 0, 0, 4), True)]


@pytest.mark.parametrize(
    ("error", "paid"),
    [
        (BrokenAnswer("broke off"), [PaidCall("a", Usage(5), True)]),
        (PromptTooLong("too long"), []),
        (ModelError("refused"), []),
    ],
    ids=["an answer that broke off", "a prompt too long", "a refusal"],
)
async def test_failures_that_are_paid_for(error: ModelError, paid: list[PaidCall]) -> None:
    """A model that began to answer is paid for its prompt. One that refused is not."""
    bill = CallBill()
    with pytest.raises(type(error)):
        await asker(ScriptedLLM.of(error), Waits()).ask([A], lambda _: PROMPT, bill)
    assert (bill.calls, bill.tries) == (paid, 1)


async def test_a_call_that_is_given_up_is_paid_for() -> None:
    """The server reads the prompt, and nobody hears how much it writes."""

    class Hanging:
        async def complete(self, target: Target, prompt: Prompt) -> Answer:
            asked.set()
            return await asyncio.Future()

    asked, bill = asyncio.Event(), CallBill()
    caller = ModelCaller(Hanging(), tokens=words, sleep=Waits(), rng=Random(7))
    asking = asyncio.create_task(caller.ask([A], lambda _: PROMPT, bill))
    await asked.wait()
    asking.cancel()
    await asyncio.wait([asking])
    assert bill.calls == [PaidCall("a", Usage(5), True)]


def refusal(status: int) -> ModelError:
    error = ModelError("the memory model's server refused")
    error.server_status = status
    return error


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_guessed_model_that_is_refused_is_remembered(status: int) -> None:
    """The request's own model answers, and is asked first from then on, for an hour and that
    credential."""
    now = [0.0]
    llm = ScriptedLLM.of(refusal(status), "own", "own", refusal(status), "own", "small")
    caller = ModelCaller(llm, tokens=words, sleep=Waits(), rng=Random(7), clock=lambda: now[0])
    small = Target("small", is_guess=True, api_key="k")
    asked = []
    for now[0], key in ((0.0, "k"), (9.0, "k"), (9.0, "other"), (GUESS_AGAIN_AFTER_S + 1, "k")):
        bill = CallBill()
        await caller.ask([replace(small, api_key=key), A], lambda _: PROMPT, bill)
        asked.append((bill.tries, bill.calls[0].model))
    assert asked == [(2, "a"), (1, "a"), (2, "a"), (1, "small")]


@pytest.mark.parametrize("second", [ModelError("no"), refusal(400)])
async def test_a_refusal_of_the_prompt_is_not_remembered(second: ModelError) -> None:
    """Where the request's own model does not answer either, the small one is asked again."""
    llm = ScriptedLLM.of(refusal(400), second, "small")
    caller = asker(llm, Waits())
    targets = [Target("small", is_guess=True), A]
    with pytest.raises(ModelError):
        await caller.ask(targets, lambda _: PROMPT)
    assert (await caller.ask(targets, lambda _: PROMPT)).text == "small"


async def test_a_guessed_model_that_is_busy_is_not_remembered() -> None:
    """It is asked twice, then the request's own model makes these notes."""
    busy = ModelBusy("busy")
    busy.server_status = 429
    llm = ScriptedLLM.of(busy, busy, "own", "small")
    caller = asker(llm, Waits())
    targets = [Target("small", is_guess=True), A]
    assert (await caller.ask(targets, lambda _: PROMPT)).text == "own"
    assert (await caller.ask(targets, lambda _: PROMPT)).text == "small"
