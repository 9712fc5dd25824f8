"""The figures of the days that one chooses, events that are paused, and a telephone's first screen."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from tests.e2e.running import Running
from tests.management.dashboard.boat_threads import BOAT_THREAD_PLACE
from tests.management.dashboard.browser import NARROW, open_page
from tests.management.dashboard.test_pages_in_browser import talk

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_days_are_chosen(run: Running, browser: Browser) -> None:
    """From one day to another; the figures, the tables and the address follow. Each figure has a
    chart."""
    await talk(run, turns=3)
    run.clock.now += 86_400
    await talk(run, "later", turns=2)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/overview")
        turns = page.locator(".tile").first
        await expect(turns).to_contain_text("5")
        await page.get_by_label("First day").fill("2023-11-15")
        await expect(turns).to_contain_text("2")
        await expect(
            page.get_by_role("region", name="By resource").get_by_role("row")
        ).to_have_count(2)
        await page.reload()
        await expect(turns).to_contain_text("2")
        await page.get_by_label("Last day").fill("2023-11-14")
        await expect(page.get_by_role("heading", name="No turns in this time")).to_be_visible()
        await page.get_by_role("button", name="All", exact=True).click()
        for measure in ("Prompt cache", "Requests", "Prompt tokens"):
            await page.get_by_role("button", name=measure).click()
            chart = page.get_by_role("region", name=f"{measure} by day")
            await expect(chart.locator("rect").first).to_be_attached()
        await watched.check_accessible()
        await watched.check_quiet()


async def test_live_events_are_paused(run: Running, browser: Browser) -> None:
    await talk(run, turns=6)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/live")
        await expect(page.get_by_text("connected")).to_be_visible()
        events = page.get_by_role("list", name="Events, the newest first").get_by_role("listitem")
        await expect(events.first).to_be_visible()
        count = await events.count()
        await page.get_by_role("button", name="Pause").click()
        await talk(run, "later", turns=8)
        go_on = page.get_by_role("button", name=re.compile(r"Go on \([0-9]+ new\)"))
        await expect(go_on).to_be_visible()
        assert await events.count() == count
        await go_on.click()
        await expect(page.get_by_role("link", name="Our boat")).not_to_have_count(0)
        assert await events.count() > count
        await watched.check_quiet()


async def test_the_first_message_stands_on_a_telephones_first_screen(
    run: Running, browser: Browser
) -> None:
    await talk(run)
    async with open_page(browser, run.base, size=NARROW) as watched:
        await watched.open(BOAT_THREAD_PLACE)
        message = watched.page.locator(".message").first
        await expect(message).to_be_in_viewport(ratio=0.5)
        await watched.check_accessible()
        await watched.check_quiet()
