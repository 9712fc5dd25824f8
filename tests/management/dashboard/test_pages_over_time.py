"""The figures of the days that one chooses, events that are paused, and a telephone's first screen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from om_proxy.engine.turns.engine import Engine
from tests.e2e.running import Running
from tests.management.dashboard.boat_threads import BOAT_THREAD_PLACE, talk_of_piers
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
        for measure in (
            "Compression",
            "Prompt cache",
            "Latency added",
            "Failures",
            "Requests",
            "Prompt tokens",
        ):
            await page.get_by_role("button", name=measure).click()
            chart = page.get_by_role("region", name=f"{measure} by day")
            await expect(chart.locator("rect").first).to_be_attached()
        await watched.check_accessible()
        await watched.check_quiet()


async def test_the_chart_is_of_one_resource_or_model(run: Running, browser: Browser) -> None:
    """Its days and figures follow the choice; the sums above stay those of all."""
    await talk(run, turns=3)
    run.clock.now += 86_400
    await talk_of_piers(run, 30, "harbour", model="another-actor")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/overview")
        await page.get_by_role("button", name="Requests").click()
        await page.get_by_text("Show as a table").click()
        chart = page.get_by_role("region", name="Requests by day")
        rows = chart.get_by_role("row")
        await expect(rows).to_have_count(3)
        await chart.get_by_label("All resources").select_option("boat")
        await expect(rows).to_have_count(2)
        await expect(rows.last.get_by_role("cell").first).to_have_text("3")
        await chart.get_by_label("All models").select_option("another-actor")
        await expect(chart.get_by_text("No turns of it in this time.")).to_be_visible()
        await chart.get_by_label("All resources").select_option("All resources")
        await expect(rows).to_have_count(2)
        await page.get_by_role("button", name="Compression").click()
        chart = page.get_by_role("region", name="Compression by day")
        (sent,) = await read_figures(run, "model=another-actor")
        without, tokens = (count_prompt(sent[name]) for name in ("baseline_tokens", "tokens"))
        assert without > tokens
        shown = chart.get_by_role("row").last
        await expect(shown).to_contain_text(f"{without:,}")
        await expect(shown).to_contain_text(f"{without / tokens:.1f}".removesuffix(".0") + "×")
        await expect(page.locator(".tile").first).to_contain_text("33")
        await watched.check_accessible()
        await watched.check_quiet()


async def test_latency_and_failures_by_day(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was added to a turn, as the receipts say, and the turns that memory failed in."""

    async def fail(*_: object) -> None:
        raise OSError("the memory is gone")

    await talk(run, turns=3)
    run.clock.now += 86_400
    monkeypatch.setattr(Engine, "open_turn", fail)
    await talk(run, turns=2)
    (first, second) = await read_figures(run, "by=day")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/overview")
        await page.get_by_role("button", name="Failures").click()
        await page.get_by_text("Show as a table").click()
        for measure, cells in (
            ("Failures", (["3", "0", "0%"], ["2", "2", "100%"])),
            ("Latency added", [[f"{f['turns']}", show_latency(f)] for f in (first, second)]),
        ):
            await page.get_by_role("button", name=measure).click()
            chart = page.get_by_role("region", name=f"{measure} by day")
            if measure == "Failures":  # there is no half of one
                await expect(chart.locator(".tick-line text")).to_have_text(["0", "1", "2"])
            for row, expected in zip(
                await chart.get_by_role("row").all(), [[], *cells], strict=True
            ):
                await expect(row.get_by_role("cell")).to_have_text(expected)
        await watched.check_accessible()
        await watched.check_quiet()


def show_latency(figures: dict[str, Any]) -> str:
    added = figures["overhead_us"] / figures["turns"] / 1_000
    return f"{added:.1f}".removesuffix(".0") + " ms"


async def read_figures(run: Running, query: str) -> list[dict[str, Any]]:
    answer = await run.http.get(f"{run.base}/om/v1/stats?{query}")
    return [line["ledger"] for line in answer.json()["items"]]


def count_prompt(tokens: dict[str, int]) -> int:
    return sum(tokens[kind] for kind in ("input", "cached", "cache_write"))


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
