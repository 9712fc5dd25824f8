"""A thread is named by the title that its client asked a model for, else by its first words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models

TASK = "### Task:\nGenerate a concise, 3-5 word title summarizing the chat history."
TAGS = "### Task:\nGenerate 1-3 broad tags categorizing the main themes."
OTHER_TASK = "### Task:\nGenerate a concise title, once more."
SECRET = f"sk-{'a1B2' * 10}"
SECRET_TASK = "### Task:\nGenerate a concise title of the key."
SCRIPT = {
    TASK: {"role": "assistant", "content": '{"title": "⛵ The pier"}'},
    TAGS: {"role": "assistant", "content": '{"tags": ["boats"]}'},
    OTHER_TASK: {"role": "assistant", "content": "Another title"},
    SECRET_TASK: {"role": "assistant", "content": f"The key {SECRET}"},
}
QUESTION = "At which pier does our boat lie,\nand since when has it been there, all in all?"


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, models=ScriptedServer(SCRIPT)) as running:
        yield running


async def read_line(run: Running, **headers: str) -> dict[str, Any]:
    headers = {"authorization": "Bearer sk-a", **headers}
    answer = await run.http.get(f"{run.base}/om/v1/threads", headers=headers)
    (line,) = answer.json()["items"]
    return {name: line[name] for name in ("title", "first_words")}


async def ask_aside(run: Running, text: str, *, stream: bool = False, **headers: str) -> None:
    chat = run.chat(**headers)
    _, receipt = await chat.send([{"role": "user", "content": text}], stream=stream)
    assert receipt["reason"] == "side-request"
    await run.app.background.wait_idle()


async def test_a_thread_has_its_first_words_until_it_has_a_title(run: Running) -> None:
    await run.chat().say(QUESTION)
    first_words = "At which pier does our boat lie, and since when has it been…"
    assert await read_line(run) == {"title": None, "first_words": first_words}
    await ask_aside(run, TAGS)
    assert await read_line(run) == {"title": None, "first_words": first_words}
    await ask_aside(run, TASK)
    assert await read_line(run) == {"title": "⛵ The pier", "first_words": None}


@pytest.mark.parametrize("searched", ["messages", "notes"])
async def test_a_search_names_its_threads_so_too(run: Running, searched: str) -> None:
    """A message, or a line of the notes, is of a thread that people know by these words."""
    chat = run.chat()
    for number in range(12):
        await chat.say(QUESTION if number == 0 else f"Our boat {number} lies there. {'So. ' * 40}")
        await run.app.background.wait_idle()

    async def find_names() -> set[tuple[str | None, str | None]]:
        url = f"{run.base}/om/v1/search?q=boat&in={searched}"
        answer = (await run.http.get(url, headers={"authorization": "Bearer sk-a"})).json()
        lines = answer["items" if searched == "messages" else "notes"]
        return {(line["title"], line["first_words"]) for line in lines}

    first_words = "At which pier does our boat lie, and since when has it been…"
    assert await find_names() == {(None, first_words)}
    await ask_aside(run, TASK)
    assert await find_names() == {("⛵ The pier", None)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_new_title_takes_the_place_of_the_old_one(run: Running, *, stream: bool) -> None:
    """A person's stays."""
    await run.chat().say(QUESTION)
    await ask_aside(run, TASK)
    await ask_aside(run, OTHER_TASK, stream=stream)
    assert (await run.memory()).title == "Another title"
    key = (await run.memory()).key
    url = f"{run.base}/om/v1/threads/{key.thread}"
    body = {"title": "Mine"}
    await run.http.patch(url, json=body, headers={"authorization": "Bearer sk-a"})
    await ask_aside(run, TASK)
    assert (await run.memory()).title == "Mine"


async def test_a_title_holds_no_secret(run: Running) -> None:
    await run.chat().say(QUESTION)
    await ask_aside(run, SECRET_TASK)
    title = (await run.memory()).title
    assert title is not None
    assert title.startswith("The key [redacted")
    assert SECRET not in title


async def test_a_title_makes_no_thread(run: Running) -> None:
    """And none is given to another key's thread, or by a request that must not write."""
    await ask_aside(run, TASK)
    assert await run.memories() == []
    await run.chat().say(QUESTION)
    await ask_aside(run, TASK, key="sk-b")
    await ask_aside(run, TASK, **{"x-om-mode": "read"})
    assert (await run.memory()).title is None


async def test_who_may_read_no_text_sees_no_first_words(tmp_path: Path) -> None:
    more = "server: {admin_token: a-long-admin-token, admin_reads: false}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await run.chat().say(QUESTION)
        admin = {"authorization": "Bearer a-long-admin-token"}
        assert await read_line(run, **admin) == {"title": None, "first_words": None}
