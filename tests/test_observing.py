"""The two slow decisions performed: a chunk or a reflection committed, or a failure recorded."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from om_proxy.agents.llm import Target
from om_proxy.errors import ModelBusy, ModelError, PromptTooLong
from om_proxy.memory import lifecycle
from om_proxy.memory.lifecycle import FIRST_BACK_OFF_S, Observe, Reflect, Swap
from om_proxy.memory.model import Memory, Message, Observation, Reflection, Trouble
from tests.agents.scripted_llm import bullets, texts
from tests.memory.building import KEY, chat, chunk, message, transcript
from tests.support.performing import INHERITED, NOTES, SMALL, Held, Parts, parts

SIX = Observe(after=0, last=6, tokens=300)


def shown(parts: Parts, call: int = -1) -> str:
    return texts(parts.models.asked[call][1])


async def logged(parts: Parts, *sizes: int) -> Memory:
    """A thread with a log of entries of these sizes, each covering two messages, and two messages of tail."""
    memory = await parts.stored(chat(len(sizes) + 1, 50))
    for number, size in enumerate(sizes, 1):
        made = replace(
            chunk(memory, 2 * number, size, f"* 🔴 (10:0{number}) fact {number} " + "word " * size), task="t"
        )
        memory = lifecycle.observed(memory, made)
    ids = [c.id for c in memory.chunks]
    return await parts.memories.update(KEY, lambda _: lifecycle.activated(memory, ids, 5.0))


# ── observing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_chunk_is_made_and_committed() -> None:
    """The messages asked for become a chunk that says what it was made from, by whom and when; coverage stays."""
    async with parts() as p:
        memory = await p.stored(chat(4, 50))
        assert await p.observing.perform(KEY, SIX, p.call())
        after = await p.memory()
        (made,) = after.chunks
        assert (made.after, made.last, made.chain) == (0, 6, memory.tail[5].chain)
        assert (made.source_tokens, made.at, made.model) == (300, memory.tail[5].at, "memory-model")
        assert "2.85 m" in made.text
        assert made.tokens == len(made.text.split())
        assert made.task == "plan the vans"
        assert (after.coverage, after.log, after.tail) == (0, (), memory.tail)
        assert [f"{m.item.role} {m.seq}" in shown(p) for m in memory.tail] == [True] * 6 + [False] * 2


async def test_what_is_known_is_shown() -> None:
    """The observer sees the log, a pending reflection in place of what it covers, what is buffered, and the hints."""
    async with parts() as p:
        memory = await logged(p, 5, 6)
        memory = lifecycle.observed(memory, chunk(memory, 6, text="* 🔴 (10:09) buffered"))
        pending = Reflection(
            generation=0, sources=(1,), text="* 🔴 condensed", tokens=2, source_tokens=5, at=1.0, model="m"
        )
        stored = replace(
            memory, reflection=pending, tail=(*memory.tail, *more(memory, 2)), next_seq=memory.next_seq + 2
        )
        await p.memories.update(KEY, lambda _: stored)
        assert await p.observing.perform(KEY, Observe(6, 8, 100), p.call())
        prompt = shown(p)
        assert [word in prompt for word in ("condensed", "fact 1", "fact 2", "buffered")] == [True, False, True, True]
        assert "<current-task>\nt\n</current-task>" in prompt


def more(memory: Memory, count: int) -> tuple[Message, ...]:
    made: list[Message] = []
    for number in range(count):
        chain = made[-1].chain if made else memory.chain
        made.append(message(memory.next_seq + number, chain, "user" if number % 2 == 0 else "assistant", 50))
    return tuple(made)


async def test_the_request_s_own_model_observes() -> None:
    """With `inherit`, the model and credential of the request that made the work due are used."""
    async with parts(settings=INHERITED) as p:
        await p.stored(chat(4, 50))
        own = Target("actor", base_url="http://127.0.0.1:1/v1", headers=(("authorization", "Bearer k"),))
        assert await p.observing.perform(KEY, SIX, p.call(inherited=own))
        assert [target for target, _ in p.models.asked] == [own]


async def test_without_a_credential_it_fails_and_says_so() -> None:
    """`inherit` without a request is a failure of the thread, recorded like any other."""
    async with parts(settings=INHERITED) as p:
        await p.stored(chat(4, 50))
        assert not await p.observing.perform(KEY, SIX, p.call())
        assert (await p.memory()).trouble.failures == 1


@pytest.mark.parametrize(
    "decision",
    [Observe(2, 6, 200), Observe(0, 0, 0), Reflect(1, 10), Swap()],
    ids=["starts elsewhere", "covers nothing", "fewer entries than asked", "not a slow one"],
)
async def test_a_decision_whose_ground_is_gone(decision: Observe | Reflect | Swap) -> None:
    """It costs no call and changes nothing: what is due now is decided anew."""
    async with parts() as p:
        memory = await p.stored(chat(4, 50))
        assert await p.observing.perform(KEY, decision, p.call())
        assert p.models.asked == []
        assert await p.memory() == memory


async def test_the_memory_moves_on_meanwhile() -> None:
    """Notes of messages that the client took back while they were made are thrown away."""
    held = Held()
    async with parts(held) as p:
        await p.stored(chat(4, 50))
        work = asyncio.create_task(p.observing.perform(KEY, SIX, p.call()))
        await held.asked.wait()
        edited = await p.memories.update(KEY, lambda m: replace(m, tail=m.tail[:4], next_seq=m.next_seq))
        held.go.set()
        with capture_logs() as logs:
            assert await work
        assert await p.memory() == edited
        assert [entry["kept"] for entry in logs if entry["event"] == "observed"] == [False]


async def test_messages_that_come_meanwhile_do_not_matter() -> None:
    """Notes stay good when the conversation goes on while they are made."""
    held = Held()
    async with parts(held) as p:
        await p.stored(chat(3, 50))
        work = asyncio.create_task(p.observing.perform(KEY, SIX, p.call()))
        await held.asked.wait()
        await p.memories.update(KEY, lambda m: replace(m, tail=(*m.tail, *more(m, 2)), next_seq=m.next_seq + 2))
        held.go.set()
        assert await work
        after = await p.memory()
        assert (after.chunks[0].last, after.end) == (6, 8)


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew, word for word"])
@pytest.mark.parametrize("answer", [NOTES, ModelError("no")], ids=["notes", "a failure"])
async def test_a_thread_that_is_forgotten_meanwhile(answer: str | ModelError, anew: bool) -> None:
    """Neither its notes nor a failure bring it back; nor do they enter a thread that was made anew with the same words."""
    held = Held()
    async with parts(held, *([answer] if isinstance(answer, ModelError) else [])) as p:
        before = await p.stored(chat(4, 50))
        held.text = answer if isinstance(answer, str) else "no notes"
        work = asyncio.create_task(p.observing.perform(KEY, SIX, p.call()))
        await held.asked.wait()
        await p.memories.forget(KEY)
        now = await p.stored(chat(4, 50)) if anew else Memory(key=KEY)
        held.go.set()
        with capture_logs() as logs:
            await work
        assert await p.memory() == now
        assert now.born != before.born
        assert [entry["thread"] for entry in logs if entry["event"] == "memory.forgotten_meanwhile"] == [str(KEY)]


async def test_a_reflection_of_a_thread_that_is_forgotten_meanwhile() -> None:
    """A thread made anew begins at the same generation with the same ids: the reflection is of another row all the same."""
    held = Held(bullets("all of it in short"))
    async with parts(held) as p:
        before = await logged(p, 300, 300)
        work = asyncio.create_task(p.observing.perform(KEY, Reflect(2, 10_000), p.call()))
        await held.asked.wait()
        await p.memories.forget(KEY)
        now = await logged(p, 300, 300)
        assert (now.generation, [o.id for o in now.log]) == (before.generation, [o.id for o in before.log])
        held.go.set()
        await work
        assert await p.memory() == now


async def test_too_long_is_halved() -> None:
    """A prompt that is too long is asked again about the older half, down to one block; the chunk says what it covers."""
    too_long = PromptTooLong("send less")
    async with parts(too_long, too_long) as p:
        await p.stored(chat(8, 600))
        assert await p.observing.perform(KEY, Observe(0, 16, 9_600), p.call())
        assert [sum(f"{role} {n}" in shown(p, i) for role, n in roles(16)) for i in range(3)] == [16, 8, 4]
        (made,) = (await p.memory()).chunks
        assert (made.after, made.last, made.source_tokens) == (0, 4, 2_400)


def roles(count: int) -> list[tuple[str, str]]:
    return [("user" if n % 2 else "assistant", f"{n}\n") for n in range(1, count + 1)]


async def test_one_message_that_is_too_long_is_clipped() -> None:
    """A block that cannot be halved is shown shorter than before; it is observed as a whole all the same."""
    async with parts(PromptTooLong("send less")) as p:
        long = transcript(("user", 4_000), ("assistant", 10))
        raw = b'{"role":"user","content":"' + b"long story " * 2_000 + b'"}'
        first = replace(long[0], item=replace(long[0].item, raw=raw))
        await p.stored((first, long[1]))
        assert await p.observing.perform(KEY, Observe(0, 1, 4_000), p.call())
        sizes = [len(shown(p, i)) for i in range(2)]
        assert sizes[1] < 0.8 * sizes[0]
        (made,) = (await p.memory()).chunks
        assert (made.last, made.source_tokens) == (1, 4_000)


async def test_what_is_too_long_at_any_length_fails() -> None:
    """Below 500 tokens of one message the observer is given up on: a failure, and no endless loop."""
    async with parts(*[PromptTooLong("send less")] * 20) as p:
        await p.stored(transcript(("user", 4_000), ("assistant", 10)))
        assert not await p.observing.perform(KEY, Observe(0, 1, 4_000), p.call())
        assert len(p.models.asked) == 2  # clipped to the threshold of 1 000 tokens, then to 500
        after = await p.memory()
        assert (after.trouble.failures, after.chunks) == (1, ())


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
    """Whatever fails backs the thread off, with its cause, and moves nothing: no chunk, no coverage, no message lost."""
    async with parts(*steps) as p:
        memory = await p.stored(chat(4, 50))
        assert not await p.observing.perform(KEY, SIX, p.call())
        assert len(p.models.asked) == asked
        after = await p.memory()
        assert after.trouble == Trouble(1, p.clock.now + FIRST_BACK_OFF_S, cause=f"observe {cause}")
        assert (after.coverage, after.chunks, after.tail) == (0, (), memory.tail)


async def test_an_unusable_answer_is_asked_for_once_more() -> None:
    """One empty answer is no failure yet."""
    async with parts("") as p:
        await p.stored(chat(4, 50))
        assert await p.observing.perform(KEY, SIX, p.call())
        assert len(p.models.asked) == 2
        assert len((await p.memory()).chunks) == 1


async def test_a_model_that_does_not_answer_in_time() -> None:
    """A time-out is a failure like any other, and the call is given up."""
    held = Held()
    async with parts(held, within=1.0) as p:
        await p.stored(chat(4, 50))
        assert not await p.observing.perform(KEY, SIX, p.call())
        assert held.given_up
        assert (await p.memory()).trouble == Trouble(
            1, p.clock.now + FIRST_BACK_OFF_S, cause="observe om_model_timeout"
        )


@pytest.mark.parametrize(("size", "deadlines"), [(500, 1.0), (10_000, 1.0), (25_000, 2.5)])
async def test_a_reflection_has_its_deadline_by_its_length(size: int, deadlines: float) -> None:
    """It writes nearly as much as it reads: 20 000 tokens of notes take a good model more than two minutes."""
    async with parts(within=120.0) as p:
        memory = await p.stored(chat(4, 50))
        logged = lifecycle.observed(memory, chunk(memory, 6, tokens=size))
        logged = lifecycle.activated(logged, [logged.chunks[0].id], 5.0)
        assert p.observing._deadline(logged, Reflect(1, 400)) == 120.0 * deadlines
        assert p.observing._deadline(logged, SIX) == 120.0


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
async def test_what_came_to_no_end_is_tried_smaller(cause: str, failures: int, shown_of_16: int) -> None:
    """Each failure in a row halves the batch that the next try begins with; where size is not the trouble it stays."""
    async with parts() as p:
        memory = await p.stored(chat(8, 50))
        await p.memories.update(KEY, lambda _: replace(memory, trouble=Trouble(failures, 5.0, False, cause)))
        assert await p.observing.perform(KEY, Observe(0, 16, 800), p.call())
        assert sum(f"{role} {n}" in shown(p) for role, n in roles(16)) == shown_of_16
        after = await p.memory()
        assert (after.chunks[0].last, after.trouble) == (shown_of_16, Trouble())


async def test_a_success_ends_the_trouble() -> None:
    """After a success the thread is as good as any."""
    async with parts() as p:
        memory = await p.stored(chat(4, 50))
        await p.memories.update(KEY, lambda _: replace(memory, trouble=Trouble(7, 5.0)))
        assert await p.observing.perform(KEY, SIX, p.call())
        assert (await p.memory()).trouble == Trouble()


async def test_no_word_reaches_the_log() -> None:
    """Neither what was observed nor what was noted stands in the program's log."""
    async with parts(ModelError("prompt: user 1", "set a key"), NOTES) as p:
        await p.stored(chat(4, 50))
        with capture_logs() as logs:
            await p.observing.perform(KEY, SIX, p.call())
            await p.observing.perform(KEY, SIX, p.call())
        assert [entry["event"] for entry in logs] == ["observe.failed", "observed"]
        assert logs[0]["advice"] == "set a key"
        assert not [entry for entry in logs if "user 1" in str(entry) or "2.85" in str(entry)]


