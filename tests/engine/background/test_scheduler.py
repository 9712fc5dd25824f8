"""Work after the reply: one run a thread, joined, given up, and found again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from om_proxy.agents.model_access.llm import Target
from om_proxy.common.errors import ModelError
from om_proxy.engine.background import scheduler
from om_proxy.engine.background.scheduler import CLAIMS_PER_SLOT, Background
from om_proxy.engine.background.thread_run import RequestedWork, ThreadRun
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Observe, ObserveNow, Reflect
from om_proxy.memory.lifecycle.transitions import FIRST_BACK_OFF_S
from om_proxy.memory.model import Failures, Key
from om_proxy.storage.sqlite.store import SqliteStore
from tests.agents.scripted_llm import bullets, texts
from tests.memory.building import KEY, chat, chunk
from tests.support.performing import INHERITED, SMALL, HeldAnswer, Parts, Step, open_parts

FIRST_TWO = Observe(after=0, last=2, tokens=100, wait=True)
OWN = Target("actor", base_url="http://127.0.0.1:1/v1", headers=(("authorization", "Bearer k"),))


async def due_thread(p: Parts, turns: int = 3) -> None:
    """50 tokens a message, a chunk is worth making from 200 on."""
    await p.store_tail(chat(turns, 50))


@asynccontextmanager
async def thread_under_observation(
    path: Path | str = ":memory:",
) -> AsyncIterator[tuple[Parts, HeldAnswer]]:
    """The observation lasts until `Held.go` is set."""
    held = HeldAnswer()
    async with open_parts(held, path=path) as p:
        await due_thread(p)
        p.background.wake(KEY)
        await held.asked.wait()
        yield p, held


async def logged_thread(p: Parts) -> None:
    """A log of 1 200 tokens, from where a reflection is prepared, and nothing to observe."""
    memory = await p.store_tail(chat(1, 50))
    memory = transitions.add_chunk(
        memory, chunk(memory, 2, tokens=1_200, text="* 🔴 (10:00) noted " + "word " * 1_200)
    )
    await p.memories.update(
        KEY, lambda _: transitions.activate_chunks(memory, [memory.chunks[0].id], 5.0)
    )


async def last_of_chunks(p: Parts) -> list[int]:
    return [c.last for c in (await p.memory()).chunks]


# ── one at a time ─────────────────────────────────────────────────────────────────────────────────


async def test_what_is_due_is_done_until_nothing_is() -> None:
    """One wake performs everything that is due, piece by piece."""
    async with open_parts() as p:
        await due_thread(p, turns=30)  # 3 000 tokens; one batch has 1 000 at most
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [20, 40, 60]
        assert p.models.most == 1


async def test_one_run_at_a_time_on_a_thread() -> None:
    """A thread that is woken while work goes on is looked at once more afterwards, never twice at
    once."""
    async with thread_under_observation() as (p, held):
        for _ in range(5):
            p.background.wake(KEY)
        tail = chat(6, 50)
        await p.memories.update(KEY, lambda m: replace(m, tail=tail, next_seq=13))
        held.go.set()
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [6, 12]
        assert (len(p.models.asked), p.models.most) == (2, 1)


async def test_threads_do_not_wait_for_each_other_but_for_a_place() -> None:
    """Different threads work at once, up to `background.concurrency`."""
    held = [HeldAnswer() for _ in range(4)]
    async with open_parts(*held, concurrency=2) as p:
        keys = [KEY._replace(thread=f"thread {n}") for n in range(4)]
        for key in keys:
            await p.store_tail(chat(3, 50), key)
            p.background.wake(key)
        await asyncio.gather(held[0].asked.wait(), held[1].asked.wait())
        assert not held[2].asked.is_set()
        for one in held:
            one.go.set()
        await p.background.wait_idle()
        assert [len((await p.memory(key)).chunks) for key in keys] == [1, 1, 1, 1]
        assert p.models.most == 2


async def test_a_failure_ends_the_run() -> None:
    """A failing thread is left alone until its back-off has passed; a wake before then asks no
    model."""
    async with open_parts(ModelError("refused")) as p:
        await due_thread(p)
        p.background.wake(KEY)
        await p.background.wait_idle()
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert len(p.models.asked) == 1
        p.clock.now += FIRST_BACK_OFF_S
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [6]


async def test_a_parked_thread_is_left_alone() -> None:
    """No work is done for a suspended thread until it is revived."""
    async with open_parts() as p:
        await due_thread(p)
        await p.memories.update(
            KEY, lambda m: replace(m, failures=Failures(8, 0.0, suspended=True))
        )
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked == []
        assert await p.store.due_threads(p.clock.now, 10) == ()


async def test_one_thread_s_failure_touches_no_other() -> None:
    """A run that breaks off, even for a reason nobody foresaw, leaves the others and its own later
    runs alone."""
    async with open_parts() as p:
        await due_thread(p)
        other = KEY._replace(thread="other")
        await p.store_tail(chat(3, 50), other)
        real = p.worker.perform
        broken = [KEY]

        async def perform(key: object, *rest: object) -> bool:
            if key in broken:
                broken.clear()
                raise RuntimeError("nobody foresaw this")
            return await real(key, *rest)  # type: ignore[arg-type]  # passed on as it came

        p.worker.perform = perform  # type: ignore[method-assign]  # a fault that no real part can be made to have
        p.background.wake(KEY)
        p.background.wake(other)
        await p.background.wait_idle()
        assert len((await p.memory(other)).chunks) == 1
        assert (await p.memory()).chunks == ()
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [6]


# ── a request that waits ──────────────────────────────────────────────────────────────────────────


async def test_what_a_request_waits_for_comes_first() -> None:
    """It is done before what is due otherwise, and the request goes on as soon as it is through."""
    held = HeldAnswer()
    async with open_parts("* 🔴 (10:00) the first two", held) as p:
        await due_thread(p, turns=4)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0)
        assert await last_of_chunks(p) == [2]
        await held.asked.wait()  # the rest goes on in the background
        held.go.set()
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [2, 8]


async def test_a_request_joins_the_observation_under_way() -> None:
    """The same observation is not paid for twice."""
    async with thread_under_observation() as (p, held):
        joining = asyncio.create_task(p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0))
        await asyncio.sleep(0)
        held.go.set()
        assert await joining
        await p.background.wait_idle()
        assert len(p.models.asked) == 1
        assert await last_of_chunks(p) == [6]


async def test_a_request_waits_for_other_work_and_then_has_its_own_done() -> None:
    """A reflection under way is no answer to a request that needs an observation."""
    held = HeldAnswer(bullets("all in all"))
    async with open_parts(held) as p:
        await logged_thread(p)
        p.background.wake(KEY)
        await held.asked.wait()
        tail = chat(2, 50)[2:]  # not yet worth a chunk by itself
        await p.memories.update(KEY, lambda m: replace(m, tail=tail, next_seq=5))
        wanted = Observe(after=2, last=4, tokens=100, wait=True)
        waiting = asyncio.create_task(p.background.wait_for_work(KEY, wanted, p.context(), 5.0))
        await asyncio.sleep(0)
        held.go.set()
        assert await waiting
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [4]
        assert (await p.memory()).log.reflection is not None


async def test_at_the_deadline_the_request_goes_on_and_so_does_the_work() -> None:
    """The late answer becomes a chunk, for the next request."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await due_thread(p)
        assert not await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 0.02)
        assert await last_of_chunks(p) == []
        held.go.set()
        await p.background.wait_idle()
        assert (await last_of_chunks(p))[0] == 2


