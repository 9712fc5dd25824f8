"""What people change on the dashboard, and what the model server then gets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from om_proxy.testing.scripted import ACTOR, message_text
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import (
    BOAT_THREAD_PLACE,
    LONG_LOG_MEMORY,
    go_on,
    talk_of_piers,
)
from tests.management.dashboard.browser import open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, LONG_LOG_MEMORY) as running:
        yield running


async def read_next_prompt(chat: Chat) -> str:
    """Send one more message. Return its prompt, as the model server got it."""
    await go_on(chat)
    (*_, request) = chat.running.models.requests_to(ACTOR)
    return "\n".join(message_text(m) for m in orjson.loads(request.body)["messages"])


async def test_an_entry_leads_to_its_messages_and_back(run: Running, browser: Browser) -> None:
    """The conversation begins where an entry's messages begin; a message leads to its entry."""
    await talk_of_piers(run, 24)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await page.get_by_role("link", name="boat").click()
        entry = page.get_by_role("article", name="Notes").first
        await entry.get_by_role("button", name="What was it made from?").click()
        await expect(entry.locator(".provenance .message").first).to_contain_text("pier 101")
        await entry.get_by_role("button", name="Show them in the conversation").click()
        conversation = page.get_by_role("region", name="Conversation")
        first = conversation.locator(".line-box").first
        await expect(first).to_contain_text("no. 1")
        await expect(first).to_have_class("line-box marked")
        await expect(entry).to_have_class("card entry observed marked")
        await conversation.get_by_role("button", name="in notes").last.click()
        await expect(first).to_have_class("line-box")
        await watched.check_accessible()
        await watched.check_quiet()


async def test_a_long_message_is_shown_whole_when_asked_for(run: Running, browser: Browser) -> None:
    chat = run.chat("boat")
    del chat.headers["authorization"]
    await chat.say(f"{'All the piers. ' * 40}The last word is harness.")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        conversation = page.get_by_role("region", name="Conversation")
        await expect(conversation.get_by_text("The last word is harness.")).to_have_count(0)
        await conversation.get_by_role("button", name="Show the whole message").first.click()
        await expect(conversation.get_by_text("The last word is harness.")).to_be_visible()
        await watched.check_quiet()


async def test_replaced_messages_are_folded(run: Running, browser: Browser) -> None:
    """An edited message and its old answer stand behind one line."""
    chat = await talk_of_piers(run, 4)
    del chat.history[-2:]
    await chat.say("Boat 4 lies at pier 999.")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        conversation = page.get_by_role("region", name="Conversation")
        await expect(conversation.get_by_text("pier 999.").first).to_be_visible()
        await expect(conversation.get_by_text("pier 104.").first).not_to_be_visible()
        await conversation.get_by_text("2 messages replaced").click()
        await expect(conversation.get_by_text("pier 104.").first).to_be_visible()
        await watched.check_quiet()


async def test_edited_notes_reach_the_next_prompt(run: Running, browser: Browser) -> None:
    """The upstream gets the person's words, and after an undo the old ones again."""
    chat = await talk_of_piers(run, 16)
    assert "User said: Boat 1 lies at pier 101." in await read_next_prompt(chat)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        entry = page.get_by_role("article").first
        await entry.get_by_role("button", name="Edit").click()
        words = page.get_by_role("dialog").get_by_role("textbox")
        await words.fill((await words.input_value()).replace("pier 101", "pier 777"))
        await watched.check_accessible()
        await page.get_by_role("button", name="Save").click()
        await expect(entry).to_contain_text("pier 777")
        await expect(entry).to_contain_text("edited")
        prompt = await read_next_prompt(chat)
        assert "User said: Boat 1 lies at pier 777." in prompt
        assert "User said: Boat 1 lies at pier 101." not in prompt
        await page.reload()  # it looks for new turns every few seconds
        await page.get_by_role("button", name="Undo", exact=True).click()
        await page.get_by_role("dialog").get_by_role("button", name="Undo").click()
        await expect(entry).to_contain_text("pier 101")
        assert "pier 777" not in await read_next_prompt(chat)
        await watched.check_quiet()


async def test_withdrawn_notes_leave_the_prompt(run: Running, browser: Browser) -> None:
    chat = await talk_of_piers(run, 16)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        entry = page.get_by_role("article").first
        await entry.get_by_role("button", name="Withdraw").click()
        await page.get_by_role("dialog").get_by_role("button", name="Withdraw").click()
        await expect(entry).to_contain_text("Withdrawn")
        assert "User said: Boat 1 lies at pier 101." not in await read_next_prompt(chat)
        await watched.check_quiet()


async def test_dropped_notes_bring_their_messages_back(run: Running, browser: Browser) -> None:
    await talk_of_piers(run, 8)
    (chunk, *_) = (await run.memory()).chunks
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        conversation = page.get_by_role("region", name="Conversation")
        await expect(conversation.get_by_role("button", name="notes ready").first).to_be_visible()
        await page.get_by_role("button", name="Drop").first.click()
        await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
        await expect(page.get_by_role("button", name="Drop")).to_have_count(0)
        await expect(conversation.get_by_text("notes ready")).to_have_count(0)
        assert chunk.id not in [kept.id for kept in (await run.memory()).chunks]
        await watched.check_quiet()


