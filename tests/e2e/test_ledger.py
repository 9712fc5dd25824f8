"""The ledger of a thread, beside the provider's own accounts, through a live proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import astuple, replace

from om_proxy.engine.policy import find_token_prices
from om_proxy.memory.ledger import Account, ThreadLedger
from om_proxy.memory.token_prices import Tokens, price_tokens
from om_proxy.observability.facts import Fact, TurnPriced
from om_proxy.testing.loopback import Receive, Send
from om_proxy.testing.scripted import OBSERVER, Fault, RecordedRequest, ScriptedServer
from tests.e2e.running import CRATE_REMARK, Chat, Running, run_with_scripted_models
from tests.e2e.test_recall import RETRIEVAL_MEMORY, Curious

ACTOR = "gpt-4o"  # to the scripted server any name is an actor; this one has a list price
NOTE_TAKER = "gpt-4o-mini"  # so has this one
LONG = "the van, the dock and the seven crates of apples are all at Quarry Steps today. " * 12
SMALL = "observation: {message_tokens: 3000, buffer_tokens: 700, block_timeout: 2s}"


def tokens_of(requests: Iterable[RecordedRequest]) -> Tokens:
    """Return what the provider counted."""
    sums = [
        Tokens(r.prompt_tokens - r.cached_tokens, r.cached_tokens, 0, r.completion_tokens)
        for r in requests
    ]
    return Tokens(*map(sum, zip(*map(astuple, sums), strict=True)))


def bill(requests: Iterable[RecordedRequest], model: str = ACTOR) -> int:
    """Return the provider's bill in micro-dollars, call by call."""
    return sum(price_tokens(tokens_of([request]), find_token_prices(model)) for request in requests)


async def ask(chat: Chat, text: str, **more: Any) -> str:
    """Perform one turn of a client that sends its whole history."""
    chat.history.append({"role": "user", "content": text})
    return await send(chat, **more)


async def send(chat: Chat, **more: Any) -> str:
    body = {"model": ACTOR, "messages": chat.history, **more}
    url = f"{chat.running.base}/v1/chat/completions"
    answer = await chat.running.http.post(url, json=body, headers=chat.headers)
    assert answer.status_code == 200, answer.text
    said = chat.running.models.requests_to(ACTOR)[-1].answer
    if chat.history[-1]["role"] == "user":
        chat.history.append(dict(said))
    return str(said["content"])


async def ledger_of(run: Running) -> ThreadLedger:
    return (await run.memory()).ledger


def listen(run: Running) -> list[TurnPriced]:
    """Return a list that gets every counted call."""
    counted: list[TurnPriced] = []

    def take(fact: Fact) -> None:
        if isinstance(fact, TurnPriced):
            counted.append(fact)

    run.app.facts.subscribe(take)
    return counted


def sum_of(counted: Iterable[TurnPriced]) -> Account:
    total = Account()
    for fact in counted:
        total = total.add(fact.account)
    return total


