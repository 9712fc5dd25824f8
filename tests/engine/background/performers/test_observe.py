"""Messages of one thread become notes, or none."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.model_access.llm import Target
from om_proxy.common.errors import ModelError, PromptTooLong
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.model import Failures, Memory, Message, Observation, Reflection, replace_log
from tests.agents.scripted_llm import bullets
from tests.memory.building import KEY, chat, chunk, message, transcript
from tests.support.performing import (
    INHERITED,
    NOTES,
    SMALL,
    HeldAnswer,
    open_parts,
    read_shown_prompt,
    store_logged_thread,
)

SIX = Observe(after=0, last=6, tokens=300)


async def test_a_chunk_is_made_and_committed() -> None:
    """The messages asked for become a chunk that says what it was made from, by whom and when;
    coverage stays."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(4, 50))
        assert await p.worker.perform(KEY, SIX, p.context())
        after = await p.memory()
        (made,) = after.chunks
        assert (made.after, made.last, made.chain) == (0, 6, memory.tail[5].chain)
        assert (made.source_tokens, made.at, made.model) == (300, memory.tail[5].at, "memory-model")
        assert "2.85 m" in made.text
        assert made.tokens == len(made.text.split())
        assert made.task == "plan the vans"
        assert (after.coverage, after.log.entries, after.tail) == (0, (), memory.tail)
        assert [f"{m.item.role} {m.seq}" in read_shown_prompt(p) for m in memory.tail] == [
            True
        ] * 6 + [False] * 2


async def test_what_is_known_is_shown() -> None:
    """The observer sees the log, a pending reflection in place of what it covers, what is buffered,
    and the hints."""
    async with open_parts() as p:
        memory = await store_logged_thread(p, 5, 6)
        memory = transitions.add_chunk(memory, chunk(memory, 6, text="* 🔴 (10:09) buffered"))
        pending = Reflection(
            generation=0,
            sources=(1,),
            text="* 🔴 condensed",
            tokens=2,
            source_tokens=5,
            at=1.0,
            model="m",
        )
        stored = replace(
            # no user's message stood behind the task when its notes became active
            replace_log(
                memory,
                reflection=pending,
                entries=tuple(replace(entry, task="t") for entry in memory.log.entries),
            ),
            tail=(*memory.tail, *more(memory, 2)),
            next_seq=memory.next_seq + 2,
        )
        await p.memories.update(KEY, lambda _: stored)
        assert await p.worker.perform(KEY, Observe(6, 8, 100), p.context())
        prompt = read_shown_prompt(p)
        assert [word in prompt for word in ("condensed", "fact 1", "fact 2", "buffered")] == [
            True,
            False,
            True,
            True,
        ]
        assert "<current-task>\nt\n</current-task>" in prompt


def more(memory: Memory, count: int) -> tuple[Message, ...]:
    made: list[Message] = []
    for number in range(count):
        chain = made[-1].chain if made else memory.chain
        made.append(
            message(memory.next_seq + number, chain, "user" if number % 2 == 0 else "assistant", 50)
        )
    return tuple(made)


async def test_the_request_s_own_model_observes() -> None:
    """`inherit` takes the model and the credential of the request that made the work due."""
    async with open_parts(settings=INHERITED) as p:
        await p.store_tail(chat(4, 50))
        own = Target(
            "actor", base_url="http://127.0.0.1:1/v1", headers=(("authorization", "Bearer k"),)
        )
        assert await p.worker.perform(KEY, SIX, p.context(inherited=own))
        assert [target for target, _ in p.models.asked] == [own]


async def test_without_a_credential_it_fails_and_says_so() -> None:
    """`inherit` without a request is a failure of the thread, recorded like any other."""
    async with open_parts(settings=INHERITED) as p:
        await p.store_tail(chat(4, 50))
        assert not await p.worker.perform(KEY, SIX, p.context())
        assert (await p.memory()).failures.count == 1


