"""Notes that are ready reach a resource's other threads, and no warm thread's prompt changes by
that (docs/contributing/behaviour.md#scopes)."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.memory.model import Memory, resource_key
from om_proxy.testing.scripted import OBSERVER, message_text
from tests.e2e.running import Chat, Running, run_with_scripted_models

SHARED = """scope: resource, observation: {message_tokens: 6000, buffer_tokens: 150, block_timeout: 2s}"""
LONG = (
    "Crate {n} of {who} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 8
)  # some 180 tokens
HOUR = 3_600.0


def chat(run: Running, thread: str) -> Chat:
    return run.chat(thread, **{"x-om-resource": "ada"})


async def say(run: Running, talk: Chat, text: str = LONG) -> dict[str, str]:
    _, receipt = await talk.say(text.format(n=len(talk.history), who=talk.headers["x-om-thread"]))
    run.clock.now += 1
    await run.app.background.wait_idle()
    return receipt


async def thread(run: Running, name: str) -> Memory:
    (info,) = [i for i in await run.app.store.threads(None) if i.key.thread == name]
    return await run.app.store.load(info.key)


async def shared_log(run: Running) -> Memory:
    return await run.app.store.load(resource_key((await run.app.store.threads(None))[0].key))


async def passes(run: Running, seconds: float) -> None:
    """Time passes, and what has become due is taken up."""
    run.clock.now += seconds
    run.app.background.wake((await shared_log(run)).key)
    await run.app.background.wait_idle()


def prompt(run: Running) -> list[str]:
    return [message_text(m) for m in run.models.requests_to("scripted-actor")[-1].messages]


def notes(run: Running) -> str:
    block = prompt(run)[1]
    return block.partition("<observations>")[2].partition("</observations>")[0]


@pytest.mark.parametrize("looked", [True, False], ids=["the background looked", "nobody looked"])
async def test_a_new_thread_after_a_pause_knows_what_was_noted(
    tmp_path: Path, looked: bool
) -> None:
    """Far below T, where before nothing of it was told until all tails together reached T; also
    where no process ran meanwhile."""
    async with run_with_scripted_models(tmp_path, SHARED) as run:
        await say(run, chat(run, "monday"))
        assert (len((await thread(run, "monday")).chunks), (await shared_log(run)).log.entries) == (
            1,
            (),
        )
        if looked:
            await passes(run, HOUR)
            assert len((await shared_log(run)).log.entries) == 1
        else:
            run.clock.now += HOUR
        receipt = await say(run, chat(run, "tuesday"), "Which dock does crate 1 go to?")
        assert "Crate 1 of monday" in notes(run)
        assert int(receipt["observation-tokens"]) > 0
        monday = await thread(run, "monday")
        assert (monday.chunks, monday.coverage) == ((), 2)


async def test_notes_of_a_warm_thread_are_told_beside_the_log(tmp_path: Path) -> None:
    """Its prompt cache would be lost if they left its tail, so a new thread reads them among the
    other conversations."""
    async with run_with_scripted_models(tmp_path, SHARED) as run:
        monday = chat(run, "monday")
        await say(run, monday)
        await say(run, monday)
        before = prompt(run)
        run.clock.now += 60
        await say(run, chat(run, "tuesday"), "Which dock does crate 1 go to?")
        block = prompt(run)[1]
        told = block.partition("<other-conversation id=")[2]
        assert "Notes:\n  " in told
        assert "Crate 1 of monday" in told
        assert (await shared_log(run)).log.entries == ()
        await say(run, monday, "And crate 3?")
        assert prompt(run)[: len(before)] == before


async def test_a_warm_thread_goes_on_while_the_log_grows(tmp_path: Path) -> None:
    """What of others enters the log meanwhile stands in its prompt once that changes anyway."""
    async with run_with_scripted_models(tmp_path, SHARED) as run:
        await say(run, chat(run, "monday"))
        run.clock.now += HOUR - 30
        warm = chat(run, "warm")
        for _ in range(3):
            await say(run, warm, "Hello, crate {n}.")
        before = prompt(run)
        assert "<observations>" not in before[1]
        await passes(run, 60)
        await say(run, chat(run, "tuesday"), "Which dock does crate 1 go to?")
        assert "Crate 1 of monday" in notes(run)
        for _ in range(3):
            await say(run, warm, "And now, crate {n}?")
            assert prompt(run)[: len(before)] == before
            before = prompt(run)
        await passes(run, HOUR)
        await say(run, warm, "And today?")
        assert "Crate 1 of monday" in notes(run)


async def test_what_is_left_is_observed_when_all_are_idle(tmp_path: Path) -> None:
    """`buffer_on_idle`: less than half an interval, too, so that a question in a new thread finds
    everything in notes."""
    wide = SHARED.replace("buffer_tokens: 150", "buffer_tokens: 2000, buffer_on_idle: true")
    async with run_with_scripted_models(tmp_path, wide) as run:
        await say(run, chat(run, "monday"), LONG * 2)
        assert run.models.requests_to(OBSERVER) == []
        await passes(run, HOUR)
        assert len(run.models.requests_to(OBSERVER)) == 1
        await say(run, chat(run, "tuesday"), "Which dock does crate 1 go to?")
        assert "Crate 1 of monday" in notes(run)


async def test_a_thread_that_comes_back_finds_its_own_notes_active(tmp_path: Path) -> None:
    """Its prompt cache is cold, so what is noted leaves its tail; an edit of what is noted takes it
    back."""
    async with run_with_scripted_models(tmp_path, SHARED) as run:
        monday = chat(run, "monday")
        await say(run, monday)
        await say(run, monday)
        await passes(run, HOUR)
        edited = [*monday.history[:3], {"role": "user", "content": "I meant crate 7."}]
        await say(run, monday, "Go on.")
        assert "Crate 3 of monday" in notes(run)
        assert not any("Crate 3 of monday" in text for text in prompt(run)[2:])
        await monday.send(edited)
        assert "Crate 3 of monday" not in "".join(prompt(run))


async def test_a_fork_after_a_pause_settles_nothing_it_takes_back(tmp_path: Path) -> None:
    """The first request after the pause edits what the notes are about: they never stand in the
    log."""
    async with run_with_scripted_models(tmp_path, SHARED) as run:
        monday = chat(run, "monday")
        await say(run, monday)
        await say(run, monday)
        run.clock.now += HOUR
        await monday.send([*monday.history[:3], {"role": "user", "content": "I meant crate 7."}])
        assert "Crate 3 of monday" not in "".join(prompt(run))
        assert not any("Crate 3 of monday" in o.text for o in (await shared_log(run)).log.entries)