async def test_nobody_waits_twice_for_a_call_that_hangs() -> None:
    """Inspection R3: patience is the call's, not the request's: whoever comes when it is used up
    goes on at once."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await due_thread(p)
        assert p.background.remaining_wait(KEY, 0.02) == 0.02
        assert not await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 0.02)
        assert p.background.remaining_wait(KEY, 0.02) == 0.0
        assert not await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 0.02)
        async with asyncio.timeout(60):
            while not p.models.asked:  # noqa: ASYNC110 - on a busy machine it is asked later
                await asyncio.sleep(0.001)
        assert len(p.models.asked) == 1
        other = KEY._replace(thread="other")
        assert p.background.remaining_wait(other, 0.02) == 0.02  # another thread's is another call
        held.go.set()
        await p.background.wait_idle()
        assert p.background.remaining_wait(KEY, 0.02) == 0.02


async def test_who_comes_together_waits_together() -> None:
    """Requests that find the same call wait until the same moment, and all have what comes of
    it."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await due_thread(p)
        waiting = [
            asyncio.create_task(p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 30.0))
            for _ in range(5)
        ]
        await held.asked.wait()
        held.go.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        await p.background.wait_idle()


async def test_a_failure_is_no_reason_to_wait_longer() -> None:
    """The request goes on as soon as the work has failed."""
    async with open_parts(ModelError("refused")) as p:
        await due_thread(p)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0)
        assert (await p.memory()).failures.count == 1


