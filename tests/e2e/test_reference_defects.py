"""What goes wrong in the reference implementation, tried on this one: each test is named after a
defect or a race of theirs.

Their names (P1…H8) and numbers stand in each docstring. Those that were under test already, next to
the rule itself, are not repeated: a reflection that strands chunks (P1), one made of a stale log
(P6), two that observe the same at once (H8), an empty answer that moves the cursor, a log that is
wiped, an observer's failure that ends the turn, and others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import ModelError, PromptTooLong, StorageError
from om_proxy.engine.turns.block_renderer import BlockRenderer
from om_proxy.engine.turns.engine import Engine
from om_proxy.memory.events.parts import Event
from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Activate, Observe, RequestState
from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Memory, Message, Reflection
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.testing.scripted import OBSERVER, Fault
from om_proxy.wire.apis.api import Reply
from tests.agents.scripted_llm import bullets
from tests.agents.scripted_llm import texts as shown_in
from tests.e2e.running import run_with_scripted_models
from tests.e2e.test_triggers import ACTOR, OWN_REFLECTOR, Minds, client, minds, observation
from tests.engine.turns.test_engine import (
    LONG,
    Turns,
    assistant,
    make_reply,
    open_turns,
    read_forwarded,
    texts,
    user,
)
from tests.memory.building import KEY, chat, chunk, memory, transcript
from tests.support.performing import NOTES, SMALL, HeldAnswer, Parts, Step, open_parts

SIX = Observe(after=0, last=6, tokens=300)
UNBUFFERED = SMALL.replace("buffer_tokens: 200", "buffer_tokens: false")


@asynccontextmanager
async def processes(path: Path, *steps: Sequence[Step]) -> AsyncIterator[list[Parts]]:
    """Several processes on one store, each with the answers its memory model gives."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_parts(*one, path=path / "om.db")) for one in steps
        ]


async def under_way(held: HeldAnswer) -> None:
    """The model has been asked, and holds its answer back."""
    await asyncio.wait_for(held.asked.wait(), 30)


def covered_once(made: Memory, count: int) -> bool:
    """Every message of a transcript without forks is in the tail or in exactly one entry, and the
    chunks go on from there."""
    entries = made.log.entries + made.chunks
    ends = [0, *(o.last for o in entries)]
    meets = [o.after for o in entries] == ends[:-1]
    reach = made.log.entries[-1].last if made.log.entries else 0
    return (
        meets
        and made.coverage == reach
        and [m.seq for m in made.tail] == list(range(reach + 1, count + 1))
    )


# ── races ─────────────────────────────────────────────────────────────────────────────────────────


async def test_activation_onto_a_retired_generation(tmp_path: Path) -> None:
    """P4. Decided on one generation, written on the next: what is activated stands behind the
    reflection, and nothing is lost."""
    async with processes(tmp_path, (), ()) as (one, other):
        made = await one.store_tail(chat(4, 50))
        for last in (4, 6):
            made = transitions.add_chunk(made, chunk(made, last, text=f"* 🔴 (10:00) up to {last}"))
        made = transitions.activate_chunks(made, [made.chunks[0].id], 1.0)
        entry = made.log.entries[0]
        shorter = Reflection(
            generation=0,
            sources=(entry.id,),
            text="* 🔴 short",
            tokens=2,
            source_tokens=100,
            at=2.0,
        )
        made = await one.memories.update(KEY, lambda _: transitions.keep_reflection(made, shorter))
        decided = [c.id for c in made.chunks]
        await other.memories.update(KEY, lambda m: transitions.swap_reflection(m, 3.0))
        after = await one.memories.update(
            KEY, lambda m: transitions.activate_chunks(m, decided, 4.0)
        )
        assert [o.text for o in after.log.entries] == ["* 🔴 short", "* 🔴 (10:00) up to 6"]
        assert (after.log.generation, after.chunks, after.coverage) == (1, (), 6)
        assert covered_once(after, 8)
        assert after == await other.memory()


