"""The whole way of a person through the dashboard, over the demo's five days, replayed through a live
proxy with the demo's model: from finding the thread to forgetting it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from om_proxy.cli.demo.play import HEADERS_WITH_MEMORY, Client
from om_proxy.cli.demo.stage import open_stage
from om_proxy.cli.demo.story import load_story
from om_proxy.memory.model import Key, Memory
from om_proxy.proof.stage import Stage
from om_proxy.testing.scripted import ACTOR, ScriptedServer
from tests.management.dashboard.browser import Watched, open_page

KEY = Key("local", "van-planner", "van-planner")


class Conversation:
    """The story as its client holds it, and the model server's view of it."""

    def __init__(self, stage: Stage, models: ScriptedServer, client: Client) -> None:
        self.stage = stage
        self.models = models
        self.client = client

    async def memory(self) -> Memory:
        return await self.stage.app.store.load(KEY)

    async def list_messages(self, chunk: int) -> list[Any]:
        """List the messages that a chunk was made from, as the client sent them."""
        url = f"{self.stage.url}/om/v1/threads/van-planner/messages"
        async with httpx.AsyncClient(trust_env=False) as http:
            lines = (await http.get(url, params={"limit": 1000})).json()["items"]
        return [line["raw"] for line in lines if line["chunk"] == chunk]

    async def send(self, question: str) -> bytes:
        """Send the whole history with one more question. Return what reached the model server."""
        messages = [*self.client.history, {"role": "user", "content": question}]
        await self.client.complete(messages)
        await self.stage.app.background.wait_idle()
        return self.models.requests_to(ACTOR)[-1].body


def count_words(text: str) -> int:
    return len(text.split())


@pytest_asyncio.fixture(loop_scope="session")
async def conversation(tmp_path: Path) -> AsyncIterator[Conversation]:
    story = load_story()
    async with (
        open_stage(story, count_words, tmp_path) as (stage, models),
        httpx.AsyncClient(base_url=f"{stage.url}/v1", timeout=60, trust_env=False) as http,
    ):
        client = Client(http, story.tools, HEADERS_WITH_MEMORY)
        for turn in story.turns:
            stage.clock.now = turn.at
            await client.say(turn)
            await stage.app.background.wait_idle()
        yield Conversation(stage, models, client)


async def reload_settled(page: Page, conversation: Conversation) -> None:
    """Load the page anew when all work is done: what commits behind an open dialog refuses it."""
    await conversation.stage.app.background.wait_idle()
    await page.reload()


async def confirm(page: Page, name: str) -> None:
    """Press a dialog's button, and wait until the change is made."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=name, exact=True).click()
    await expect(dialog).to_have_count(0)


async def read_timeline(watched: Watched) -> None:
    """Find the thread, and go from an entry to its messages and back."""
    page = watched.page
    await watched.open("#/threads")
    await page.get_by_role("searchbox").fill("van-")
    await page.locator(".line").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(
        "Morning. I look after vanplan"
    )
    entry = page.locator("article.entry").first
    await entry.get_by_role("button", name="What was it made from?").click()
    source = await entry.locator(".provenance .message .text").first.text_content()
    await entry.get_by_role("button", name="Show them in the conversation").click()
    lines = page.get_by_role("region", name="Conversation").locator(".line-box")
    await expect(lines.first).to_have_class("line-box marked")
    assert source
    await expect(lines.first).to_contain_text(source[:200])
    await lines.first.get_by_role("button", name="in notes").click()
    await expect(entry).to_have_class("card entry reflected marked")
    await watched.check_accessible()


async def edit_a_note(watched: Watched, conversation: Conversation) -> None:
    page = watched.page
    before = await conversation.send("Which dock has a limit?")
    await reload_settled(page, conversation)
    await page.locator("article.entry").first.get_by_role("button", name="Edit").click()
    words = page.get_by_role("dialog").get_by_role("textbox")
    old = (await conversation.memory()).log.entries[0].text
    await words.fill("Date: Mar 2, 2026\n* 🔴 (09:04) User said: the dock takes vans of 9.99 m.")
    await watched.check_accessible()
    await confirm(page, "Save")
    after = await conversation.send("Which dock has a limit?")
    assert (b"9.99 m" in before, b"9.99 m" in after) == (False, True)
    line = next(line for line in old.splitlines() if "User said" in line)
    assert orjson.dumps(line)[1:-1] in before
    assert orjson.dumps(line)[1:-1] not in after


async def drop_a_chunk(watched: Watched, conversation: Conversation) -> None:
    """The messages that it would have replaced reach the model server as the client sends them."""
    page = watched.page
    (first, *_) = (await conversation.memory()).chunks
    messages = await conversation.list_messages(first.id)
    assert len(messages) > 1
    await reload_settled(page, conversation)
    await page.get_by_role("button", name="Drop").first.click()
    await confirm(page, "Drop")
    assert first.id not in [chunk.id for chunk in (await conversation.memory()).chunks]
    await expect(page.get_by_role("button", name="Drop")).to_have_count(0)
    sent = orjson.loads(await conversation.send("What is left of it?"))["messages"]
    assert [message for message in messages if message not in sent] == []
    assert first.text not in str(sent)


async def undo_a_reflection(watched: Watched, conversation: Conversation) -> None:
    """The first undo takes the edit back, the next one the newest reflection."""
    page = watched.page
    edited = (await conversation.memory()).log
    for _ in range(2):
        await reload_settled(page, conversation)
        await page.get_by_role("button", name="Undo", exact=True).click()
        await confirm(page, "Undo")
    undone = (await conversation.memory()).log
    assert undone.entries[0].text != edited.entries[0].text
    assert len(undone.entries) > len(edited.entries)
    taken_back = {e.text for e in edited.entries if e.kind == "reflection"} - {
        e.text for e in undone.entries
    }
    assert taken_back
    prompt = await conversation.send("And now?")
    lines = max(taken_back, key=len).splitlines()
    assert b"9.99 m" not in prompt
    assert not all(orjson.dumps(line)[1:-1] in prompt for line in lines)


async def pin_a_note(watched: Watched, conversation: Conversation) -> None:
    page = watched.page
    await reload_settled(page, conversation)
    await page.get_by_role("button", name="Pin a note").click()
    await page.get_by_role("dialog").get_by_role("textbox").fill("The depot's gate code is 4471.")
    await confirm(page, "Pin")
    assert b"The depot's gate code is 4471." in await conversation.send("What is the code?")


async def forget_the_thread(watched: Watched, conversation: Conversation) -> None:
    page = watched.page
    await reload_settled(page, conversation)
    await page.get_by_role("button", name="Forget").click()
    await page.get_by_role("dialog").get_by_role("textbox").fill("van-planner")
    await confirm(page, "Forget")
    await expect(page.get_by_role("heading", name="No conversations yet")).to_be_visible()
    assert await conversation.stage.app.store.threads("local") == ()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_person_reads_steers_and_forgets_a_memory(
    conversation: Conversation, browser: Browser
) -> None:
    """No message on the console, no request elsewhere, no report of the policy, no rule broken."""
    async with open_page(browser, conversation.stage.url) as watched:
        await read_timeline(watched)
        await edit_a_note(watched, conversation)
        await drop_a_chunk(watched, conversation)
        await undo_a_reflection(watched, conversation)
        await pin_a_note(watched, conversation)
        await watched.check_accessible()
        await forget_the_thread(watched, conversation)
        await watched.check_accessible()
        await watched.check_quiet()