async def test_what_an_observation_reads_is_known_while_it_reads() -> None:
    """Texts up to there may not change meanwhile; afterwards they may."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await due_thread(p)
        assert p.background.last_seq_being_read(KEY) == 0
        p.background.wake(KEY)
        await held.asked.wait()
        assert p.background.last_seq_being_read(KEY) == 6
        assert p.background.last_seq_being_read(KEY._replace(thread="other")) == 0
        held.go.set()
        await p.background.wait_idle()
        assert p.background.last_seq_being_read(KEY) == 0


async def test_a_reflection_reads_no_messages() -> None:
    """Every message may still change while a log is condensed."""
    held = HeldAnswer(bullets("all in all"))
    async with open_parts(held) as p:
        await logged_thread(p)
        p.background.wake(KEY)
        await held.asked.wait()
        assert p.background.last_seq_being_read(KEY) == 0
        held.go.set()
        await p.background.wait_idle()
        assert (await p.memory()).log.reflection is not None


async def test_a_request_does_not_wait_in_the_line() -> None:
    """A thread that waits for a place gets its waited-for observation all the same: a place is
    never a condition for that."""
    held = HeldAnswer()
    async with open_parts(held, concurrency=1) as p:
        other = KEY._replace(thread="other")
        await p.store_tail(chat(3, 50), other)
        p.background.wake(other)
        await held.asked.wait()
        await due_thread(p)
        p.background.wake(KEY)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0)
        assert await last_of_chunks(p) == [2]
        held.go.set()
        await p.background.wait_idle()


async def test_a_thread_that_is_waited_for_has_left_the_line() -> None:
    """A place that becomes free meanwhile goes to the next one: no thread is worked on twice at
    once."""
    held, waited_for, third = HeldAnswer(), HeldAnswer(), HeldAnswer()
    async with open_parts(held, waited_for, third, concurrency=1) as p:
        performed, (first, second) = PerformOrder(p), threads_of(KEY.tenant, 2)
        for key in (first, KEY, second):
            await p.store_tail(chat(3, 50), key)
            p.background.wake(key)
        await held.asked.wait()
        waiting = asyncio.create_task(p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0))
        await waited_for.asked.wait()
        held.go.set()
        await third.asked.wait()
        assert performed.order == [first.thread, KEY.thread, second.thread]
        for one in (waited_for, third):
            one.go.set()
        assert await waiting
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [2, 6]


async def test_what_is_due_besides_waits_for_a_place() -> None:
    """A request's observation needs no place; the rest of its thread's work does."""
    held = HeldAnswer()
    async with open_parts(held, concurrency=1) as p:
        other = KEY._replace(thread="other")
        await p.store_tail(chat(3, 50), other)
        p.background.wake(other)
        await held.asked.wait()
        await due_thread(p, turns=4)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0)
        await asyncio.sleep(0.02)  # for what should not happen
        assert len(p.models.asked) == 2
        held.go.set()
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [2, 8]


# ── places are given fairly ───────────────────────────────────────────────────────────────────────


def threads_of(tenant: str, count: int) -> list[Key]:
    return [Key(tenant, "resource", f"{tenant} {n}") for n in range(count)]


class PerformOrder:
    """Notes whose work is performed, in order, and has it performed."""

    def __init__(self, p: Parts) -> None:
        self.order: list[str] = []
        self._real = p.worker.perform
        p.worker.perform = self.perform  # type: ignore[method-assign]  # nothing else sees the order

    async def perform(
        self, key: Key, decision: decisions.Decision, call: MemoryContext, run: ThreadRun
    ) -> bool:
        self.order.append(key.thread)
        return await self._real(key, decision, call, run)


async def test_a_flood_leaves_the_next_place_to_another_tenant() -> None:
    """500 due threads of one tenant with a slow model, one of another: that one is next."""
    slow, ninth = [HeldAnswer() for _ in range(8)], HeldAnswer()
    async with open_parts(*slow, ninth) as p:
        performed = PerformOrder(p)
        flood, (one,) = threads_of("busy", 500), threads_of("quiet", 1)
        for key in (*flood, one):
            await p.store_tail(chat(3, 50), key)
        for key in flood:
            p.background.wake(key)
        for held in slow:
            await held.asked.wait()
        p.background.wake(one)
        slow[3].go.set()
        await ninth.asked.wait()
        assert performed.order == [*(key.thread for key in flood[:8]), one.thread]
        assert p.models.most == 8
        for held in (*slow, ninth):
            held.go.set()
        await p.background.wait_idle()
        assert performed.order[9:] == [key.thread for key in flood[8:]], "first come, first served"


async def test_a_long_backlog_gives_way_after_each_piece() -> None:
    """A thread with an import to catch up on does not keep its place while another tenant waits."""
    held = HeldAnswer()
    async with open_parts(held, concurrency=1) as p:
        performed = PerformOrder(p)
        (long,), (short,) = threads_of("busy", 1), threads_of("quiet", 1)
        await p.store_tail(chat(30, 50), long)  # three batches
        await p.store_tail(chat(3, 50), short)
        p.background.wake(long)
        await held.asked.wait()
        p.background.wake(short)
        held.go.set()
        await p.background.wait_idle()
        assert performed.order == [long.thread, short.thread, long.thread, long.thread]
        assert [c.last for c in (await p.memory(long)).chunks] == [20, 40, 60]


async def test_what_found_no_room_in_the_line_is_found_again() -> None:
    """The line is bounded; the store knows the rest."""
    async with open_parts() as p:
        background = Background(
            p.memories, p.worker, p.policies, concurrency=1, max_waiting=10, clock=p.clock
        )
        flood = threads_of("busy", 30)
        for key in flood:
            await p.store_tail(chat(3, 50), key)
        for key in flood:
            background.wake(key)
        await background.wait_idle()
        assert len(p.models.asked) == 11
        assert await p.store.due_threads(p.clock.now, 100) == tuple(flood[11:])
        looking = asyncio.create_task(background.look_for_due(lambda: 0.001))
        async with asyncio.timeout(30):
            while await p.store.due_threads(p.clock.now, 100):
                await background.wait_idle()
        await background.wait_idle()
        looking.cancel()
        assert len(p.models.asked) == 30


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nothing tells of a claim
            await asyncio.sleep(0.001)


async def look_once(background: Background) -> asyncio.Task[None]:
    """The first look for due work, done; the next one comes after an hour."""
    looking = asyncio.create_task(background.look_for_due(lambda: 3_600.0))
    await asyncio.sleep(0)
    await background.wait_idle()
    return looking


async def test_all_that_is_due_is_done_after_one_look() -> None:
    """A process claims a few threads for each place, and more as places become free."""
    async with open_parts(concurrency=2) as p:
        keys = threads_of("a", 11)
        for key in keys:
            await p.store_tail(chat(3, 50), key)
        looking = await look_once(p.background)
        async with asyncio.timeout(30):
            while await p.store.due_threads(p.clock.now, 100):
                await p.background.wait_idle()
        await p.background.wait_idle()
        looking.cancel()
        assert len(p.models.asked) == 11


async def test_a_process_claims_no_more_than_it_soon_begins() -> None:
    """The rest of what is due is left to other processes."""
    async with open_parts(*(HeldAnswer() for _ in range(9)), concurrency=2) as p:
        keys = threads_of("a", 9)
        for key in keys:
            await p.store_tail(chat(3, 50), key)
        looking = asyncio.create_task(p.background.look_for_due(lambda: 3_600.0))
        await wait_until(lambda: len(p.models.asked) == 2)
        assert await p.store.claim(p.clock.now, 99, "another process", 60) == tuple(
            keys[2 * CLAIMS_PER_SLOT :]
        )
        looking.cancel()


async def test_what_cannot_be_done_is_claimed_once_a_look() -> None:
    """A thread that is due and stays so, as nothing is at hand to do it with, does not keep the
    process busy, nor others from it. So it is where the settings no longer name a key."""
    async with open_parts(settings=INHERITED, opener=Leases, concurrency=1) as p:
        assert isinstance(p.store, Leases)
        keys = threads_of("a", 5)
        for key in keys:
            memory = await p.store_tail(chat(3, 50), key)
            await p.store.commit(memory, replace(memory, needs_caller=False))
        looking = await look_once(p.background)
        async with asyncio.timeout(30):
            while len(p.store.claimed) < 5:
                await p.background.wait_idle()
                await asyncio.sleep(0)
        await p.background.wait_idle()
        looking.cancel()
        assert (sorted(p.store.claimed), p.models.asked) == (sorted(keys), [])
        assert await p.store.claim(p.clock.now, 99, "another process", 60) == tuple(keys)


async def test_what_was_claimed_is_given_back_at_the_end() -> None:
    """Another process, or the next one, need not wait for a lease to run out."""
    async with open_parts(HeldAnswer(), concurrency=1) as p:
        keys = threads_of("a", 3)
        for key in keys:
            await p.store_tail(chat(3, 50), key)
        looking = asyncio.create_task(p.background.look_for_due(lambda: 3_600.0))
        await wait_until(lambda: bool(p.models.asked))
        looking.cancel()
        await p.background.close()
        assert await p.store.claim(p.clock.now, 99, "another process", 60) == tuple(keys)


async def test_a_process_that_ends_soon_leaves_due_work_to_others() -> None:
    """What it has claimed and not begun is given back at once, and nothing more is claimed, while a
    call under way goes on."""
    held = HeldAnswer()
    async with open_parts(held, concurrency=1) as p:
        keys = threads_of("a", 4)
        for key in keys:
            await p.store_tail(chat(3, 50), key)
        looking = asyncio.create_task(p.background.look_for_due(lambda: 0.01))
        await wait_until(lambda: bool(p.models.asked))
        p.background.leave_due_work()
        await wait_until(lambda: not p.background._leases.unused_claims)
        others = keys[1:]
        async with asyncio.timeout(30):
            while await p.store.claim(p.clock.now, 99, "another process", 60) != tuple(others):
                await asyncio.sleep(0.001)
                for key in others:
                    await p.store.release(key, "another process")
        held.go.set()
        await p.background.wait_idle()
        looking.cancel()
        assert (len(p.models.asked), len((await p.memory(keys[0])).chunks)) == (1, 1)


async def test_a_claim_under_way_is_given_back_by_a_process_that_ends_soon() -> None:
    """Its answer comes after the process was told to end."""
    async with open_parts(opener=Leases, concurrency=1) as p:
        assert isinstance(p.store, Leases)
        [key] = threads_of("a", 1)
        await p.store_tail(chat(3, 50), key)
        claiming = asyncio.create_task(p.background._claim_due())
        await asyncio.sleep(0)
        p.background.leave_due_work()
        await claiming
        await p.background.wait_idle()
        assert (p.store.claimed, p.models.asked) == ([key], [])
        assert await p.store.claim(p.clock.now, 99, "another process", 60) == (key,)


async def test_a_claim_that_loses_its_place_in_line_is_given_back() -> None:
    """Its work is due for whoever has room."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        background = Background(
            p.memories, p.worker, p.policies, concurrency=1, max_waiting=2, clock=p.clock
        )
        running, idle, claimed = threads_of("a", 3)
        await p.store_tail(chat(3, 50), running)
        background.wake(running)
        await held.asked.wait()
        background.wake(idle)
        await p.store_tail(chat(3, 50), claimed)
        looking = asyncio.create_task(background.look_for_due(lambda: 3_600.0))
        await wait_until(lambda: background._leases.is_claimed(claimed))
        before = set(background._detached)
        background.wake(threads_of("b", 1)[0])
        await asyncio.gather(*(background._detached - before))
        assert await p.store.claim(p.clock.now, 9, "another process", 60) == (claimed,)
        looking.cancel()
        await background.close()