async def change_elsewhere(run: Running) -> None:
    """Change the thread, as another person does while a dialog is open."""
    run.clock.now += 1
    url = f"{run.base}/om/v1/threads/boat"
    title = {"title": f"Piers at {run.clock.now}"}
    assert (await run.http.patch(url, json=title)).status_code == 200


async def test_a_change_waits_where_the_thread_has_moved_on(run: Running, browser: Browser) -> None:
    """The page says so in words, keeps what was written, and changes nothing before the visitor
    insists. So it is for entries, for notes that stand ready, and for pins."""
    await talk_of_piers(run, 16)
    await run.http.post(
        f"{run.base}/om/v1/threads/boat/pins", json={"text": "The tide turns at 3."}
    )
    memory = await run.memory()
    assert memory.chunks
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        articles = page.get_by_role("article")
        await expect(articles.nth(1)).to_be_visible()
        for note, words in (
            (page.locator("article.observed").first, "User said: Boat 1 lies at pier 771."),
            (page.locator("article.buffered").first, "User said: Boat 9 lies at pier 779."),
            (page.get_by_role("article", name="Pinned note"), "The tide turns at four."),
        ):
            await note.get_by_role("button", name="Edit").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_role("textbox").fill(words)
            await change_elsewhere(run)
            before = await run.memory()
            await dialog.get_by_role("button", name="Save", exact=True).click()
            await expect(dialog.get_by_role("alert")).to_contain_text(
                "The thread has changed since"
            )
            assert (await run.memory()) == before
            await expect(dialog.get_by_role("textbox")).to_have_value(words)
            await watched.check_accessible()
            await dialog.get_by_role("button", name="Save anyway").click()
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_text(words)).to_be_visible()
            after = await run.memory()
            texts = [note.text for note in (*after.log.entries, *after.chunks, *after.log.pins)]
            assert words in "\n".join(texts)


async def test_a_change_of_notes_that_are_gone_is_refused(run: Running, browser: Browser) -> None:
    """Somebody else was faster: the page says so, changes nothing, and keeps what was written."""
    await talk_of_piers(run, 16)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("article").first.get_by_role("button", name="Edit").click()
        entry = (await run.memory()).log.entries[0]
        url = f"{run.base}/om/v1/threads/boat/observations/{entry.id}"
        assert (await run.http.patch(url, json={"text": "Pier 79."})).status_code == 200
        before = (await run.memory()).log
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("textbox").fill("Pier 78.")
        await page.get_by_role("button", name="Save").click()
        await dialog.get_by_role("button", name="Save anyway").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("not there any more")
        await expect(dialog.get_by_role("textbox")).to_have_value("Pier 78.")
        assert (await run.memory()).log == before
        await dialog.get_by_role("button", name="Cancel").click()
        await expect(page.get_by_text("Pier 79.").first).to_be_visible()


async def test_pinned_notes_begin_every_later_prompt(run: Running, browser: Browser) -> None:
    """A person's own words stand before the notes, until they are changed or removed."""
    chat = await talk_of_piers(run, 3)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="Pin a note").click()
        await page.get_by_role("dialog").get_by_role("textbox").fill("The harbour closes at nine.")
        await watched.check_accessible()
        await page.get_by_role("button", name="Pin", exact=True).click()
        pin = page.get_by_role("article", name="Pinned note")
        await expect(pin).to_contain_text("The harbour closes at nine.")
        assert "The harbour closes at nine." in await read_next_prompt(chat)
        await page.reload()  # it looks for new turns every few seconds
        await pin.get_by_role("button", name="Edit").click()
        await page.get_by_role("dialog").get_by_role("textbox").fill("The harbour closes at ten.")
        await page.get_by_role("button", name="Save").click()
        await expect(pin).to_contain_text("at ten")
        prompt = await read_next_prompt(chat)
        assert "closes at ten." in prompt
        assert "closes at nine." not in prompt
        await page.reload()
        await pin.get_by_role("button", name="Remove").click()
        await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        await expect(pin).to_have_count(0)
        assert "closes at ten." not in await read_next_prompt(chat)
        await watched.check_quiet()


async def test_memory_works_when_asked_to(run: Running, browser: Browser) -> None:
    """Below its thresholds: notes are written, put into the prompt, and condensed."""
    chat = await talk_of_piers(run, 2)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        for work in ("Write notes", "Put the ready notes", "Condense the notes"):
            await page.get_by_role("button", name="Work now").click()
            await page.get_by_role("radio", name=work).check()
            await watched.check_accessible()
            await page.get_by_role("button", name="Begin").click()
            await expect(page.get_by_role("dialog")).to_have_count(0)
            if work == "Put the ready notes":
                assert "User said: Boat 1 lies at pier 101." in await read_next_prompt(chat)
        assert (await run.memory()).log.generation == 1
        await watched.check_quiet()


async def test_a_thread_that_was_given_up_is_tried_again(run: Running, browser: Browser) -> None:
    await talk_of_piers(run, 2)
    url = f"{run.base}/om/v1/threads/boat/park"
    assert (await run.http.post(url, json={})).status_code == 200
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await expect(page.get_by_text("Memory has given this thread up")).to_be_visible()
        await page.get_by_role("button", name="Try again").click()
        await expect(page.get_by_text("Memory has given this thread up")).to_have_count(0)
        assert not (await run.memory()).failures.suspended