WITH_USAGE: list[dict[str, Any]] = [{}, {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("more", WITH_USAGE, ids=["JSON", "streamed"])
async def test_the_cost_is_the_providers_bill(tmp_path: Path, more: dict[str, Any]) -> None:
    """Where usage is reported, cost and tokens are the provider's, to the micro-dollar, with memory
    and without. As long as nothing is rewritten, the baseline is the bill too."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        counted = listen(run)
        chat = run.chat()
        unwritten_turns = 0
        for number in range(16):
            await ask(chat, f"question {number}: {LONG}", **more)
            await run.app.background.wait_idle()
            requests = run.models.requests_to(ACTOR)
            ledger = await ledger_of(run)
            assert ledger.full.tokens == tokens_of(requests)
            assert ledger.full.cost == bill(requests)
            assert (ledger.full.calls, ledger.full.estimated) == (len(requests), 0)
            if not (await run.memory()).log.entries:
                assert ledger.full.baseline_cost == ledger.full.cost
                unwritten_turns += 1
        assert 3 < unwritten_turns < 14
        assert ledger.full.baseline_cost > ledger.full.cost
        assert sum_of(counted) == ledger.full
        assert {fact.model for fact in counted} == {ACTOR}
        assert sum(fact.account.baseline_cost - fact.account.cost for fact in counted) > 0


@pytest.mark.parametrize("more", WITH_USAGE, ids=["JSON", "streamed"])
async def test_a_look_up_is_paid_for(tmp_path: Path, more: dict[str, Any]) -> None:
    """Each round of the reply is on the bill. Without memory the model would have written the
    answer and no call."""
    async with run_with_scripted_models(tmp_path, RETRIEVAL_MEMORY, models=Curious()) as run:
        chat = run.chat()
        for number in range(14):
            await ask(chat, CRATE_REMARK.format(n=number), **more)
            await run.app.background.wait_idle()
        before = (await ledger_of(run)).full
        await ask(chat, "What is the serial number?", **more)
        await run.app.background.wait_idle()
        requests, now = run.models.requests_to(ACTOR), (await ledger_of(run)).full
        call, answer = requests[-2:]
        assert call.completion_tokens != answer.completion_tokens
        assert (now.calls, now.tokens) == (len(requests), tokens_of(requests))
        assert now.cost == bill(requests)
        baseline = Tokens(
            now.baseline_input - before.baseline_input,
            now.baseline_cached - before.baseline_cached,
            now.baseline_cache_write - before.baseline_cache_write,
            answer.completion_tokens,
        )
        expected = price_tokens(baseline, find_token_prices(ACTOR))
        assert now.baseline_cost - before.baseline_cost == expected


async def test_a_short_thread_is_its_own_baseline(tmp_path: Path) -> None:
    """Three turns below every threshold: nothing is saved, nothing is lost."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        chat = run.chat()
        for number in range(3):
            await ask(chat, f"question {number}")
        ledger = await ledger_of(run)
        assert (ledger.net_saving, ledger.full.calls) == (0, 3)


class PricedNotes(ScriptedServer):
    """Its memory model goes by a name that has a list price."""

    def choose_answer(
        self, model: str, messages: Sequence[dict[str, Any]], fault: Fault | None
    ) -> dict[str, Any]:
        role = OBSERVER if model == NOTE_TAKER else model
        return super().choose_answer(role, messages, fault)


async def test_a_short_thread_with_memory_shows_a_loss(tmp_path: Path) -> None:
    """Its notes are paid for, to the micro-dollar of the provider's bill, and save nothing before
    the thread ends. People see the loss."""
    more = f'models: {{"{ACTOR}": {{model: openai/{NOTE_TAKER}, economy: off}}}}'
    async with run_with_scripted_models(tmp_path, SMALL, models=PricedNotes(), more=more) as run:
        chat = run.chat()
        for number in range(5):
            await ask(chat, f"question {number}: {LONG}")
            await run.app.background.wait_idle()
        ledger = await ledger_of(run)
        calls = run.models.requests_to(NOTE_TAKER)
        assert len(calls) == ledger.full_memory.calls > 0
        assert ledger.full_memory.tokens == tokens_of(calls)
        assert ledger.full_memory.cost == bill(calls, NOTE_TAKER) > 0
        assert ledger.full.cost == ledger.full.baseline_cost == bill(run.models.requests_to(ACTOR))
        assert ledger.net_saving == -ledger.full_memory.cost
        (line,) = (await run.http.get(f"{run.base}/om/v1/threads", headers=chat.headers)).json()[
            "items"
        ]
        assert line["net_saving"] == ledger.net_saving < 0


class HeldNotes(PricedNotes):
    """Its memory model answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def act_out_fault(
        self, receive: Receive, send: Send, fault: Fault | None, model: str, *more: Any
    ) -> bool:
        if model == NOTE_TAKER:
            self.asked.set()
            await self.may_answer.wait()
        return await super().act_out_fault(receive, send, fault, model, *more)


async def play_thin_thread(folder: Path, *, is_first_call_late: bool) -> tuple[ThreadLedger, Any]:
    """Perform four turns of a client that sends its newest message alone. Return the ledger of its
    thread, and the figures by thread and by day. The first call of the observer ends before the
    second turn, or after it."""
    more = f'models: {{"{ACTOR}": {{model: openai/{NOTE_TAKER}, economy: off}}}}'
    models = HeldNotes()
    async with run_with_scripted_models(folder, SMALL, models=models, more=more) as run:
        chat = run.chat()
        for number in range(4):
            chat.history.clear()
            await ask(chat, f"question {number}: {LONG * 4}")
            await models.asked.wait()
            if number or not is_first_call_late:
                models.may_answer.set()
                await run.app.background.wait_idle()
        assert len(run.models.requests_to(NOTE_TAKER)) == 4
        await run.app.ledger_writer.write()
        figures = [
            (await run.http.get(f"{run.base}/om/v1/stats?by={by}", headers=chat.headers)).json()
            for by in ("thread", "day")
        ]
        return await ledger_of(run), [[i["ledger"] for i in one["items"]] for one in figures]


async def test_a_call_counts_with_the_turn_that_it_is_about(tmp_path: Path) -> None:
    """The first turn of a thin client looks like that of any other, and counts as such with the
    call about it: it makes no difference which of them ends first. Day and thread agree."""
    folders = tmp_path / "early", tmp_path / "late"
    for folder in folders:
        await asyncio.to_thread(folder.mkdir)
    early, figures = await play_thin_thread(folders[0], is_first_call_late=False)
    late, late_figures = await play_thin_thread(folders[1], is_first_call_late=True)
    calls = (early.full.calls, early.full_memory.calls)
    assert (calls, early.partial.calls, early.partial_memory.calls) == ((1, 1), 3, 3)
    late_full, early_full = (replace(one.full, overhead_us=0) for one in (late, early))
    assert (late_full, late.full_memory) == (early_full, early.full_memory)
    assert late.partial_memory.calls == 3
    assert early.net_saving == late.net_saving == -early.full_memory.cost < 0
    for by_thread, by_day in (figures, late_figures):
        assert by_thread == by_day
        assert len(by_day) == 1


async def test_without_usage_our_counts_are_the_cost(tmp_path: Path) -> None:
    """A stream without `include_usage` reports nothing, and we do not ask for it: our counts stand
    in, marked, and are near the provider's."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        chat = run.chat()
        for number in range(4):
            await ask(chat, f"question {number}: {LONG}", stream=True)
        requests, ledger = run.models.requests_to(ACTOR), await ledger_of(run)
        assert b"stream_options" not in requests[-1].body
        assert ledger.full.estimated == 4
        # the scripted server counts four characters a token
        assert ledger.full.output == pytest.approx(tokens_of(requests).output, rel=0.5)
        assert ledger.full.tokens.prompt == pytest.approx(tokens_of(requests).prompt, rel=0.3)


async def test_a_model_without_a_price_counts_by_tokens(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        await run.chat().say("hello")
        ledger = await ledger_of(run)
        assert (ledger.full.cost, ledger.full.unpriced, ledger.is_priced) == (0, 1, False)
        assert ledger.full.tokens == tokens_of(run.models.requests)


async def test_retries_count_once_each(tmp_path: Path) -> None:
    """A retry that got the stored reply stores nothing, but it was paid for. Its cost is written
    with the next turn of the thread."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        counted = listen(run)
        chat = run.chat()
        await ask(chat, "one")
        question = chat.history[:-1]
        for _ in range(2):
            chat.history = [*question]
            await send(chat)
        assert (await ledger_of(run)).full.calls == 1
        assert sum_of(counted).calls == 3
        await ask(chat, "two")
        ledger = await ledger_of(run)
        assert ledger.full == sum_of(counted)
        assert ledger.full.cost == bill(run.models.requests_to(ACTOR))


async def test_requests_that_memory_leaves_alone_are_counted(tmp_path: Path) -> None:
    """A side request of a thread is paid for: it is counted, and is its own baseline. A request for
    which memory was switched off is not."""
    more = "side_requests: {models: [gpt-4o]}"
    async with run_with_scripted_models(tmp_path, SMALL, more=more) as run:
        counted = listen(run)
        await ask(run.chat(), "a title, please")
        await ask(run.chat(), f"a title, please, for this: {LONG}", stream=True)
        await ask(run.chat(**{"x-om-mode": "off"}), "nothing of this")
        reported, guessed = counted
        first, second, _ = run.models.requests
        assert reported.account.tokens == tokens_of([first])
        assert reported.account.baseline_cost == reported.account.cost == bill([first])
        assert guessed.account.estimated == 1
        assert guessed.account.tokens.prompt == pytest.approx(second.prompt_tokens, rel=0.5)
        assert await run.memories() == []


async def test_what_failed_is_not_counted(tmp_path: Path) -> None:
    """The provider bills no refused request."""
    models = ScriptedServer(
        faults=[Fault(kind="http", status=500, times=1), Fault(kind="http", status=400, times=1)]
    )
    async with run_with_scripted_models(tmp_path, SMALL, models=models) as run:
        counted = listen(run)
        chat = run.chat()
        for _ in range(2):
            body = {"model": ACTOR, "messages": [{"role": "user", "content": "hello"}]}
            url = f"{run.base}/v1/chat/completions"
            answer = await run.http.post(url, json=body, headers=chat.headers)
            assert answer.status_code >= 400
        assert counted == []
        await ask(chat, "hello")
        assert (await ledger_of(run)).full.calls == 1


async def test_a_reply_that_breaks_off_is_counted(tmp_path: Path) -> None:
    """The provider bills the prompt and what it had written: our counts of both stand in."""
    models = ScriptedServer(
        {"hello": {"role": "assistant", "content": LONG}}, faults=[Fault(kind="cut", times=1)]
    )
    async with run_with_scripted_models(tmp_path, SMALL, models=models) as run:
        counted = listen(run)
        chat = run.chat()
        url = f"{run.base}/v1/chat/completions"
        body = {"model": ACTOR, "messages": [{"role": "user", "content": "hello"}], "stream": True}
        with pytest.raises(httpx.RemoteProtocolError):
            await run.http.post(url, json=body, headers=chat.headers)
        await run.app.background.wait_idle()
        (fact,) = counted
        assert fact.account.estimated == 1
        assert 30 < fact.account.output < len(LONG) // 3


async def test_a_conflict_counts_a_turn_once(tmp_path: Path) -> None:
    """Turns of one thread that end at once are committed again on top of each other. Each counts
    once."""
    import asyncio

    async with run_with_scripted_models(tmp_path, SMALL) as run:
        counted = listen(run)
        chat = run.chat()
        await ask(chat, "begin")
        others = [run.chat() for _ in range(6)]
        for number, other in enumerate(others):
            other.history = [*chat.history, {"role": "user", "content": f"at once {number}"}]
        await asyncio.gather(*(send(other) for other in others))
        await ask(chat, "and then")
        ledger = await ledger_of(run)
        assert ledger.full == sum_of(counted)
        assert ledger.full.calls == len(run.models.requests_to(ACTOR)) == 8