async def test_who_waits_in_line_is_not_started_at_the_end() -> None:
    """Closing gives no place that becomes free to the next in line; its work is due again at the
    next start."""
    held = HeldAnswer()
    async with open_parts(held, concurrency=1) as p:
        first, second = threads_of("a", 2)
        for key in (first, second):
            await p.store_tail(chat(3, 50), key)
            p.background.wake(key)
        await held.asked.wait()
        await p.background.close()
        await p.background.wait_idle()
        assert len(p.models.asked) == 1
        assert await p.store.due_threads(p.clock.now, 10) == (first, second)


async def test_what_is_due_no_longer_hides_nobody() -> None:
    """Thresholds were raised since: such threads are put right once, and not found again and again
    before the others."""
    async with open_parts() as p:
        for key in threads_of("a", 100):
            memory = await p.store_tail(chat(1, 50), key)
            await p.store.commit(memory, replace(memory, due_at=1.0))
        (hidden,) = threads_of("a", 101)[-1:]
        await p.store_tail(chat(3, 50), hidden)
        looking = asyncio.create_task(p.background.look_for_due(lambda: 0.001))
        async with asyncio.timeout(30):
            while await p.store.due_threads(p.clock.now, 1_000):
                await p.background.wait_idle()
        looking.cancel()
        assert len((await p.memory(hidden)).chunks) == 1
        assert len(p.models.asked) == 1


