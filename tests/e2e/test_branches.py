"""Memory follows the branch (docs/contributing/behaviour.md#branch), with notes that say what was
said: nothing of an abandoned branch is prompted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from om_proxy.memory.model import Memory
from om_proxy.testing.scripted import Fault
from tests.e2e.running import Chat, Running, run_with_scripted_models

REFLECTING = "observation: {message_tokens: 1200, buffer_tokens: 300}, reflection: {observation_tokens: 1800}"


def canary(n: int) -> str:
    return f"KEEP-{n}-END"


def words(n: int) -> str:
    return f"My budget for item {canary(n)} is {n} coins. " * 20


async def converse(run: Running, chat: Chat, first: int, last: int, stream: bool) -> None:
    for n in range(first, last):
        await chat.say(words(n), stream=stream)
        await run.app.background.wait_idle()


def cut_back(chat: Chat, turns: int) -> None:
    """The client goes back to the end of this turn."""
    del chat.history[1 + 2 * turns :]


def mentioned(run: Running, since: int) -> set[int]:
    """The turns that any prompt since then, the observer's included, holds anything of."""
    text = b"".join(seen.body for seen in run.models.requests[since:])
    return {n for n in range(100) if canary(n).encode() in text}


def remembered(memory: Memory) -> set[int]:
    text = "".join(o.text for o in (*memory.log.entries, *memory.chunks))
    return {n for n in range(100) if canary(n) in text}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_fork_behind_coverage(tmp_path: Path, stream: bool) -> None:
    """Notes of what was taken back are gone with it, from the log and from every later prompt; what
    stood before stays."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await converse(run, chat, 0, 12, stream)
        before = await run.memory()
        fork = (
            before.log.entries[-1].last // 2 - 1
        )  # turns that stay: all but the last that the newest entry covers
        standing = [o for o in before.log.entries if o.last <= 2 * fork]
        assert standing
        cut_back(chat, fork)
        asked = len(run.models.requests)
        _, receipt = await chat.say("Something else: " + words(50), stream=stream)
        memory = await run.memory()
        assert receipt["status"] == "applied"
        assert [o.id for o in memory.log.entries] == [o.id for o in standing]
        assert (memory.coverage, memory.count) == (standing[-1].last, 2 * fork + 2)
        assert memory.log.generation > before.log.generation
        await converse(run, chat, 51, 62, stream)
        memory = await run.memory()
        assert memory.coverage > 2 * fork + 2
        assert mentioned(run, asked) == {*range(fork), *range(50, 62)}
        assert remembered(memory) <= mentioned(run, asked)


async def test_a_fork_behind_a_reflection(tmp_path: Path) -> None:
    """A reflection that swallowed what is taken back is undone to the generation before it."""
    async with run_with_scripted_models(tmp_path, memory=REFLECTING) as run:
        chat, n = run.chat(), 0
        while (
            not any(o.kind == "reflection" for o in (await run.memory()).log.entries) if n else True
        ):
            await converse(run, chat, n, n + 1, stream=False)
            n += 1
            assert n < 60
        before = await run.memory()
        covered = before.log.entries[0].last // 2
        assert before.log.entries[0].kind == "reflection"
        cut_back(chat, covered - 1)
        asked = len(run.models.requests)
        await chat.say("Something else: " + words(90))
        memory = await run.memory()
        assert all(o.kind == "observation" for o in memory.log.entries)
        assert 0 < memory.coverage <= 2 * (covered - 1)
        assert memory.log.generation > before.log.generation
        await run.app.background.wait_idle()
        await chat.say("And now?")
        assert mentioned(run, asked) <= {*range(covered - 1), 90}
        assert mentioned(run, asked) > {covered - 2, 90}


async def test_back_to_the_branch_that_was_left(tmp_path: Path) -> None:
    """The old branch lives again with its words, and those of the other one are gone from the
    prompts."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await converse(run, chat, 0, 12, stream=False)
        old = list(chat.history)
        cut_back(chat, 3)
        await converse(run, chat, 50, 52, stream=False)
        chat.history = old
        asked = len(run.models.requests)
        await converse(run, chat, 12, 14, stream=False)
        memory = await run.memory()
        assert memory.count == 28
        assert [m.item.raw for m in memory.tail if canary(50).encode() in m.item.raw] == []
        shown = mentioned(run, asked)
        assert not shown & {50, 51}
        assert shown >= set(range(memory.coverage // 2, 14))


@pytest.mark.parametrize(
    "fault", [Fault(kind="http", status=500), Fault(kind="cut")], ids=["refused", "broken off"]
)
async def test_a_fork_behind_coverage_that_fails(tmp_path: Path, fault: Fault) -> None:
    """Until the new reply is complete, the memory of the old branch stands as it did."""
    async with run_with_scripted_models(tmp_path) as run:
        chat = run.chat()
        await converse(run, chat, 0, 12, stream=False)
        before = await run.memory()
        assert before.coverage > 2
        run.models.faults.switch(fault)
        body = {
            "model": "scripted-actor",
            "messages": [*chat.history[:3], {"role": "user", "content": "Other"}],
        }
        await sent_in_vain(run, chat, {**body, "stream": True})
        run.models.faults.switch()
        await run.app.background.wait_idle()
        after = await run.memory()
        assert (after.log.entries, after.tail, after.chunks) == (
            before.log.entries,
            before.tail,
            before.chunks,
        )
        assert after.version == before.version


async def sent_in_vain(run: Running, chat: Chat, body: dict[str, Any]) -> None:
    url = f"{run.base}/v1/chat/completions"
    async with run.http.stream("POST", url, json=body, headers=chat.headers) as answer:
        try:
            got = await answer.aread()
        except httpx.RemoteProtocolError:
            return
    assert answer.status_code == 500, got