async def test_the_memory_moves_on_meanwhile() -> None:
    """Notes of messages that the client took back while they were made are thrown away. They are
    paid for all the same."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await p.store_tail(chat(4, 50))
        work = asyncio.create_task(p.worker.perform(KEY, SIX, p.context()))
        await held.asked.wait()
        edited = await p.memories.update(
            KEY, lambda m: replace(m, tail=m.tail[:4], next_seq=m.next_seq)
        )
        held.go.set()
        with capture_logs() as logs:
            assert await work
        after = await p.memory()
        assert after.ledger.full_memory.calls == 1
        assert replace(after, ledger=edited.ledger, version=edited.version) == edited
        assert [entry["kept"] for entry in logs if entry["event"] == "observed"] == [False]


async def test_messages_that_come_meanwhile_do_not_matter() -> None:
    """Notes stay good when the conversation goes on while they are made."""
    held = HeldAnswer()
    async with open_parts(held) as p:
        await p.store_tail(chat(3, 50))
        work = asyncio.create_task(p.worker.perform(KEY, SIX, p.context()))
        await held.asked.wait()
        await p.memories.update(
            KEY, lambda m: replace(m, tail=(*m.tail, *more(m, 2)), next_seq=m.next_seq + 2)
        )
        held.go.set()
        assert await work
        after = await p.memory()
        assert (after.chunks[0].last, after.end) == (6, 8)


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew, word for word"])
@pytest.mark.parametrize("answer", [NOTES, ModelError("no")], ids=["notes", "a failure"])
async def test_a_thread_that_is_forgotten_meanwhile(answer: str | ModelError, anew: bool) -> None:
    """Neither its notes nor a failure bring it back, and they do not enter a new thread of the same
    name."""
    held = HeldAnswer()
    async with open_parts(held, *([answer] if isinstance(answer, ModelError) else [])) as p:
        before = await p.store_tail(chat(4, 50))
        held.text = answer if isinstance(answer, str) else "no notes"
        work = asyncio.create_task(p.worker.perform(KEY, SIX, p.context()))
        await held.asked.wait()
        await p.memories.forget(KEY)
        now = await p.store_tail(chat(4, 50)) if anew else Memory(key=KEY)
        held.go.set()
        with capture_logs() as logs:
            await work
        assert await p.memory() == now
        assert now.row_id != before.row_id
        assert [
            entry["thread"] for entry in logs if entry["event"] == "memory.forgotten_meanwhile"
        ] == [str(KEY)]


async def test_too_long_is_halved() -> None:
    """A prompt that is too long is asked again about the older half, down to one block; the chunk
    says what it covers."""
    too_long = PromptTooLong("send less")
    async with open_parts(too_long, too_long) as p:
        await p.store_tail(chat(8, 600))
        assert await p.worker.perform(KEY, Observe(0, 16, 9_600), p.context())
        assert [
            sum(f"{role} {n}" in read_shown_prompt(p, i) for role, n in roles(16)) for i in range(3)
        ] == [
            16,
            8,
            4,
        ]
        (made,) = (await p.memory()).chunks
        assert (made.after, made.last, made.source_tokens) == (0, 4, 2_400)


def roles(count: int) -> list[tuple[str, str]]:
    return [("user" if n % 2 else "assistant", f"{n}\n") for n in range(1, count + 1)]


async def test_one_message_that_is_too_long_is_clipped() -> None:
    """A block that cannot be halved is shown shorter than before; it is observed as a whole all the
    same."""
    async with open_parts(PromptTooLong("send less")) as p:
        long = transcript(("user", 4_000), ("assistant", 10))
        raw = b'{"role":"user","content":"' + b"long story " * 2_000 + b'"}'
        first = replace(long[0], item=replace(long[0].item, raw=raw))
        await p.store_tail((first, long[1]))
        assert await p.worker.perform(KEY, Observe(0, 1, 4_000), p.context())
        sizes = [len(read_shown_prompt(p, i)) for i in range(2)]
        assert sizes[1] < 0.8 * sizes[0]
        (made,) = (await p.memory()).chunks
        assert (made.last, made.source_tokens) == (1, 4_000)


async def test_what_is_too_long_at_any_length_fails() -> None:
    """Below 500 tokens of one message the observer is given up on: a failure, and no endless
    loop."""
    async with open_parts(*[PromptTooLong("send less")] * 20) as p:
        await p.store_tail(transcript(("user", 4_000), ("assistant", 10)))
        assert not await p.worker.perform(KEY, Observe(0, 1, 4_000), p.context())
        assert len(p.models.asked) == 2  # clipped to the threshold of 1 000 tokens, then to 500
        after = await p.memory()
        assert (after.failures.count, after.chunks) == (1, ())


async def test_an_unusable_answer_is_asked_for_once_more() -> None:
    """One empty answer is no failure yet."""
    async with open_parts("") as p:
        await p.store_tail(chat(4, 50))
        assert await p.worker.perform(KEY, SIX, p.context())
        assert len(p.models.asked) == 2
        assert len((await p.memory()).chunks) == 1


@pytest.mark.parametrize(
    ("cause", "failures", "shown_of_16"),
    [
        ("observe om_model_timeout", 1, 8),
        ("observe om_cut_off", 2, 4),
        ("observe om_broken_answer", 8, 1),
        ("observe om_model_busy", 3, 16),
        ("observe om_model 401: check memory.api_key", 3, 16),
    ],
)
async def test_what_came_to_no_end_is_tried_smaller(
    cause: str, failures: int, shown_of_16: int
) -> None:
    """Each failure in a row halves the batch that the next try begins with; where size is not the
    trouble it stays."""
    async with open_parts() as p:
        memory = await p.store_tail(chat(8, 50))
        await p.memories.update(
            KEY, lambda _: replace(memory, failures=Failures(failures, 5.0, False, cause))
        )
        assert await p.worker.perform(KEY, Observe(0, 16, 800), p.context())
        assert sum(f"{role} {n}" in read_shown_prompt(p) for role, n in roles(16)) == shown_of_16
        after = await p.memory()
        assert (after.chunks[0].last, after.failures) == (shown_of_16, Failures())


async def test_observations_are_immutable_text() -> None:
    """Notes are stored as they were parsed: nothing rewrites an entry's text later."""
    async with open_parts(NOTES, bullets("second")) as p:
        await p.store_tail(chat(6, 50))
        await p.worker.perform(KEY, SIX, p.context())
        (first,) = (await p.memory()).chunks
        await p.worker.perform(KEY, Observe(6, 12, 300), p.context())
        kept: tuple[Observation, ...] = (await p.memory()).chunks
        assert kept[0] == first
        assert [c.id for c in kept] == [1, 2]