async def test_a_back_off_delays_nobody_else() -> None:
    """A failing thread holds no slot: its neighbour and another tenant go on at once."""
    async with open_parts(ModelError("refused"), concurrency=1) as p:
        failing, neighbour = threads_of("a", 2)
        (other,) = threads_of("b", 1)
        for key in (failing, neighbour, other):
            await p.store_tail(chat(3, 50), key)
        for key in (failing, neighbour, other):
            p.background.wake(key)
        await p.background.wait_idle()
        assert [len((await p.memory(key)).chunks) for key in (failing, neighbour, other)] == [
            0,
            1,
            1,
        ]
        assert await p.store.due_threads(p.clock.now, 10) == ()
        p.clock.now += FIRST_BACK_OFF_S
        assert await p.store.due_threads(p.clock.now, 10) == (failing,)
        p.background.wake(failing)
        await p.background.wait_idle()
        assert len((await p.memory(failing)).chunks) == 1


# ── several processes ─────────────────────────────────────────────────────────────────────────────


async def test_a_thread_another_process_works_on() -> None:
    """No other process pays for the same work while a lease holds."""
    async with open_parts() as p:
        await due_thread(p)
        assert await p.store.lease(KEY, "another process", 60)
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked == []
        await p.store.release(KEY, "another process")
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [6]


async def test_a_request_does_not_wait_for_a_process_that_may_have_crashed() -> None:
    """A killed process leaves its lease behind for two minutes; what a request waits for is done
    all the same."""
    async with open_parts() as p:
        await due_thread(p)
        assert await p.store.lease(KEY, "a process that was killed", 60)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 5.0)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [2], "and nothing beside it"
        assert not await p.store.lease(KEY, "a third process", 60), (
            "the lease itself stays whose it was"
        )