# ── reflecting ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reflection_is_kept_beside_the_log() -> None:
    """What is shorter than asked is kept with the entries it stands for, and the log stays until it is swapped in."""
    async with parts(bullets("all in all")) as p:
        memory = await logged(p, 200, 200)
        assert await p.observing.perform(KEY, Reflect(2, 300), p.call())
        after = await p.memory()
        assert after.reflection is not None
        assert (after.reflection.sources, after.reflection.generation) == (tuple(o.id for o in memory.log), 0)
        assert (after.reflection.source_tokens, after.reflection.model) == (400, "memory-model")
        assert after.log == memory.log
        assert len(p.models.asked) == 1


async def test_a_reflection_no_shorter_than_its_entries_is_none() -> None:
    """The reflector is shown more than entries count, as the marks of threads in a shared log: the log must not grow by it."""
    async with parts(bullets("all in all")) as p:
        await logged(p, 200, 200)
        await p.memories.update(KEY, lambda m: replace(m, log=tuple(replace(o, tokens=1) for o in m.log)))
        assert not await p.observing.perform(KEY, Reflect(2, 300), p.call())
        after = await p.memory()
        assert (after.reflection, after.unproductive_at) == (None, 2)


async def test_entries_that_come_meanwhile_survive() -> None:
    """A reflection of the first entries stands while new ones follow; swapped in, they follow it byte for byte."""
    held = Held(bullets("all in all"))
    async with parts(held) as p:
        memory = await logged(p, 200, 200)
        work = asyncio.create_task(p.observing.perform(KEY, Reflect(2, 300), p.call()))
        await held.asked.wait()
        late = replace(memory.log[-1], id=memory.next_id, text="* 🔴 late")
        await p.memories.update(KEY, lambda m: replace(m, log=(*m.log, late), next_id=m.next_id + 1))
        held.go.set()
        assert await work
        swapped = lifecycle.swapped(await p.memory(), 9.0)
        assert [o.text for o in swapped.log][1:] == ["* 🔴 late"]
        assert "all in all" in swapped.log[0].text


