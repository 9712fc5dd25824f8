"""What people take along from the dashboard, what they forget there, and who did what: export,
forgetting a resource, the audit; names that a path cannot carry, causes of failures, and money."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import orjson
import pytest
from playwright.async_api import Browser, expect

from om_proxy.cli.answers import render_money
from om_proxy.cli.doctor.store import CAUSES_BY_CODE
from om_proxy.common.errors import StorageError
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.management.mcp.tools import ToolName
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.running import SMALL, Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN, talk_of_piers
from tests.management.dashboard.browser import Watched, open_page
from tests.management.dashboard.test_pages import STATIC

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def save_export(watched: Watched, folder: Path) -> tuple[str, list[dict[str, object]]]:
    """Click on Export. Return the file's name and its records."""
    async with watched.page.expect_download() as found:
        await watched.page.get_by_role("button", name="Export").click()
    download = await found.value
    await download.save_as(folder / "saved")
    lines = (folder / "saved").read_bytes().splitlines()
    return download.suggested_filename, [orjson.loads(line) for line in lines]


async def test_a_thread_and_a_resource_are_exported(
    run: Running, browser: Browser, tmp_path: Path
) -> None:
    """As a file, the records that the API answers."""
    for name in ("boat", "bridge"):
        await talk_of_piers(run, 3, name, resource="sailing/2026")
    async with open_page(browser, run.base) as watched:
        await watched.open(f"#/thread/local/{'sailing%2F2026'}/boat")
        name, records = await save_export(watched, tmp_path)
        assert (name, records[0]["om"], records[-1]) == (
            "boat.om.jsonl",
            "export",
            {"om": "end", "threads": 1},
        )
        assert sum(record["om"] == "message" for record in records) == 6
        await watched.open("#/resource/local/sailing%2F2026")
        name, records = await save_export(watched, tmp_path)
        assert (name, records[-1]) == ("sailing-2026.om.jsonl", {"om": "end", "threads": 2})
        await watched.check_quiet()