async def test_a_chunk_appended_while_others_are_swapped_in(tmp_path: Path) -> None:
    """P5. An activation by a process that never saw the newest chunk leaves it where it is."""
    async with processes(tmp_path, (), [bullets("the second half")]) as (one, other):
        made = await one.store_tail(chat(6, 50))
        made = await one.memories.update(KEY, lambda m: transitions.add_chunk(m, chunk(m, 6)))
        assert await other.worker.perform(KEY, Observe(6, 12, 300), other.context())
        assert await one.memories.latest(KEY) == made, "it has not seen the other one's chunk"
        after = await one.memories.update(
            KEY, lambda m: transitions.activate_chunks(m, [made.chunks[0].id], 1.0)
        )
        assert [(o.after, o.last) for o in after.log.entries + after.chunks] == [(0, 6), (6, 12)]
        assert "the second half" in after.chunks[0].text
        assert covered_once(after, 12)


async def test_a_late_answer_moves_the_cursor_back(tmp_path: Path) -> None:
    """H1. The same range observed by two processes, the slower one after the other's was activated:
    it changes nothing."""
    held = HeldAnswer(bullets("too late"))
    async with processes(tmp_path, [held], [bullets("in time")]) as (slow, fast):
        await slow.store_tail(chat(4, 50))
        work = asyncio.create_task(slow.worker.perform(KEY, SIX, slow.context()))
        await under_way(held)
        assert await fast.worker.perform(KEY, SIX, fast.context())
        ids = [c.id for c in (await fast.memory()).chunks]
        before = await fast.memories.update(KEY, lambda m: transitions.activate_chunks(m, ids, 1.0))
        assert before.coverage == 6
        held.go.set()
        assert await work
        after = await slow.memory()
        # the late call was paid for
        assert after == replace(before, version=after.version, ledger=after.ledger)
        assert after.ledger.full_memory.calls == before.ledger.full_memory.calls + 1


async def test_an_observation_waited_for_writes_over_an_activation(tmp_path: Path) -> None:
    """H2. What became active while the observer wrote stays active; its answer goes on from
    there."""
    held = HeldAnswer(bullets("the second half"))
    async with processes(tmp_path, [held], ()) as (one, other):
        await one.store_tail(chat(6, 50))
        made = await one.memories.update(KEY, lambda m: transitions.add_chunk(m, chunk(m, 6)))
        waited = Observe(6, 12, 300, wait=True)
        waiting = asyncio.create_task(one.background.wait_for_work(KEY, waited, one.context(), 5.0))
        await under_way(held)
        await other.memories.update(
            KEY, lambda m: transitions.activate_chunks(m, [made.chunks[0].id], 1.0)
        )
        held.go.set()
        assert await waiting
        after = await other.memory()
        assert [(o.after, o.last) for o in after.log.entries] == [(0, 6)]
        assert [(o.after, o.last) for o in after.chunks] == [(6, 12)]
        assert covered_once(after, 12)


class Failing(SqliteStore):
    """Its commits fail while `broken` is set."""

    broken = False

    async def commit(
        self,
        before: Memory,
        after: Memory,
        interrupted: Sequence[Message] = (),
        events: Sequence[Event] = (),
        began_at: float | None = None,
    ) -> Memory:
        if self.broken:
            raise StorageError("the disk is full")
        return await super().commit(before, after, interrupted, events, began_at)


async def test_a_cursor_written_before_the_commit() -> None:
    """H3. A chunk whose commit fails has moved nothing, in the store or in the cache, and its
    messages are observed again."""
    held = HeldAnswer()
    async with open_parts(held, opener=Failing) as p:
        before = await p.store_tail(chat(3, 50))
        assert isinstance(p.store, Failing)
        p.background.wake(KEY)
        await under_way(held)
        p.store.broken = True
        held.go.set()
        await p.background.wait_idle()
        assert (await p.memory()).chunks == ()
        p.store.broken = False
        assert (await p.memories.load(KEY)).tail == before.tail
        p.background.wake(KEY)
        await p.background.wait_idle()
        assert [(c.after, c.last) for c in (await p.memory()).chunks] == [(0, 6)]
        assert shown_in(p.models.asked[1][1]) == shown_in(p.models.asked[0][1])


