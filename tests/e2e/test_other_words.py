"""Old messages that a client shows in other words than were noted
(docs/contributing/reconcile.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Chat, Running, run_with_scripted_models

# no reflection: the scripted one keeps a line or two
MEMORY = "observation: {message_tokens: 1200, buffer_tokens: 300}"


def words(n: int) -> str:
    return f"My budget for item KEEP-{n}-END is {n} coins. " * 12


async def converse(run: Running, chat: Chat, first: int, last: int) -> None:
    for n in range(first, last):
        await chat.say(words(n))
        await run.app.background.wait_idle()


def last_prompt(run: Running) -> str:
    return run.models.requests_to("scripted-actor")[-1].body.decode()


@pytest.mark.parametrize("history", ["auto", "full"])
@pytest.mark.parametrize("index", [1, 5, 6], ids=["first", "question", "reply"])
async def test_a_correction_in_place_reaches_every_prompt(
    tmp_path: Path, index: int, history: str
) -> None:
    """The model is shown it from that request on, raw or as a note. With `full` the old text goes;
    else its correction is observed as one."""
    async with run_with_scripted_models(tmp_path, MEMORY) as run:
        chat = run.chat(**{"x-om-history": history})
        await converse(run, chat, 0, 14)
        assert (await run.memory()).coverage > index
        old = chat.history[index]["content"]
        chat.history[index]["content"] = "I meant 300 coins for KEEP-77-END, not 30."
        for n in range(20, 34):
            await converse(run, chat, n, n + 1)
            assert "KEEP-77-END" in last_prompt(run), n
        assert (old in last_prompt(run)) is False
        observed = [seen.body.decode() for seen in run.models.requests_to("scripted-observer")]
        told = [body for body in observed if "I meant 300 coins" in body]
        assert told
        if history == "auto":
            assert "corrects what was noted: I meant 300" in told[0]


async def test_old_messages_that_only_look_different_stay_covered(tmp_path: Path) -> None:
    """A client that stamps and cuts what is old sends no more than one that does not."""
    sent: list[int] = []

    def show(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**m, "content": f"[2026-11-28 12:{i:02}]\r\n{m['content'][:80]}…"}
            if 0 < i < len(messages) - 6
            else m
            for i, m in enumerate(messages)
        ]

    for alters in (False, True):
        async with run_with_scripted_models(tmp_path / str(alters)) as run:
            chat = run.chat()
            for n in range(24):
                chat.history.append({"role": "user", "content": words(n)})
                shown = show(chat.history) if alters else chat.history
                reply, receipt = await chat.send(shown)
                chat.history.append({"role": "assistant", "content": reply})
                await run.app.background.wait_idle()
            sent.append(int(receipt["tokens-sent"]))
            memory = await run.memory()
            assert memory.count == 48
    assert sent[1] < 1.2 * sent[0]