async def test_a_reflection_of_a_log_that_is_gone() -> None:
    """The log was rolled back while it was reflected on: the result changes nothing."""
    held = Held(bullets("all in all"))
    async with parts(held) as p:
        await logged(p, 200, 200)
        work = asyncio.create_task(p.observing.perform(KEY, Reflect(2, 300), p.call()))
        await held.asked.wait()
        await p.memories.update(
            KEY,
            lambda m: replace(m, log=m.log[1:], generation=m.next_generation, next_generation=m.next_generation + 1),
        )
        held.go.set()
        assert await work
        assert (await p.memory()).reflection is None


async def test_an_unproductive_reflection_is_not_repeated() -> None:
    """Four answers of which none is usable: the log stays, and is left alone until it grows; observing goes on."""
    async with parts(*[bullets("longer " * 500)] * 4) as p:
        memory = await logged(p, 200, 200)
        assert not await p.observing.perform(KEY, Reflect(2, 300), p.call())
        assert len(p.models.asked) == 4
        after = await p.memory()
        assert (after.log, after.reflection, after.unproductive_at) == (memory.log, None, 400)
        assert after.trouble == Trouble(cause="reflect om_unusable")


@pytest.mark.parametrize(("refusals", "kept"), [(1, 3), (2, 2)])
async def test_a_log_that_is_too_long_for_the_reflector(refusals: int, kept: int) -> None:
    """The older entries are reflected, as many as fit; accepted below their share, and the newer ones stay word for word."""
    too_long = [PromptTooLong("send less")] * refusals
    above_its_share = bullets(" ".join(f"w{n}" for n in range(150 * kept)))
    async with parts(*too_long, above_its_share, bullets("all in all")) as p:
        memory = await logged(p, 200, 200, 200, 200)
        assert await p.observing.perform(KEY, Reflect(4, 600), p.call())
        assert [[f"fact {n} " in shown(p, call) for n in range(1, 5)] for call in (0, refusals, -1)] == [
            [True] * 4, *[[True] * kept + [False] * (4 - kept)] * 2
        ]  # fmt: skip
        after = await p.memory()
        assert after.reflection is not None
        assert after.reflection.sources == tuple(o.id for o in memory.log[:kept])
        assert after.reflection.source_tokens == 200 * kept
        assert "all in all" in after.reflection.text
        swapped = lifecycle.swapped(after, 9.0)
        assert swapped.log[1:] == memory.log[kept:]
        assert (swapped.log[0].after, swapped.log[0].last) == (memory.log[0].after, memory.log[kept - 1].last)
        assert swapped.coverage == memory.coverage