async def test_observing_nothing_moves_the_cursor_to_now() -> None:
    """H4. The cursor stands behind what was read, never at the moment it was written; a trigger
    that finds nothing left asks nobody."""
    held = HeldAnswer()
    async with open_turns(held) as t:
        history = [user(f"question 0: {LONG}")]
        await t.turn(history, LONG)
        await under_way(held)
        await t.turn([*history, assistant(LONG), user(f"meanwhile: {LONG}")], LONG)
        held.go.set()
        await t.parts.background.wait_idle()
        made = await t.parts.memory()
        assert [(c.after, c.last) for c in made.chunks] == [(0, 2), (2, 4)]
        assert ["meanwhile" in shown_in(prompt) for _, prompt in t.parts.models.asked] == [
            False,
            True,
        ]
        t.parts.background.wake(KEY, t.parts.context())
        await t.parts.background.wait_idle()
        assert (len(t.parts.models.asked), await t.parts.memory()) == (2, made)


@pytest.mark.parametrize(
    "jump",
    [-3_600.0, -86_400.0 * 400, 0.0],
    ids=["summer time ends", "a year back", "no time passes"],
)
async def test_messages_older_than_the_cursor(jump: float) -> None:
    """F1, and open in theirs: what comes while the clock stands before an observation is shown raw
    and observed all the same."""
    async with open_turns() as t:
        history: list[dict[str, Any]] = []
        for number in range(8):
            history.append(user(f"question {number}: {LONG}"))
            asked_before = len(t.parts.models.asked)
            opened = await t.open(history)
            assert len(t.parts.models.asked) == asked_before, (
                "what is due is done before, so no request waits"
            )
            await t.engine.close_turn(opened, make_reply(f"answer {number}: {LONG}"))
            raw = texts(read_forwarded(opened) if opened.body else history)
            shown = [text for text in texts(history) if text in raw]
            assert shown == texts(history)[opened.opened.reconciled.projected.covered_count :]
            history.append(assistant(f"answer {number}: {LONG}"))
            await t.parts.background.wait_idle()
            t.parts.clock.now += jump
        made = await t.parts.memory()
        assert made.coverage >= 10
        assert covered_once(made, 16)
        asked = [shown_in(prompt) for _, prompt in t.parts.models.asked]
        times = [
            sum(f"question {number}:" in text for text in asked)
            for number in range(made.chunked_to // 2)
        ]
        assert times == [1] * len(times), "each is observed once"


async def test_a_third_that_waits_observes_again() -> None:
    """Their lock lets the third one through: here three requests that must wait pay for one
    observation together."""
    held = HeldAnswer()
    async with open_turns(held, settings=UNBUFFERED) as t:
        await t.turn([user("hello")], "hi")
        history = [user("hello"), assistant("hi"), user(LONG * 3), assistant(LONG * 3)]
        opening = [asyncio.create_task(t.open([*history, user(f"and {who}?")])) for who in "abc"]
        await under_way(held)
        held.go.set()
        opened = await asyncio.gather(*opening)
        assert [turn.status for turn in opened] == ["applied"] * 3
        assert len(t.parts.models.asked) == 1
        assert len((await t.parts.memory()).log.entries) == 1


async def test_many_first_requests_at_once(tmp_path: Path) -> None:
    """Theirs made 24 records of one thread (#22188): three processes, eight first turns each, and
    one record with all of them."""
    async with processes(tmp_path, (), (), ()) as started:
        at = [
            Turns(
                p,
                Engine(
                    p.memories, p.background, BlockRenderer(), TokenCounter(), b"s" * 32, p.clock
                ),
            )
            for p in started
        ]
        first = [(t, f"{who} {n}") for n in range(8) for who, t in enumerate(at)]
        opened = [(t, name, await t.open([user(f"question {name}")])) for t, name in first]
        await asyncio.gather(
            *(t.engine.close_turn(turn, make_reply(f"answer {name}")) for t, name, turn in opened)
        )
        (info,) = await started[0].store.threads(None)
        stored = await at[0].live()
        assert (info.messages, (await started[0].memory()).turns) == (48, 24)
        assert sorted(stored) == sorted(
            f"{what} {name}" for what in ("question", "answer") for _, name in first
        )
        assert all(
            a.split()[1:] == b.split()[1:] for a, b in zip(stored[::2], stored[1::2], strict=True)
        )


async def test_what_is_added_to_a_message_later() -> None:
    """H7. A reply that was observed is gone on with: what is added is a message of its own, and is
    observed too."""
    async with open_turns() as t:
        history = (await t.history(1, LONG * 2))[:-1]
        assert (await t.parts.memory()).chunked_to == 2
        added = f"and moreover {LONG * 3}"
        opened = await t.turn(history, added)
        assert opened.opened.reconciled.verdict.case == "continue"
        await t.parts.background.wait_idle()
        assert await t.live() == [*texts(history), added]
        assert (await t.parts.memory()).chunked_to == 3
        assert "and moreover" in shown_in(t.parts.models.asked[-1][1])


# ── what is due, and when ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("T", "interval", "grows"), [(1_000, 200, 102), (30_000, 6_000, 700), (30_000, 6_000, 3_100)]
)
def test_twice_as_many_observations_as_intervals(T: int, interval: int, grows: int) -> None:  # noqa: N803 - the specification's name
    """2.4. From the third chunk on theirs observes every half interval: ours spans a whole one, but
    near the threshold."""
    limits = Limits(
        observe_from_tokens=T,
        interval_tokens=interval,
        keep_tokens=interval,
        block_from_tokens=T * 6 // 5,
    )
    everything = chat(30 * interval // grows, grows // 2)
    made, sizes = memory(()), list[tuple[int, bool]]()
    for turn in range(0, len(everything), 2):
        made = replace(made, tail=(*made.tail, *everything[turn : turn + 2]))
        near = made.pending_tokens >= T - 1.1 * interval
        while isinstance(due := decisions.decide_after_reply(made, limits), Observe):
            sizes.append((due.tokens, near))
            made = transitions.add_chunk(made, chunk(made, due.last))
        while isinstance(
            due := decisions.decide_before_forwarding(
                made, limits, RequestState(made.end), waited=True
            ),
            Activate,
        ):
            made = transitions.activate_chunks(made, [c.id for c in made.chunks[: due.count]], 1.0)
    assert covered_once(made, len(everything))
    assert all(size >= (interval // 2 if near else interval) for size, near in sizes)
    assert sum(not near for _, near in sizes) > 10
    assert len(sizes) <= 1.3 * sum(size for size, _ in sizes) / interval


async def test_the_message_that_crosses_the_threshold() -> None:
    """2.5. Theirs decides by what was pending before it: here it shortens its own prompt."""
    async with open_turns() as t:
        history = await t.history(2)
        assert (await t.open(history)).status == "raw"
        opened = await t.open([*history[:-1], user(LONG * 3)])
        assert opened.status == "applied"
        assert texts(read_forwarded(opened))[-1] == LONG * 3


async def test_a_partial_activation_leaves_the_tail_too_long() -> None:
    """#19767. What is left is measured again: the same request activates until it is below the
    threshold, or nothing is made ahead."""
    async with open_turns() as t:
        sizes = [150] * 2 + [750] * 2 + [40] * 2
        made = await t.parts.store_tail(
            transcript(*zip(["user", "assistant"] * 3, sizes, strict=True))
        )
        for last in (2, 4):
            made = await t.parts.memories.update(KEY, partial(observed_to, last=last))
        limits = t.parts.context().effective.limits
        first = decisions.decide_before_forwarding(made, limits, RequestState(made.end))
        assert first == Activate(1, "threshold")
        assert (
            decisions.decide_before_forwarding(
                transitions.activate_chunks(made, [1], 1.0), limits, RequestState(made.end)
            )
            == first
        )
        opened = await t.open([user("and now?")])
        assert (
            opened.status,
            opened.receipt["chunks"],
            len((await t.parts.memory()).log.entries),
        ) == (
            "applied",
            0,
            2,
        )
        assert opened.receipt["pending-tokens"] < 200


def observed_to(made: Memory, last: int) -> Memory:
    return transitions.add_chunk(made, chunk(made, last))


async def test_an_activation_waits_for_an_observation_under_way() -> None:
    """2.5. Theirs waits up to a minute: here a request takes the chunks there are, and never asks
    how the observer is doing."""
    held = HeldAnswer()
    async with open_turns(NOTES, NOTES, held) as t:
        history = (await t.history(2))[:-1]
        await t.turn([*history, user(LONG)], LONG)
        await under_way(held)
        opened = await t.open([*history, user(LONG), assistant(LONG), user("and now?")])
        assert (opened.status, opened.reason) == ("applied", None)
        assert not held.go.is_set()
        held.go.set()
        await t.parts.background.wait_idle()
        assert covered_once(await t.parts.memory(), 6)


async def test_one_large_message_is_never_observed() -> None:
    """#16523. A message of many thresholds leaves the prompt like any other, clipped for the
    observer."""
    async with open_turns() as t:
        huge = " ".join(f"line{n}" for n in range(4_000))
        history = [user("hello"), assistant("hi"), user(huge)]
        await t.turn(history, "read")
        await t.parts.background.wait_idle()
        opened = await t.open([*history, assistant("read"), user("so?")])
        assert opened.status == "applied"
        assert huge not in texts(read_forwarded(opened))
        assert opened.receipt["tokens-sent"] < 1_000
        assert opened.receipt["tokens-received"] > 10_000


async def test_an_agent_that_only_calls_tools() -> None:
    """#24207, #24224. One question and then steps without a word, some results empty: observed,
    bounded, no call without its result."""
    async with open_turns() as t:
        history: list[dict[str, Any]] = [user("Count the crates.")]
        await t.turn([user("hello")], "hi")
        history = [user("hello"), assistant("hi"), *history]
        for step in range(24):
            asked = len(t.parts.models.asked)
            opened = await t.open(history)
            assert (opened.reason, len(t.parts.models.asked)) == (None, asked), "no step waits"
            prompt = read_forwarded(opened) if opened.body else history
            made = {call["id"] for m in prompt for call in m.get("tool_calls", ())}
            assert {m["tool_call_id"] for m in prompt if m["role"] == "tool"} == made
            assert opened.receipt["pending-tokens"] < 1_200 + 250
            function = {"name": "count", "arguments": f'{{"crate": {step}}}'}
            calls = [{"id": f"c{step}", "type": "function", "function": function}]
            call = {"role": "assistant", "content": None, "tool_calls": calls}
            reply = Reply(message=orjson.dumps(call), complete=True, finish_reason="tool_calls")
            await t.engine.close_turn(opened, reply)
            history += [
                call,
                {"role": "tool", "tool_call_id": f"c{step}", "content": LONG if step % 3 else ""},
            ]
            await t.parts.background.wait_idle()
        stored = await t.parts.memory()
        assert stored.coverage > 20
        assert stored.count == len(history) - 1, (
            "each step once, though every request brings all of them"
        )


async def test_a_poison_thread_is_tried_for_ever() -> None:
    """Another port failed 383 times in two days: here eight tries, further and further apart, and
    then none until it is revived."""
    async with open_turns(*[ModelError("no")] * 500) as t:
        history = await t.history(2)
        for _ in range(2 * 24 * 12):
            t.parts.clock.now += 300
            t.parts.background.wake(KEY, t.parts.context())
            await t.parts.background.wait_idle()
        made = await t.parts.memory()
        assert (len(t.parts.models.asked), made.failures.count, made.failures.suspended) == (
            8,
            8,
            True,
        )
        assert texts(history)[:-1] == await t.live()
        assert (await t.open(history)).reason == "observer-failing"


async def test_a_batch_that_is_always_too_long() -> None:
    """The same port gave the whole backlog to its observer again and again: here the next try
    begins with as much as went through."""
    too_long = PromptTooLong("send less")
    async with open_parts(too_long, too_long) as p:
        await p.store_tail(chat(40, 50))
        p.background.wake(KEY)
        await p.background.wait_idle()
        made = await p.memory()
        assert made.failures.count == 0
        assert covered_once(made, 80)
        assert len(made.chunks) > 2


# ── what is observed, and what is kept of it ──────────────────────────────────────────────────────


async def test_hints_are_wiped_at_activation() -> None:
    """#19809. What a chunk says of the task is in the prompt once it is active, and stays when the
    next one says nothing, until the user speaks behind the notes."""
    task = ">\nplan the vans\n</current-task>"
    async with open_turns(NOTES, *[bullets(f"fact {n}") for n in range(29)]) as t:
        history: list[dict[str, Any]] = [user("Plan the vans.")]
        while len((await t.parts.memory()).log.entries) < 2:
            reply = assistant(f"step {len(history)}: {LONG}")
            await t.turn(history, reply["content"])
            history += [reply, user("Go on.")] if len(history) < 2 else [reply]
            await t.parts.background.wait_idle()
        assert task in "\n".join(texts(read_forwarded(await t.open(history))))
    async with open_turns(NOTES, *[bullets(f"fact {n}") for n in range(9)]) as t:
        opened = await t.open(await t.history(8))
        assert len((await t.parts.memory()).log.entries) > 1
        assert task not in "\n".join(texts(read_forwarded(opened)))


ODD = """\
* 🔴 (10:00) User set limits[0] = 40 and matrix[i][j]; [TODO] raise it, see [Image #1: plot.png] and [docs](https://host.example/a)
  * -> the dock takes no van above 2.85 m, a -> b => c
    * three   blanks   and\ta tab stay [O1-N2]
* ✅ (10:05) `if (a < b && c > d) { return [] }` was run

* 🔴 (10:07) an empty line stands above this one"""


async def test_brackets_arrows_and_indentation_are_lost() -> None:
    """2.14. What is noted stands in the actor's prompt to the letter."""
    async with open_turns(
        *[f"<observations>\nDate: May 22, 2023\n{ODD}\n</observations>"] * 9
    ) as t:
        opened = await t.open(await t.history(4))
        assert ODD in "\n".join(texts(read_forwarded(opened)))
        assert {o.text for o in (await t.parts.memory()).log.entries} == {
            f"Date: May 22, 2023\n{ODD}"
        }


async def test_memory_observes_its_own_words(tmp_path: Path) -> None:
    """#22195, #21961. Neither what the observer is told nor what the actor is told of memory ever
    stands in what is observed."""
    reflecting = f"{observation()}, reflection: {{observation_tokens: 300}}"
    async with run_with_scripted_models(
        tmp_path, reflecting, models=Minds(), more=OWN_REFLECTOR
    ) as run:
        talk = client(run)
        await talk.turns(24)
        assert (await run.memory()).log.generation > 0
        theirs = {str(message["content"]) for message in talk.history}
        prompts = [
            str(m["content"]) for seen in run.models.requests_to(ACTOR) for m in seen.messages
        ]
        ours = {text.partition("<observations>")[0] for text in prompts if text not in theirs}
        asked = run.models.requests_to(OBSERVER)
        ours |= {str(seen.messages[0]["content"]) for seen in asked}
        lines = {line for text in ours for line in text.splitlines() if len(line) > 30}
        assert len(lines) > 20
        new = "\n".join(
            str(seen.messages[-1]["content"])
            .partition("<transcript>")[2]
            .partition("</transcript>")[0]
            for seen in asked
        )
        assert "Crate 1 weighs" in new
        assert [line for line in lines if line in new] == []


async def test_a_title_nobody_asked_for(tmp_path: Path) -> None:
    """With `thread_title` off, one that an observer volunteers is not kept."""
    async with run_with_scripted_models(tmp_path, observation(), models=Minds()) as run:
        minds(run).title = "Crates for Quarry Steps"
        await client(run).turns(3)
        made = await run.memory()
        assert len(made.chunks) == 1
        assert (made.title, made.chunks[0].title) == (None, None)


async def test_a_rate_limit_of_the_observer(tmp_path: Path) -> None:
    """#14742, #21849. It costs the conversation nothing: no request waits for the minutes the
    observer asks for, none fails."""
    async with run_with_scripted_models(tmp_path, models=Minds()) as run:
        run.models.faults.switch(Fault(kind="http", model=OBSERVER, status=429, retry_after=600))
        receipts = await client(run).turns(12)
        assert {r["status"] for r in receipts} == {"raw"}
        # these would wait, were it not for the back-off
        assert {r.get("reason") for r in receipts[-3:]} == {"observer-late"}
        assert max(float(r["overhead-ms"]) for r in receipts) < 25_000  # on a busy machine too
        assert (await run.memory()).failures.count == 1
        assert len(run.models.requests_to(OBSERVER)) <= 3


async def test_a_missing_thread_falls_back_to_the_resource(tmp_path: Path) -> None:
    """#13436. A request that names whose it is, but no conversation, passes as it is: nothing is
    read or written for the resource."""
    async with run_with_scripted_models(tmp_path, models=Minds()) as run:
        kept = run.chat("user-42", **{"x-om-resource": "user-42"})
        await kept.say("The dock takes no van above 2.85 m.")
        before = await run.memory()
        lost = run.chat("", **{"x-om-resource": "user-42"})
        _, receipt = await lost.say("How high may a van be?")
        assert (receipt["status"], receipt["reason"]) == ("off", "no-thread")
        assert "2.85" not in str(run.models.requests_to(ACTOR)[-1].messages)
        assert await run.memory() == before
