"""Each turn is accounted for once, as its prompt stood beside the one before it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import StorageError
from om_proxy.engine.turns import accounting
from om_proxy.engine.turns.accounting import UnstoredEntries
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.ledger import Account, TurnEntry, TurnService
from om_proxy.memory.token_prices import Tokens, Usage
from om_proxy.observability.facts import ExtraFailed, Fact, TurnPriced
from om_proxy.wire.apis.api import Reply
from tests.engine.turns.test_engine import LONG, Turns, assistant, make_reply, open_turns, user
from tests.memory.building import KEY

USAGE = Usage(4_000, 1_000, 0, 20)


def listen(t: Turns) -> list[TurnPriced]:
    priced: list[TurnPriced] = []

    def take(fact: Fact) -> None:
        if isinstance(fact, TurnPriced):
            priced.append(fact)

    t.parts.memories.facts.subscribe(take)
    return priced


async def close(t: Turns, turn: PreparedTurn, reply: Reply) -> None:
    accounted = await t.engine.accountant.account(turn, reply)
    await t.engine.close_turn(turn, reply, accounted)


async def test_a_turn_is_stored_with_what_it_cost() -> None:
    async with open_turns() as t:
        priced = listen(t)
        reply = replace(make_reply("b"), usage=USAGE)
        await close(t, await t.open([user("a")]), reply)
        ledger = (await t.parts.memory()).ledger
        assert ledger.full.tokens == Tokens(3_000, 1_000, 0, 20)
        (fact,) = priced
        assert (fact.key, fact.model, fact.account) == (KEY, "actor", ledger.full)
        assert ledger.mark
        assert ledger.mark.whole == ledger.mark.sent > 0


async def test_a_turn_is_counted_with_how_it_was_served() -> None:
    """The thread and those who listen get the same, also of a retry that stores nothing and of a
    request that memory had no part in."""
    async with open_turns() as t:
        priced = listen(t)
        reply = replace(make_reply("b"), usage=USAGE)
        accountant, served = t.engine.accountant, TurnService(1_500, is_degraded=True)
        turn = await t.open([user("a")])
        accounted = await accountant.account(turn, reply, service=TurnService(900))
        await t.engine.close_turn(turn, reply, accounted)
        account = (await t.parts.memory()).ledger.full
        assert (account.overhead_us, account.degraded) == (900, 0)
        assert t.engine.close_repeated(await t.open([user("a")]), reply, served)
        accountant.account_passed(KEY, "actor", 400, reply, served)
        assert [(f.account.overhead_us, f.account.degraded) for f in priced] == [
            (900, 0),
            (1_500, 1),
            (1_500, 1),
        ]


async def test_without_usage_the_reply_is_counted_once() -> None:
    """The count that stands in for the usage is the one that is stored with the message."""
    counted: list[int] = []

    class Counting(TokenCounter):
        async def count(self, raws: Any, model: str, api: str) -> dict[int, int]:
            counted.append(len(raws))
            return await super().count(raws, model, api)

    async with open_turns() as t:
        counter = Counting()
        object.__setattr__(t.engine.accountant, "token_counter", counter)
        object.__setattr__(t.engine.committer, "token_counter", counter)
        await close(t, await t.open([user("a")]), make_reply(LONG))
        memory = await t.parts.memory()
        assert memory.ledger.full.output == memory.tail[-1].tokens > 100
        assert memory.ledger.full.estimated == 1
        assert counted == [1]


@pytest.mark.parametrize("read_only", [False, True])
async def test_the_prompts_of_a_long_thread(read_only: bool) -> None:
    """Once notes take the place of messages, the baseline is longer than what was sent."""
    async with open_turns() as t:
        history = await t.history(6)
        turn = await t.open(history, "read" if read_only else "on")
        assert turn.mark
        assert turn.mark.prefix
        assert turn.mark.sent == turn.receipt["tokens-sent"] < turn.mark.whole
        assert turn.mark.whole == turn.receipt["tokens-received"]
        accounted = await t.engine.accountant.account(
            turn, replace(make_reply("x"), usage=Usage(800, 0, 0, 9))
        )
        assert accounted.entry
        account = accounted.entry.account
        baseline_prompt = account.baseline_input + account.baseline_cached
        assert baseline_prompt == pytest.approx(800 * turn.mark.whole / turn.mark.sent, abs=1)


async def test_a_thin_client_is_compared_with_its_whole_transcript() -> None:
    """It sends one message at a time; the baseline is all that it and the model have said."""
    async with open_turns() as t:
        priced = listen(t)
        whole = []
        for number in range(4):
            turn = await t.open([user(f"{number}: {LONG}")])
            await close(t, turn, replace(make_reply(LONG), usage=USAGE))
            assert turn.mark
            whole.append(turn.mark.whole)
        memory = await t.parts.memory()
        assert memory.style == "thin"
        assert whole == sorted(whole)
        assert whole[-1] > 3 * whole[0]
        assert memory.ledger.partial.calls == 3  # the first request proves nothing yet
        assert [fact.history for fact in priced] == ["full", "partial", "partial", "partial"]


async def test_messages_taken_back_are_no_repeated_ones() -> None:
    """Behind the cut of a fork, nothing stood in the previous prompt."""
    async with open_turns() as t:
        first = [user(f"a: {LONG}"), assistant(f"b: {LONG}"), user(f"c: {LONG * 30}")]
        turn = await t.open(first)
        await close(t, turn, replace(make_reply("d"), usage=USAGE))
        forked = [*first[:2], user(f"another: {LONG * 30}")]
        turn = await t.open(forked)
        assert turn.mark
        assert turn.opened.reconciled.verdict.forks
        accounted = await t.engine.accountant.account(turn, make_reply("e"))
        assert accounted.entry
        assert accounted.entry.account.baseline_cached < turn.mark.whole // 10


@pytest.mark.parametrize("reply", [None, Reply(error=True)], ids=["no reply", "an error"])
async def test_nothing_was_paid(reply: Reply | None) -> None:
    async with open_turns() as t:
        priced = listen(t)
        accounted = await t.engine.accountant.account(await t.open([user("a")]), reply)
        assert (accounted.entry, priced) == (None, [])


async def test_costs_wait_for_a_commit_that_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a retry added is not lost if the next commit fails once."""
    async with open_turns() as t:
        reply = replace(make_reply("b"), usage=USAGE)
        await close(t, await t.open([user("a")]), reply)
        await close(t, await t.open([user("a")]), reply)
        assert (await t.parts.memory()).ledger.full.calls == 1
        turn = await t.open([user("a"), assistant("b"), user("c")])
        commit = t.parts.memories.commit

        async def fail(*_: Any, **__: Any) -> Any:
            raise StorageError("away")

        monkeypatch.setattr(t.parts.memories, "commit", fail)
        with pytest.raises(StorageError):
            await close(t, turn, reply)
        monkeypatch.setattr(t.parts.memories, "commit", commit)
        await close(t, turn, reply)
        assert (await t.parts.memory()).ledger.full.calls == 3


