"""A note leads to all the messages that it was made from, page by page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from om_proxy.common.errors import StorageError
from om_proxy.management.message_reader import MessageReader
from tests.e2e.running import run_with_scripted_models
from tests.management.dashboard.browser import open_page
from tests.management.dashboard.speed import talk

MESSAGES = 130
ONE_NOTE = "observation: {message_tokens: 1000, buffer_tokens: false, block_timeout: 10s}"


@pytest.mark.asyncio(loop_scope="session")
async def test_messages_behind_a_note_are_read_on_to_the_last(
    tmp_path: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a page that fails, and with the keyboard."""

    async def fail(*args: object, **kwargs: object) -> None:
        raise StorageError("the disk is gone")

    async with (
        run_with_scripted_models(tmp_path, ONE_NOTE) as run,
        open_page(browser, run.base) as watched,
    ):
        await talk(run, "long", MESSAGES)
        await run.app.background.wait_idle()
        await talk(run, "long", MESSAGES + 2)
        await run.app.background.wait_idle()
        url = f"{run.base}/om/v1/threads/long/observations"
        entry = (await run.http.get(url)).json()["log"][0]
        listed = await run.http.get(f"{url}/{entry['id']}/messages?limit=1000")
        numbers = [f"no. {line['seq']}" for line in listed.json()["items"]]
        assert len(numbers) > 100
        page = watched.page
        await watched.open("#/thread/local/long/long")
        card = page.get_by_role("article").first
        await card.get_by_role("button", name="What was it made from?").press("Enter")
        await expect(card.locator(".provenance .message")).to_have_count(50)
        more = card.get_by_role("button", name="Show more messages")
        with monkeypatch.context() as patch:
            patch.setattr(MessageReader, "read_ranges", fail)
            await more.press("Enter")
            await expect(card.get_by_role("alert")).to_be_visible()
            await watched.check_accessible()
        watched.console.clear()  # the browser tells the failed request
        await more.press("Enter")
        await expect(card.locator(".provenance .message")).to_have_count(100)
        await expect(card.get_by_role("alert")).to_have_count(0)
        await more.press("Enter")
        await expect(more).to_have_count(0)
        assert (
            await card.locator(
                ".provenance .message-role > .number:nth-child(2)"
            ).all_text_contents()
            == numbers
        )
        await watched.check_quiet()