async def test_one_entry_that_is_too_long_for_the_reflector() -> None:
    """It cannot be split: the reflection has failed, the log stays, and it is not tried again before the log has grown."""
    async with parts(*[PromptTooLong("send less")] * 9) as p:
        memory = await logged(p, 200, 200, 200)
        assert not await p.observing.perform(KEY, Reflect(3, 600), p.call())
        assert len(p.models.asked) == 3  # three entries, two, and the oldest
        after = await p.memory()
        assert (after.log, after.reflection, after.unproductive_at) == (memory.log, None, 600)
        assert after.trouble == Trouble(cause="reflect om_prompt_too_long")


async def test_observations_are_immutable_text() -> None:
    """What was noted is stored as it was parsed: an entry's text is never rewritten by what follows."""
    async with parts(NOTES, bullets("second")) as p:
        await p.stored(chat(6, 50))
        await p.observing.perform(KEY, SIX, p.call())
        (first,) = (await p.memory()).chunks
        await p.observing.perform(KEY, Observe(6, 12, 300), p.call())
        kept: tuple[Observation, ...] = (await p.memory()).chunks
        assert kept[0] == first
        assert [c.id for c in kept] == [1, 2]


SUGGESTING = bullets("x", extra="\n<current-task>t</current-task>\n<suggested-response>say it</suggested-response>")