async def test_work_that_needs_a_caller_is_left_to_who_holds_the_call(tmp_path: Path) -> None:
    """A process without the call leases nothing of the thread, so the process that has it goes on
    at once."""
    file = tmp_path / "om.db"
    async with (
        open_parts(settings=INHERITED, path=file) as ours,
        open_parts(settings=INHERITED, path=file, opener=Leases) as theirs,
    ):
        assert isinstance(theirs.store, Leases)
        await due_thread(ours)
        looking = await look_once(theirs.background)
        assert (theirs.store.taken, theirs.models.asked) == (0, [])
        assert not theirs.store.claimed
        ours.background.wake(KEY, ours.context(inherited=OWN))
        await ours.background.wait_idle()
        looking.cancel()
        assert await last_of_chunks(ours) == [6]


async def test_who_holds_the_call_looks_for_its_work() -> None:
    """After a back-off, and after the queue had no room for it: no claim finds such a thread."""
    async with open_parts(ModelError("refused"), settings=INHERITED, opener=Leases) as p:
        assert isinstance(p.store, Leases)
        background = Background(
            p.memories, p.worker, p.policies, concurrency=1, max_waiting=1, clock=p.clock
        )
        keys = threads_of("a", 4)
        for key in keys:
            await p.store_tail(chat(3, 50), key)
            background.wake(key, p.context(inherited=OWN))
        await background.wait_idle()
        assert len(p.models.asked) == 2, "one failed, one waited, two found no room"
        looking = await look_once(background)
        assert len(p.models.asked) == 3
        looking.cancel()
        p.clock.now += FIRST_BACK_OFF_S
        while len(p.models.asked) < 5:  # bounded: each look finds one, as long as any is left
            before = len(p.models.asked)
            looking = await look_once(background)
            looking.cancel()
            assert len(p.models.asked) > before
        assert not p.store.claimed
        assert [len((await p.memory(key)).chunks) for key in keys] == [1, 1, 1, 1]
        looking = await look_once(background)
        looking.cancel()
        assert (len(p.models.asked), background._due.list_due_with_caller()) == (5, [])
        await background.close()


async def test_work_needs_no_caller_any_more(tmp_path: Path) -> None:
    """A memory model was configured since: what was stored under `inherit` is claimed."""
    async with open_parts(settings=INHERITED, path=tmp_path / "om.db") as p:
        await due_thread(p)
        assert (await p.memory()).needs_caller
    async with open_parts(path=tmp_path / "om.db") as p:
        looking = await look_once(p.background)
        async with asyncio.timeout(30):
            while await p.store.due_threads(p.clock.now, 10):
                await p.background.wait_idle()
        await p.background.wait_idle()
        looking.cancel()
        assert await last_of_chunks(p) == [6]
        assert not (await p.memory()).needs_caller


@pytest.mark.parametrize(
    "step", [HeldAnswer(), ModelError("refused"), bullets("fine")], ids=["ended", "failed", "done"]
)
async def test_the_lease_is_given_back(step: HeldAnswer | ModelError | str) -> None:
    """However a run ends, the thread is free for others at once."""
    async with open_parts(step) as p:
        await due_thread(p)
        p.background.wake(KEY)
        if isinstance(step, HeldAnswer):
            await step.asked.wait()
            assert not await p.store.lease(KEY, "another process", 60)
        else:
            await p.background.wait_idle()
        await p.background.close()
        assert await p.store.lease(KEY, "another process", 60)


class Leases(SqliteStore):
    """The store, which counts leases and lists claims; `returned` happens when one is given
    back."""

    taken = 0
    claimed: Sequence[Key] = ()
    returned: Callable[[], Awaitable[object]] | None = None

    async def lease(self, key: Key, holder: str, seconds: float) -> bool:
        self.taken += 1
        return await super().lease(key, holder, seconds)

    async def claim(
        self,
        now: float,
        limit: int,
        holder: str,
        seconds: float,
        *,
        callers: bool = True,
        skip: Collection[Key] = (),
    ) -> tuple[Key, ...]:
        keys = await super().claim(now, limit, holder, seconds, callers=callers, skip=skip)
        self.claimed = [*self.claimed, *keys]
        return keys

    async def release(self, key: Key, holder: str) -> None:
        if self.returned:
            returned, self.returned = self.returned, None
            await returned()
        await super().release(key, holder)


async def test_a_lease_is_given_back_that_was_taken_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that ends while it waits for a lease keeps nobody from the work, even if no answer
    comes."""
    monkeypatch.setattr("om_proxy.engine.background.leases.LATE_LEASE_WAIT_S", 0.01)
    taken = asyncio.Event()
    async with open_parts() as p:
        await p.store_tail(chat(3, 50))
        lease = p.store.lease

        async def slowly(key: Key, holder: str, seconds: float) -> bool:
            leased = await lease(key, holder, seconds)
            taken.set()
            await asyncio.Event().wait()
            return leased

        monkeypatch.setattr(p.store, "lease", slowly)
        p.background.wake(KEY)
        await taken.wait()
        await p.background.close()
        assert await lease(KEY, "another process", 60)


async def test_a_thread_with_nothing_to_do_costs_no_lease() -> None:
    """Most wakes find nothing due; a lease would cost two commits each."""
    async with open_parts(opener=Leases) as p:
        assert isinstance(p.store, Leases)
        await p.store_tail(chat(1, 50))
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert (p.store.taken, p.models.asked) == (0, [])
        await due_thread(p)
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.store.taken == 1


async def test_a_thread_with_nothing_to_do_costs_no_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is asked nothing about a thread that this process has just stored."""
    async with open_parts() as p:
        await p.store_tail(chat(1, 50))
        with monkeypatch.context() as patched:
            patched.setattr(p.memories, "store", None)  # whoever asks it fails
            p.background.wake(KEY)
            await p.background.wait_idle()
        await due_thread(p)
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked


async def test_a_claimed_thread_is_looked_at_whatever_is_held_of_it(tmp_path: Path) -> None:
    """Another process has made it due and ended; what is held here is older, and says that nothing
    is due."""
    path = tmp_path / "om.db"
    async with open_parts(path=path) as ended, open_parts(path=path) as p:
        await p.store_tail(chat(1, 50))
        await due_thread(ended)
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked == []
        looking = await look_once(p.background)
        await p.background.wait_idle()
        looking.cancel()
        assert len(p.models.asked) == 1


async def test_a_wake_at_the_very_end_of_a_run_is_not_lost() -> None:
    """Work that becomes due after the last look of a run is done by another run."""
    async with open_parts(opener=Leases) as p:
        assert isinstance(p.store, Leases)
        await due_thread(p)

        async def another_turn() -> None:
            await due_thread(p, turns=6)
            p.background.wake(KEY)

        p.store.returned = another_turn
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert await last_of_chunks(p) == [6, 12]


# ── the end, and the next start ───────────────────────────────────────────────────────────────────


async def test_closing_gives_up_model_calls_and_finishes_commits() -> None:
    """Closing finishes commits. The work of an unfinished model call is due again at the next
    start."""
    async with thread_under_observation() as (p, held):
        committed = asyncio.Event()

        async def commit() -> None:
            await p.memories.update(KEY, lambda m: replace(m, title="written at the end"))
            committed.set()

        p.background.run_detached(commit())
        await p.background.close()
        assert held.given_up
        assert committed.is_set()
        after = await p.memory()
        assert (after.title, after.chunks, after.failures) == ("written at the end", (), Failures())
        assert await p.store.due_threads(p.clock.now, 10) == (KEY,)


async def test_nothing_is_started_while_closing() -> None:
    """A wake after the end starts nothing."""
    async with open_parts() as p:
        await due_thread(p)
        await p.background.close()
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked == []


async def test_due_work_is_found_after_a_restart(tmp_path: Path) -> None:
    """With a memory model of its own, a thread whose work was cut off is observed without another
    request."""
    async with thread_under_observation(path=tmp_path / "om.db"):
        pass
    held = HeldAnswer()
    async with open_parts(held, path=tmp_path / "om.db") as p:
        looking = asyncio.create_task(p.background.look_for_due(lambda: 60.0))
        async with asyncio.timeout(30):
            await held.asked.wait()
        held.go.set()
        await p.background.wait_idle()
        looking.cancel()
        assert await last_of_chunks(p) == [6]
        assert await p.store.due_threads(p.clock.now, 10) == ()


async def test_due_work_whose_credential_is_gone_waits(tmp_path: Path) -> None:
    """A model inherited from requests needs one: the thread is left as it is, no failure counted,
    and the next request does it."""
    async with open_parts(settings=INHERITED, path=tmp_path / "om.db") as p:
        await due_thread(p)
    async with open_parts(settings=INHERITED, path=tmp_path / "om.db") as p:
        assert await p.store.due_threads(p.clock.now, 10) == (KEY,)
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert p.models.asked == []
        assert (await p.memory()).failures == Failures()
        p.background.wake(KEY, p.context(inherited=OWN))
        await p.background.wait_idle()
        assert [target for target, _ in p.models.asked] == [OWN]
        assert await last_of_chunks(p) == [6]


async def test_the_newest_request_s_credential_is_the_one_used() -> None:
    """A caller who renews a key is not asked for with the old one."""
    async with open_parts(settings=INHERITED) as p:
        await p.store_tail(chat(1, 50))
        p.background.wake(
            KEY,
            p.context(
                inherited=dataclasses.replace(OWN, headers=(("authorization", "Bearer old"),))
            ),
        )
        await p.background.wait_idle()
        await due_thread(p)
        p.background.wake(KEY, p.context(inherited=OWN))
        await p.background.wait_idle()
        assert [target for target, _ in p.models.asked] == [OWN]


async def test_a_store_that_fails_does_not_end_the_looking(tmp_path: Path) -> None:
    """The look for due work comes again after an error of the store."""
    async with open_parts(path=tmp_path / "om.db") as p:
        await due_thread(p)
        looks, third = count(1), asyncio.Event()

        def interval() -> float:
            if next(looks) == 3:
                third.set()
            return 0.0

        await p.store.close()
        looking = asyncio.create_task(p.background.look_for_due(interval))
        async with asyncio.timeout(30):
            await third.wait()
        assert not looking.done()
        looking.cancel()


