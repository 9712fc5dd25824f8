"""The demo's figures on all pages of the dashboard, beside those of the commands."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, expect
from rich.console import Console

from om_proxy.cli.answers import render_money
from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.stage import serve_kept
from om_proxy.cli.demo.story import load_story
from om_proxy.cli.demo.summary import print_summary
from tests.cli.command_line import run_om_proxy
from tests.management.dashboard.browser import Watched, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")
PLACES = ("overview", "threads", "search?q=height", "live", "settings", "audit")
THREAD = "#/thread/local/van-planner/van-planner"
DAYS_IN_STORY = 5


def sum_ledgers(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sums that pages show, of the lines of `om-proxy stats --json`."""
    ledgers = [line["ledger"] for line in lines]
    prompt_kinds = ("input", "cached", "cache_write")
    return {
        **{
            name: sum(ledger["saving"][name] for ledger in ledgers)
            for name in ("net", "baseline", "cost", "memory_cost")
        },
        **{
            name: sum(ledger[name][kind] for ledger in ledgers for kind in prompt_kinds)
            for name in ("tokens", "baseline_tokens")
        },
        **{name: sum(ledger[name] for ledger in ledgers) for name in ("turns", "memory_calls")},
    }


def read_counts(console: Console) -> tuple[int, int]:
    """Return the questions and the turns that the demo says it has had."""
    assert isinstance(console.file, io.StringIO)
    ((questions, turns),) = re.findall(r"(\d+) questions, (\d+) turns", console.file.getvalue())
    return int(questions), int(turns)


async def read_words(place: Locator) -> str:
    """Return the text in one line, with a plain minus."""
    return " ".join((await place.inner_text()).replace("−", "-").split())


async def check_thread(watched: Watched, sums: dict[str, int], bars: list[str]) -> None:
    """Check the thread's page against the sums, and its bars against those of the lists."""
    await watched.open(THREAD)
    page = watched.page
    cost = page.locator(".thread-ledger")
    await cost.locator("summary").click()
    words = await read_words(cost)
    for name, figure in (
        ("Paid for", "cost"),
        ("Memory's own calls", "memory_cost"),
        ("Saved", "net"),
    ):
        row = await read_words(cost.get_by_role("row", name=name))
        assert row.endswith(render_money(sums[figure])), row
    assert f"{sums['baseline_tokens']:,} {render_money(sums['baseline'])}" in words
    assert f"for {sums['turns']} turns" in words
    assert f"{sums['memory_calls']} calls" in words
    shown = [await read_words(line) for line in await page.locator(".gauge").all()]
    assert len(shown) == len(bars) == 2
    for exact, short in zip(shown, bars, strict=True):
        name, value, limit = short.rpartition(" of ")[0].rsplit(" ", 1)[0], *read_bar(exact)
        assert exact.startswith(name)
        assert short == f"{name} {shorten(value)} of {shorten(limit)}"


def read_bar(words: str) -> tuple[int, int]:
    """Return value and limit of `Notes 2,400 of 2,500 tokens …`."""
    before, _, after = words.partition(" of ")
    return int(before.split()[-1].replace(",", "")), int(after.split()[0].replace(",", ""))


def shorten(tokens: int) -> str:
    return f"{tokens / 1_000:.1f}".removesuffix(".0") + "K"


async def test_pages_and_commands_tell_the_same_figures(tmp_path: Path, browser: Browser) -> None:
    """No page says another sum than `om-proxy stats --json`, nor does what the demo prints; money has
    two decimals."""
    story, console = load_story(), Console(file=io.StringIO(), width=110)
    result = await play_story(story, console, kept_folder=tmp_path)
    print_summary(console, result, show_prompt=False)
    async with serve_kept(story, tmp_path, 0) as served:
        command = ("stats", "--json", "--by", "day")
        printed = await asyncio.to_thread(
            run_om_proxy, *command, cwd=tmp_path, OM_PROXY_CONFIG=str(served.config)
        )
        lines = json.loads(printed.stdout)["items"]
        assert len(lines) == DAYS_IN_STORY
        sums = sum_ledgers(lines)
        assert read_counts(console) == (len(story.turns), sums["turns"])
        async with open_page(browser, served.url) as watched:
            page = watched.page
            await page.goto(served.sign_in.link_to(served.url))
            await expect(page.get_by_text("All threads", exact=True)).to_be_visible()
            for place in PLACES:
                await watched.open(f"#/{place}")
            await watched.open("#/overview")
            saving = await read_words(page.get_by_role("region", name="What memory saves"))
            for name, figure in (
                ("Saved by memory", "net"),
                ("Without memory", "baseline"),
                ("- Paid", "cost"),
                ("- Memory's own calls", "memory_cost"),
            ):
                assert f"{name} {render_money(sums[figure])}" in saving
            assert f"Turns {sums['turns']} " in saving
            assert f"Memory's own calls {sums['memory_calls']} " in saving
            for table in ("By resource", "By model"):
                rows = page.get_by_role("region", name=table).get_by_role("row")
                await expect(rows.nth(1)).to_be_visible()
                cells = [(await read_words(row)).split() for row in (await rows.all())[1:]]
                calls = sum(int(next(c for c in row if c.isdecimal())) for row in cells)
                assert calls == sums["turns"] + sums["memory_calls"]
                money = sum(float(row[-1].replace("$", "")) for row in cells)
                assert money == pytest.approx(sums["net"] / 1e6, abs=0.005 * len(cells))
            bars = [await read_words(bar) for bar in await page.locator(".mini").all()]
            await watched.open("#/threads")
            await expect(page.locator(".mini")).to_have_count(2)
            assert bars == [await read_words(bar) for bar in await page.locator(".mini").all()]
            await check_thread(watched, sums, bars)
            await watched.check_quiet()