SUGGESTING = bullets(
    "x", extra="\n<current-task>t</current-task>\n<suggested-response>say it</suggested-response>"
)


@pytest.mark.parametrize(
    ("last", "wait", "asked"),
    [
        pytest.param(8, True, True, id="waited for, up to the newest"),
        pytest.param(6, True, False, id="waited for, but not to the newest"),
        pytest.param(8, False, False, id="made ahead"),
    ],
)
async def test_a_suggestion_is_asked_for_where_it_is_not_stale(
    last: int, wait: bool, asked: bool
) -> None:
    """Hints made ahead in coding stood a median 17 700 tokens behind the newest message. A
    suggestion that was not asked for is not kept."""
    async with open_parts(SUGGESTING) as p:
        await p.store_tail(chat(4, 50))
        assert await p.worker.perform(KEY, Observe(0, last, 50 * last, wait=wait), p.context())
        assert ("<suggested-response>" in p.models.asked[0][1].system) is asked
        (made,) = (await p.memory()).chunks
        assert (made.task, made.suggestion) == ("t", "say it" if asked else None)


async def test_an_idle_thread_is_asked_for_a_suggestion() -> None:
    """Everything said is observed then (`buffer_on_idle`)."""
    idle = SMALL.replace("block_timeout", "buffer_on_idle: true, block_timeout")
    async with open_parts(SUGGESTING, settings=idle) as p:
        memory = await p.store_tail(chat(4, 50))
        await p.memories.update(KEY, lambda _: replace(memory, turn_at=p.clock.now - 90_000))
        assert await p.worker.perform(KEY, Observe(0, 8, 400), p.context())
        (made,) = (await p.memory()).chunks
        assert made.suggestion == "say it"