async def test_reflecting_is_work_like_observing() -> None:
    """A long log is condensed in the background by itself, and shown to the reflector whole."""
    async with open_parts(bullets("all in all")) as p:
        await logged_thread(p)
        assert isinstance(
            decisions.decide_after_reply(await p.memory(), p.context().effective.limits), Reflect
        )
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert (await p.memory()).log.reflection is not None
        assert "noted" in texts(p.models.asked[0][1])


# ── background.external: other processes do the due work ──────────────────────────────────────────


@asynccontextmanager
async def open_serving_process(
    path: Path, *steps: Step, settings: str = SMALL
) -> AsyncIterator[Parts]:
    async with open_parts(*steps, path=path, settings=settings, is_external=lambda: True) as p:
        yield p


async def test_external_work_is_left_to_others(tmp_path: Path) -> None:
    """Neither a wake nor a look makes a call here, nor takes a lease; another process does it."""
    async with open_serving_process(tmp_path / "om.db") as serving:
        await due_thread(serving)
        serving.background.wake(KEY, serving.context())
        await serving.background.wait_idle()
        looking = await look_once(serving.background)
        looking.cancel()
        assert serving.models.asked == []
        assert serving.background._due.list_due_with_caller() == []
        assert await serving.store.due_threads(serving.clock.now, 10) == (KEY,)
        async with open_parts(path=tmp_path / "om.db") as working:
            looking = await look_once(working.background)
            await working.background.wait_idle()
            looking.cancel()
            assert len(working.models.asked) == 1
        assert await last_of_chunks(serving) == [6]


async def test_work_that_needs_a_caller_stays(tmp_path: Path) -> None:
    """No other process has the credential."""
    async with open_serving_process(tmp_path / "om.db", settings=INHERITED) as p:
        await due_thread(p)
        p.background.wake(KEY, p.context(inherited=OWN))
        await p.background.wait_idle()
        assert [target for target, _ in p.models.asked] == [OWN]
        assert await last_of_chunks(p) == [6]


async def test_what_is_waited_or_asked_for_is_done_here(tmp_path: Path) -> None:
    """A request does not depend on a worker, and a person hears of the end."""
    async with open_serving_process(tmp_path / "om.db") as p:
        await due_thread(p)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 30.0)
        assert await last_of_chunks(p) == [2]
        asked = p.background.request_work(RequestedWork(KEY, ObserveNow(), "1"))
        assert await asked.wait(30.0)
        assert await last_of_chunks(p) == [2, 6]
        await p.background.wait_idle()
        assert len(p.models.asked) == 2


@pytest.mark.parametrize("does_it", [True, False], ids=["it did it", "it gave up"])
async def test_a_request_joins_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does_it: bool
) -> None:
    """While a worker has the thread, the request waits for it, and pays for the same notes only if
    the worker made none."""
    monkeypatch.setattr(scheduler, "LEASE_RETRY_S", 0.0)
    async with open_serving_process(tmp_path / "om.db") as p:
        await due_thread(p)
        assert await p.store.lease(KEY, "a worker", 60.0)
        waiting = asyncio.create_task(p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 30.0))
        async with open_parts(path=tmp_path / "om.db") as worker:
            if does_it:
                made = await worker.memory()
                await worker.memories.update(
                    KEY, lambda memory: transitions.add_chunk(memory, chunk(made, 6))
                )
            assert not waiting.done()
            await worker.store.release(KEY, "a worker")
        assert await waiting
        assert await last_of_chunks(p) == ([6] if does_it else [2])
        assert len(p.models.asked) == (0 if does_it else 1)


async def test_a_request_does_not_wait_for_a_worker_that_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker claims threads ahead, and may be killed: after a part of its wait, the request's own
    process makes the notes."""
    monkeypatch.setattr(scheduler, "JOIN_SHARE", 0.0)
    async with open_serving_process(tmp_path / "om.db") as p:
        await due_thread(p)
        assert await p.store.lease(KEY, "a worker", 60.0)
        assert await p.background.wait_for_work(KEY, FIRST_TWO, p.context(), 30.0)
        assert await last_of_chunks(p) == [2]
        assert not await p.store.lease(KEY, "another", 60.0)


async def test_external_takes_effect_at_once(tmp_path: Path) -> None:
    """The next look of a process that serves only no more takes what was left."""
    is_external = [True]
    async with open_parts(path=tmp_path / "om.db", is_external=lambda: is_external[0]) as p:
        await due_thread(p)
        looking = await look_once(p.background)
        looking.cancel()
        assert p.models.asked == []
        is_external[0] = False
        looking = await look_once(p.background)
        await p.background.wait_idle()
        looking.cancel()
        assert await last_of_chunks(p) == [6]
