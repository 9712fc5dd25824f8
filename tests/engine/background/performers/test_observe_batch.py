"""Requests of threads that are observed together: each waits for the call that reads its own
thread, and for no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count, zip_longest
from typing import Any

import pytest
from msgspec.structs import replace

from om_proxy.agents.model_access.llm import Answer
from om_proxy.engine.background.due_work import DueWork
from om_proxy.engine.background.performers.observe import MAX_CALLS_PER_RESOURCE
from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.model import Key, Style, resource_key
from om_proxy.memory.token_prices import Usage
from om_proxy.observability.facts import Fact, MemoryCallEnded
from om_proxy.storage.values.stored_rows import Backlog
from tests.memory.building import KEY, chat
from tests.support.performing import NOTES, SMALL, HeldAnswer, Parts, open_parts

ALONE = SMALL.replace("memory:", "memory:\n  scope: resource").replace(
    "block_timeout", "max_tokens_per_batch: 300, block_timeout"
)
ALL = Observe(after=0, last=6, tokens=300, wait=True)
AMPLE_LIMIT_S = 30.0  # what is waited for comes long before


def threads(count: int) -> list[Key]:
    return [KEY._replace(thread=f"thread {n}") for n in range(count)]


async def gathering(
    p: Parts, keys: list[Key], held: list[HeldAnswer], styles: Sequence[Style] = ()
) -> None:
    """The resource's run is under way; a call for each thread, as many as there may be at once."""
    for key, style in zip_longest(keys, styles, fillvalue=None):
        assert key is not None
        tail = tuple(chat(3, 50))
        told = partial(
            replace,
            tail=tail,
            next_seq=7,
            model="actor",
            scope="resource",
            turn_at=p.clock.now,
            style=style or "full",
        )
        await p.memories.update(key, told, "resource")
    p.background.wake(resource_key(KEY), p.context())
    await asyncio.gather(*(one.asked.wait() for one in held))


async def test_a_thread_waits_for_its_own_call_only() -> None:
    """Inspection R3: of twelve threads observed together, one call hung, and eleven requests waited
    for it."""
    held = [HeldAnswer() for _ in range(MAX_CALLS_PER_RESOURCE)]
    async with open_parts(*held, settings=ALONE) as p:
        keys = threads(MAX_CALLS_PER_RESOURCE)
        await gathering(p, keys, held)
        assert not await p.background.wait_for_work(keys[0], ALL, p.context(), 0.02)
        waiting = [
            asyncio.create_task(p.background.wait_for_work(key, ALL, p.context(), AMPLE_LIMIT_S))
            for key in keys[1:]
        ]
        await asyncio.sleep(0)
        for one in held[1:]:
            one.go.set()
        assert await asyncio.gather(*waiting) == [True] * len(waiting)
        assert not held[0].go.is_set()
        assert p.background.last_seq_being_read(keys[0]) > 0
        assert [p.background.last_seq_being_read(key) for key in keys[1:]] == [0] * len(waiting)
        assert [bool((await p.memory(key)).chunks) for key in keys] == [False, True, True, True]
        held[0].go.set()
        await p.background.wait_idle()


async def test_a_thread_whose_call_has_not_begun_gets_one_of_its_own() -> None:
    """It does not stand behind the calls before it, and is not asked about twice."""
    held = [HeldAnswer() for _ in range(MAX_CALLS_PER_RESOURCE)]
    async with open_parts(*held, settings=ALONE) as p:
        keys = threads(MAX_CALLS_PER_RESOURCE + 1)
        await gathering(p, keys, held)
        assert await p.background.wait_for_work(keys[-1], ALL, p.context(), AMPLE_LIMIT_S)
        assert (await p.memory(keys[-1])).chunks
        for one in held:
            one.go.set()
        await p.background.wait_idle()
        assert len(p.models.asked) == len(keys)


async def test_a_server_that_hangs_costs_one_deadline() -> None:
    """All calls end at it, each thread backs off by itself, and no further batch is begun on the
    same server."""
    held = [HeldAnswer() for _ in range(2 * MAX_CALLS_PER_RESOURCE)]
    async with open_parts(*held, settings=ALONE, within=1.0) as p:
        keys = threads(2 * MAX_CALLS_PER_RESOURCE)
        await gathering(p, keys, held[:MAX_CALLS_PER_RESOURCE])
        await p.background.wait_idle()
        failures = [(await p.memory(key)).failures.count for key in keys]
        assert failures == [1] * MAX_CALLS_PER_RESOURCE + [0] * MAX_CALLS_PER_RESOURCE
        assert all(one.given_up for one in held[:MAX_CALLS_PER_RESOURCE])


async def test_threads_that_were_asked_about_together_back_off_together() -> None:
    """Their one call was not answered in time: nobody asks about each of them in a row while the
    server hangs."""
    held = HeldAnswer()
    async with open_parts(held, settings=ALONE.replace("300,", "10000,"), within=1.0) as p:
        keys = threads(3)
        await gathering(p, keys, [held])
        await p.background.wait_idle()
        assert [(await p.memory(key)).failures.count for key in keys] == [1, 1, 1]
        assert len(p.models.asked) == 1