@pytest.mark.parametrize(
    ("last", "wait", "asked"),
    [
        pytest.param(8, True, True, id="waited for, up to the newest"),
        pytest.param(6, True, False, id="waited for, but not to the newest"),
        pytest.param(8, False, False, id="made ahead"),
    ],
)
async def test_a_suggestion_is_asked_for_where_it_is_not_stale(last: int, wait: bool, asked: bool) -> None:
    """In coding, hints made ahead stood a median 17 700 tokens behind the newest message; what nobody asked for is not kept."""
    async with parts(SUGGESTING) as p:
        await p.stored(chat(4, 50))
        assert await p.observing.perform(KEY, Observe(0, last, 50 * last, wait=wait), p.call())
        assert ("<suggested-response>" in p.models.asked[0][1].system) is asked
        (made,) = (await p.memory()).chunks
        assert (made.task, made.suggestion) == ("t", "say it" if asked else None)


async def test_an_idle_thread_is_asked_for_a_suggestion() -> None:
    """All that was said is observed then (`buffer_on_idle`)."""
    idle = SMALL.replace("block_timeout", "buffer_on_idle: true, block_timeout")
    async with parts(SUGGESTING, settings=idle) as p:
        memory = await p.stored(chat(4, 50))
        await p.memories.update(KEY, lambda _: replace(memory, turn_at=p.clock.now - 90_000))
        assert await p.observing.perform(KEY, Observe(0, 8, 400), p.call())
        (made,) = (await p.memory()).chunks
        assert made.suggestion == "say it"