async def test_a_price_table_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that got the stored reply is told apart all the same."""

    def fail(model: str) -> None:
        raise ValueError(model)

    async with open_turns() as t:
        failed: list[ExtraFailed] = []
        t.parts.memories.facts.subscribe(failed.append, ExtraFailed)
        reply = replace(make_reply("b"), usage=USAGE)
        await close(t, await t.open([user("a")]), reply)
        monkeypatch.setattr(accounting, "find_token_prices", fail)
        assert t.engine.close_repeated(await t.open([user("a")]), reply) == 2
        assert [(fact.extra, fact.error) for fact in failed] == [("ledger", "ValueError")]


ENTRY = TurnEntry(Account(calls=1, cost=5))


def cost(entries: UnstoredEntries) -> int | None:
    ledger = entries.take(KEY)
    return ledger and ledger.full.cost


def test_entries_are_taken_once() -> None:
    """Entries sum up, and are gone when they are taken."""
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    entries.add(KEY, ENTRY)
    assert [cost(entries), cost(entries)] == [10, None]


def test_a_commit_that_fails_puts_them_back() -> None:
    """Entries that came meanwhile stay too."""
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    taken = entries.take(KEY)
    assert taken
    entries.add(KEY, ENTRY)
    entries.put_back(KEY, taken)
    assert cost(entries) == 10


def test_a_forgotten_thread_leaves_nothing() -> None:
    entries = UnstoredEntries()
    entries.add(KEY, ENTRY)
    entries.drop(KEY)
    assert cost(entries) is None


def test_they_are_bounded() -> None:
    """Of more threads than may wait, the oldest give way."""
    entries = UnstoredEntries()
    for number in range(accounting.MAX_THREADS + 1):
        entries.add(KEY._replace(thread=str(number)), ENTRY)
    assert entries.take(KEY._replace(thread="0")) is None
    assert entries.take(KEY._replace(thread="1"))