async def test_threads_that_were_asked_about_together_share_the_cost() -> None:
    """Their one call is paid for once: each has a share, also of a call that brought nothing."""
    for answer in (NOTES, ""):
        steps = [Answer(answer, "m", Usage(1_001, 0, 0, 100), finish="stop")] * 2
        settings = ALONE.replace("300,", "10000,")
        async with open_parts(*steps, settings=settings) as p:
            paid: list[Account] = []

            def keep_paid(fact: Fact, paid: list[Account] = paid) -> None:
                if isinstance(fact, MemoryCallEnded):
                    paid.extend(account for _, account in fact.accounts)

            p.memories.facts.subscribe(keep_paid)
            keys = threads(3)
            await gathering(p, keys, [])
            await p.background.wait_idle()
            shares = [(await p.memory(key)).ledger.full_memory for key in keys]
            assert sum(share.input for share in shares) == sum(call.input for call in paid) > 2_000
            assert all(share.input > 300 for share in shares)


async def test_a_call_for_several_threads_counts_on_one_side() -> None:
    """It stands under the saving if one of them does; its shares stand where the call does."""
    mixed: tuple[Style, ...] = ("thin", "full", "thin")
    for styles, history in ((mixed, "full"), (("thin",) * 3, "partial")):
        answer = Answer(NOTES, "m", Usage(1_001, 0, 0, 100), finish="stop")
        settings = ALONE.replace("300,", "10000,")
        async with open_parts(*[answer] * 2, settings=settings) as p:
            calls: list[MemoryCallEnded] = []

            def keep_call(fact: Fact, calls: list[MemoryCallEnded] = calls) -> None:
                if isinstance(fact, MemoryCallEnded):
                    calls.append(fact)

            p.memories.facts.subscribe(keep_call)
            keys = threads(3)
            await gathering(p, keys, [], styles)
            await p.background.wait_idle()
            assert len(calls[0].keys) == 3
            assert calls[0].history == history
            ledgers = [(await p.memory(key)).ledger for key in keys]
            for kind in ("full", "partial"):
                paid = sum(
                    account.input
                    for call in calls
                    if call.history == kind
                    for _, account in call.accounts
                )
                shares = [getattr(ledger, f"{kind}_memory") for ledger in ledgers]
                assert sum(share.input for share in shares) == paid
            if history == "partial":
                assert all(ledger.full_memory == EMPTY_ACCOUNT for ledger in ledgers)


async def test_a_turn_while_the_backlog_is_read_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit makes the shared log due; the look that read the backlog before sets another time.
    Nobody else would look until the resource's next turn."""
    async with open_parts(
        Answer(NOTES, "m", Usage(10, 0, 0, 10), finish="stop"), settings=ALONE
    ) as p:
        store, reads = p.memories.store, list[int]()
        read = store.resource_backlog

        async def read_before_a_turn(shared_log: Key) -> Backlog:
            backlog = await read(shared_log)
            reads.append(len(backlog))
            if len(reads) == 1:
                told = partial(replace, tail=chat(3, 50), next_seq=7, model="actor")
                told = partial(told, scope="resource", turn_at=p.clock.now)
                await p.memories.update(KEY, told, "resource")
            return backlog

        monkeypatch.setattr(store, "resource_backlog", read_before_a_turn)
        p.background.wake(resource_key(KEY), p.context())
        await p.background.wait_idle()
        assert reads[0] == 0
        assert len(p.models.asked) == 1


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("last_statement", range(1, 5))
async def test_a_process_that_is_killed_in_its_look_leaves_the_log_due(
    monkeypatch: pytest.MonkeyPatch, last_statement: int
) -> None:
    """A turn makes the shared log due after the backlog was read. Whichever statement of the look is
    the last of its process, another process still finds the log due."""
    async with open_parts(
        Answer(NOTES, "m", Usage(10, 0, 0, 10), finish="stop"), settings=ALONE
    ) as p:
        store, log_key = p.memories.store, resource_key(KEY)
        read, set_due, statements = store.resource_backlog, store.set_due, count(1)

        async def read_before_a_turn(key: Key) -> Backlog:
            if next(statements) > last_statement:
                raise Killed
            backlog = await read(key)
            if not backlog:
                told = partial(replace, tail=chat(3, 50), next_seq=7, model="actor")
                told = partial(told, scope="resource", turn_at=p.clock.now)
                await p.memories.update(KEY, told, "resource")
            return backlog

        async def set_due_unless_killed(*arguments: Any) -> bool:
            if next(statements) > last_statement:
                raise Killed
            return await set_due(*arguments)

        monkeypatch.setattr(store, "resource_backlog", read_before_a_turn)
        monkeypatch.setattr(store, "set_due", set_due_unless_killed)
        due = DueWork(p.memories, p.policies, p.clock, lambda: False)
        due.remember_context(log_key, p.context())
        with suppress(Killed):
            await due.find(log_key)
        assert await store.due_threads(p.clock.now, 9) == (log_key,)