async def test_an_export_that_breaks_off_is_told(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails in the middle: what came is no whole export, and the page says so."""
    await talk_of_piers(run, 3, "boat")

    async def fail(*args: object, **kwargs: object) -> None:
        raise StorageError("the disk is gone")

    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/thread/local/boat/boat")
        await expect(page.get_by_role("button", name="Export")).to_be_visible()
        monkeypatch.setattr(type(run.app.store), "stored_messages", fail)
        await page.get_by_role("button", name="Export").click()
        await expect(page.get_by_role("dialog")).to_contain_text("not whole")
        await watched.check_accessible()


async def test_a_resource_is_forgotten_by_its_name(run: Running, browser: Browser) -> None:
    """With all its threads, and nothing else."""
    for name in ("boat", "bridge"):
        await talk_of_piers(run, 1, name, resource="sailing")
    await talk_of_piers(run, 1, "other")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/resource/local/sailing")
        await page.get_by_role("button", name="Forget").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("2 threads")
        await dialog.get_by_role("textbox").fill("sailin")
        await expect(dialog.get_by_role("button", name="Forget")).to_be_disabled()
        await dialog.get_by_role("textbox").fill("sailing")
        await watched.check_accessible()
        await dialog.get_by_role("button", name="Forget").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Threads")
        await expect(page.locator(".line")).to_have_count(1)
        assert [memory.key.thread for memory in await run.memories()] == ["other"]
        await watched.check_quiet()


async def test_the_audit_is_for_the_admin(run: Running, browser: Browser) -> None:
    """Each record says what was done, by whom and about what, in words."""
    await talk_of_piers(run, 2, "boat")
    title = f"{run.base}/om/v1/threads/boat"
    assert (await run.http.patch(title, json={"title": "Piers"})).status_code == 200
    label = (await run.http.get(title)).json()["label"]
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await expect(page.get_by_role("link", name="Audit")).to_have_count(0)
        await page.evaluate(f"sessionStorage.setItem('om-credential', '{ADMIN_TOKEN}')")
        await page.reload()
        await page.get_by_role("link", name="Audit").click()
        row = page.get_by_role("row", name="Changed the title")
        await expect(row).to_contain_text("This machine, without a key")
        await expect(row).to_contain_text(label)
        await watched.check_accessible()
        await watched.check_quiet()


async def test_each_record_of_the_audit_has_words() -> None:
    """A new route or tool that is audited needs words on the page of the audit."""
    text = (STATIC / "pages" / "audit.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"^const ACTIONS = \{\n(.*?)^\};$", text, flags=re.M | re.S)
    words = dict(re.findall(r'^  (\w+): "([^"]+)",$', table, flags=re.M))
    audited = {route.name for route in ADMIN_ROUTES if route.changes_memory or route.shows_text}
    of_agents, of_commands = (
        set(get_args(ToolName)),
        {"rewrite_tables"},
    )  # of `om-proxy store erase`
    assert set(words) == audited | of_agents | of_commands
    assert len(set(words.values())) == len(words) == table.count("\n")


async def test_each_cause_of_a_failure_has_words() -> None:
    """The page explains every cause that `om-proxy doctor` explains, and says what to do."""
    text = (STATIC / "causes.js").read_text(encoding="utf-8")
    (table,) = re.findall(r"^const CAUSES = \{\n(.*?)^\};$", text, flags=re.M | re.S)
    words = dict(re.findall(r'^  (om_\w+): \["[^"]+", "([^"]+)"\],$', table, flags=re.M))
    assert set(words) == set(CAUSES_BY_CODE)
    assert len(words) == table.count("\n")


async def test_a_thread_of_any_name_opens(run: Running, browser: Browser) -> None:
    """From the list, with its resource, also where a browser takes the name out of a path."""
    names = (".", "..", "a/../b", "%2e%2e", "a?b#c&d=e", "Bücher 📚")
    for name in names:
        await talk_of_piers(run, 2, name, resource=name)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        for name in names:
            await watched.open("#/threads")
            line = page.locator(".line", has=page.get_by_text(name, exact=True))
            await line.click()
            await expect(page.locator(".page-title")).to_contain_text(name)
            await expect(page.locator(".line-box")).to_have_count(4)
            await page.reload()
            await expect(page.locator(".line-box")).to_have_count(4)
            await page.goto(f"{run.base}/om/#/overview")
            table = page.get_by_role("region", name="By resource")
            await table.get_by_role("link", name=name, exact=True).click()
            await expect(page.get_by_text("1 thread, with notes of its own")).to_be_visible()
        await watched.check_quiet()


async def test_failures_are_told_by_cause(tmp_path: Path, browser: Browser) -> None:
    """What failed, what to do, and which threads it is about."""
    models = ScriptedServer(faults=[Fault(kind="http", model=OBSERVER, status=401)] * 99)
    async with run_with_scripted_models(tmp_path, models=models) as run:
        for name in ("boat", "bridge"):
            await talk_of_piers(run, 5, name)
        await run.http.post(f"{run.base}/om/v1/threads/boat/park", json={})
        async with open_page(browser, run.base) as watched:
            page = watched.page
            for place in ("#/overview", "#/threads"):
                await watched.open(place)
                trouble = page.get_by_role("region", name="Threads that need attention")
                cause = trouble.get_by_role("listitem")
                await expect(cause).to_have_count(1)
                await expect(cause).to_contain_text("the memory model's server answered 401")
                await expect(cause).to_contain_text("What to do: Check memory.api_key")
                await expect(cause).to_contain_text("2 threads")
                await expect(cause).to_contain_text("om-proxy doctor --revive")
            await trouble.get_by_role("link", name="boat").first.click()
            notice = page.get_by_role("alert")
            await expect(notice).to_contain_text("Memory has given this thread up")
            await expect(notice).to_contain_text("Check memory.api_key")
            await watched.check_accessible()
            await watched.check_quiet()


async def test_a_thread_says_what_it_cost(run: Running, browser: Browser) -> None:
    """As its ledger says: paid, without memory, memory's own calls, and the net of these."""
    await talk_of_piers(run, 16, "boat", model="gpt-4o")
    ledger = (await run.http.get(f"{run.base}/om/v1/threads/boat")).json()["ledger"]
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/thread/local/boat/boat")
        await page.get_by_text("What it cost").click()
        rows = page.get_by_role("group", name="What it cost").get_by_role("row")
        await expect(rows).to_have_count(5)
        saving = ledger["saving"]
        assert saving["net"] == saving["baseline"] - saving["cost"] - saving["memory_cost"]
        is_loss = saving["net"] < 0
        await expect(rows.last).to_contain_text("Lost" if is_loss else "Saved")
        folder = await page.evaluate("document.querySelector('script[type=module]').src")
        code = """async ([folder, sums]) => {
          const { formatMoney } = await import(new URL("format.js", folder).href);
          return sums.map((sum) => formatMoney(sum));
        }"""
        names = ("baseline", "cost", "memory_cost", "net")
        texts = await page.evaluate(code, [folder, [saving[name] for name in names]])
        shown = [render_money(saving[name]) for name in names]
        assert [text.replace("−", "-") for text in texts] == shown
        for number, text in enumerate(texts, start=1):
            await expect(rows.nth(number)).to_contain_text(text)
        await watched.check_accessible()
        await watched.check_quiet()


async def test_the_overview_says_what_memory_holds(tmp_path: Path, browser: Browser) -> None:
    """The tokens of each tier, as the threads' own pages say them."""
    memory = "observation: {message_tokens: 1200, buffer_tokens: 300}, reflection: {observation_tokens: 900}"
    async with run_with_scripted_models(tmp_path, memory) as run:
        await talk_of_piers(run, 30, "boat")
        await talk_of_piers(run, 2, "bridge")
        states = [
            (await run.http.get(f"{run.base}/om/v1/threads/{name}")).json()
            for name in ("boat", "bridge")
        ]
        ready = sum(chunk["source_tokens"] for state in states for chunk in state["chunks"])
        condensed = sum(state["observations"]["condensed_tokens"] for state in states)
        notes = sum(state["observations"]["tokens"] for state in states) - condensed
        raw = sum(state["messages"]["pending_tokens"] for state in states) - ready
        async with open_page(browser, run.base) as watched:
            await watched.open("#/overview")
            held = watched.page.get_by_role("region", name="What memory holds")
            shown = {"Messages word for word": raw, "Condensed notes": condensed, "Notes": notes}
            shown["Messages word for word, notes ready"] = ready
            for name, tokens in shown.items():
                if tokens:
                    line = held.get_by_role("listitem").filter(has_text=re.compile(f"^{name}[0-9]"))
                    await expect(line).to_contain_text(f"{tokens:,} tokens")
            assert condensed > 0
            await watched.check_quiet()


async def test_the_chart_shows_a_loss(tmp_path: Path, browser: Browser) -> None:
    """A day on which more was sent than without memory has a part of its own, and its own number."""
    async with run_with_scripted_models(tmp_path, SMALL) as run:
        chat = await talk_of_piers(run, 1, "boat")
        await run.http.post(f"{run.base}/om/v1/threads/boat/pins", json={"text": "Tide. " * 300})
        for number in range(3):
            chat.history.append({"role": "user", "content": f"And pier {number}?"})
            await chat.send(chat.history)
        async with open_page(browser, run.base) as watched:
            await watched.open("#/overview")
            chart = watched.page.get_by_role("region", name="Prompt tokens by day")
            await expect(chart).to_contain_text("More than without memory")
            await chart.get_by_text("Show as a table").click()
            cells = chart.get_by_role("row").last.get_by_role("cell")
            without, sent, more = [
                int(text.replace(",", "")) for text in await cells.all_text_contents()
            ]
            assert more == sent - without > 0
            await watched.check_quiet()
