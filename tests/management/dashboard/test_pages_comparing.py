"""What people compare on the dashboard: states of notes, and a request with what the model gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from om_proxy.testing.scripted import ACTOR
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import (
    BOAT_THREAD_PLACE,
    LONG_LOG_MEMORY,
    talk_of_piers,
)
from tests.management.dashboard.browser import NARROW, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, LONG_LOG_MEMORY) as running:
        yield running


async def edit_first_note(run: Running, old: str, new: str) -> None:
    entry = (await run.memory()).log.entries[0]
    url = f"{run.base}/om/v1/threads/boat/observations/{entry.id}"
    answer = await run.http.patch(url, json={"text": entry.text.replace(old, new)})
    assert answer.status_code == 200


async def test_states_of_notes_are_compared(run: Running, browser: Browser) -> None:
    """What was removed and added since, line by line; what stayed is folded."""
    await talk_of_piers(run, 16)
    await edit_first_note(run, "pier 101", "pier 777")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="What changed last?").click()
        diff = page.get_by_role("group", name="What changed")
        await expect(diff).to_contain_text("2 lines removed, 2 lines added")
        await expect(diff.locator(".removed").first).to_contain_text("pier 101")
        await expect(diff.locator(".added").first).to_contain_text("pier 777")
        shown = await diff.locator(".same").count()
        await diff.get_by_role("button", name="lines that stayed").first.click()
        assert await diff.locator(".same").count() > shown
        await watched.check_accessible()
        await page.get_by_label("Show what has changed since").uncheck()
        await expect(page.get_by_text("You look at an earlier state.")).to_be_visible()
        await expect(page.get_by_role("article").first).to_contain_text("pier 101")
        await page.get_by_label("State of the notes").select_option(index=0)
        await expect(page.get_by_role("article").first).to_contain_text("pier 777")
        await watched.check_quiet()


async def paste(page: Page, text: str) -> None:
    await page.get_by_label("What your client sends").fill(text)
    await page.get_by_role("button", name="Compare", exact=True).click()


async def test_a_pasted_request_stands_beside_what_the_model_gets(
    run: Running, browser: Browser
) -> None:
    """Message by message, and it is what the model server gets when the client then sends it."""
    chat = await talk_of_piers(run, 16)
    question = {"role": "user", "content": "Where does boat 1 lie?"}
    body = {"model": "scripted-actor", "messages": [*chat.history, question]}
    requests = len(run.models.requests)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="Whole request").click()
        await paste(page, json.dumps(body, indent=2))
        context = page.get_by_role("region", name="What the model sees")
        await expect(context).to_contain_text(f"Your client sends{len(body['messages'])} messages")
        await page.get_by_role("button", name="Compare message by message").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.locator(".fold").first).to_be_visible()
        while await dialog.locator(".fold").count():
            await dialog.locator(".fold").first.click()
        sent = dialog.get_by_label("The model gets")
        await watched.check_accessible()
        await watched.check_quiet()
        assert len(run.models.requests) == requests
        await chat.send(body["messages"])
        upstream = orjson.loads(run.models.requests_to(ACTOR)[-1].body)["messages"]
        await expect(sent).to_have_count(len(upstream))
        kept = await dialog.get_by_label("Your client sends").filter(has_text="as it is").count()
        gone = await dialog.get_by_text("not sent: notes stand for it").count()
        assert (kept + gone, gone > 0) == (len(body["messages"]), True)
        assert await dialog.get_by_text("by memory").count() == len(upstream) - kept


async def test_side_by_side_becomes_one_below_the_other(run: Running, browser: Browser) -> None:
    """On a phone, where two columns have no room."""
    chat = await talk_of_piers(run, 16)
    async with open_page(browser, run.base, size=NARROW) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("tab", name="Next prompt").click()
        await page.get_by_role("button", name="Whole request").click()
        await paste(page, json.dumps(chat.history))
        await page.get_by_role("button", name="Compare message by message").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await watched.check_accessible()
        assert await page.evaluate("document.documentElement.scrollWidth") == NARROW[0]
        await watched.check_quiet()


WRONG_REQUESTS = [
    ("", "Paste a request first."),
    ("curl https://example.org -d '{}'", "Paste only what it sends"),
    ('{"model": "m", "messages": [}', "line 1 cannot be read, near “"),
    ('{"model": "m",\n"messages": [' + '"Hello",' * 40 + "}]}", "line 2 cannot be read, near"),
    ('{"messages": [{"role": "us', "breaks off before its end"),
    ("Hello there", "This is no JSON: it begins with “Hello there”"),
    ('{"model": "m"}', "This has no list of messages."),
    ('{"model": "m", "input": "Hello"}', "a request of another API"),
    ("17", "This has no list of messages."),
    ("[]", "The list of messages is empty."),
    ('{"messages": {}}', "This has no list of messages."),
    ('[{"content": "Hello"}]', 'Message 1 of 1 has no "role"'),
]


async def test_what_is_no_request_is_told_in_words(run: Running, browser: Browser) -> None:
    """What is wrong, and nothing is sent."""
    await talk_of_piers(run, 1)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="Whole request").click()
        for pasted, words in WRONG_REQUESTS:
            await paste(page, pasted)
            await expect(page.get_by_role("alert")).to_contain_text(words)
        posts = [url for url in watched.requests if url.endswith("/context")]
        assert posts == []
        await watched.check_quiet()
