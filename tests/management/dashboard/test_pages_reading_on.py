"""A conversation of many pages is read on to its end while one scrolls, also while it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.e2e.running import run_with_scripted_models
from tests.management.dashboard.browser import open_page
from tests.management.dashboard.speed import HIGH, ShortServer, talk

MESSAGES = 100


async def scroll_to_end(page: Page, count: int) -> None:
    """Scroll down until so many messages stand on the page."""
    lines = page.locator(".line-box")
    for _ in range(count):
        if await lines.count() >= count:
            return
        await page.evaluate("document.querySelector('.column-body').scrollBy(0, 1e6)")
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    await expect(lines).to_have_count(count)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_thread_that_changes_while_a_page_is_read_is_read_to_its_end(
    tmp_path: Path, browser: Browser
) -> None:
    """The reading of a page and that of the change wait for each other: neither is dropped."""
    is_asked, may_go_on = asyncio.Event(), asyncio.Event()

    async def hold_first(route: Route) -> None:
        if not is_asked.is_set():
            is_asked.set()
            await may_go_on.wait()
        await route.continue_()

    async with (
        run_with_scripted_models(tmp_path, HIGH, models=ShortServer()) as run,
        open_page(browser, run.base) as watched,
    ):
        await talk(run, "long", MESSAGES)
        page = watched.page
        await page.route(lambda url: "/messages" in url and "cursor=" in url, hold_first)
        await watched.open("#/thread/local/long/long")
        await page.locator(".line-box").first.wait_for()
        await page.evaluate("document.querySelector('.column-body').scrollBy(0, 1e6)")
        await is_asked.wait()
        async with page.expect_response(lambda got: "/observations" in got.url):
            await talk(run, "long", MESSAGES + 2)  # the page learns of the change
        may_go_on.set()
        await scroll_to_end(page, MESSAGES + 2)
        await watched.check_quiet()
