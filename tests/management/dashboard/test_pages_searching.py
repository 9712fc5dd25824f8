"""Messages and notes are searched by words, and found where they stand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Route, expect

from om_proxy.common.errors import StorageError
from om_proxy.engine.recall.searching import NoteSearch
from tests.e2e.running import SMALL, Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN, ADMIN_TOKEN_SETTINGS
from tests.management.dashboard.browser import open_page
from tests.management.dashboard.test_pages_in_browser import (
    check_each_form,
    talk,
)

SEARCH = "#/search"


pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_message_is_found_and_opened_with_its_note(run: Running, browser: Browser) -> None:
    """By the keyboard alone. The words are marked, whatever their endings; the note that stands for
    the message is marked beside it."""
    await talk(run, turns=14)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(SEARCH)
        await expect(page.get_by_role("heading", name="What was said?")).to_be_visible()
        await page.get_by_role("searchbox").focus()
        await page.keyboard.type("bridges zeta")
        await page.keyboard.press("Enter")
        results = page.get_by_role("list", name="Messages found").get_by_role("listitem")
        await expect(results.first).to_contain_text("The mast is 12.6 m high")
        assert set(await page.locator("mark").all_text_contents()) == {"bridge"}
        await expect(page.locator("main")).to_contain_text("Words that no message has: zeta.")
        await check_each_form(watched)
        await page.get_by_label("Said by").select_option("user")
        await page.get_by_role("button", name="Search").press("Enter")
        await expect(page.locator(".result-head", has_text="Assistant")).to_have_count(0)
        oldest = results.filter(has_text="That is point 1.").get_by_role("link", name="boat")
        await oldest.press("Enter")
        found = page.locator(".line-box.found")
        await expect(found).to_contain_text("no. 3")
        await expect(found).to_be_in_viewport()
        note = page.get_by_role("article").and_(page.locator(".marked"))
        await expect(note).to_contain_text("the bridge lets 13.1 m pass")
        await expect(note).to_be_in_viewport()
        await watched.check_accessible()
        await page.go_back()
        await expect(page.get_by_role("searchbox")).to_have_value("bridges zeta")
        await watched.check_quiet()


async def test_a_result_names_its_api(run: Running, browser: Browser) -> None:
    """Where it is not chat; so does the message in its thread."""
    await talk(run, turns=1)
    body = {"model": "scripted-actor", "input": "The pier is painted green."}
    headers = {"x-om-thread": "paint"}
    await run.http.post(f"{run.base}/v1/responses", json=body, headers=headers)
    await run.app.background.wait_idle()
    async with open_page(browser, run.base) as watched:
        await watched.open(f"{SEARCH}?q=pier")
        results = watched.page.locator(".result")
        by_responses = results.filter(has_text="painted green")
        await expect(by_responses.first).to_contain_text("responses")
        await expect(results.filter(has_text="lies at pier 14").first).not_to_contain_text("chat")
        await by_responses.get_by_role("link", name="paint").first.click()
        await expect(watched.page.locator(".line-box.found")).to_contain_text("responses")
        await watched.check_quiet()


async def test_results_are_limited_and_more_are_shown(run: Running, browser: Browser) -> None:
    """Where more fit than are shown, the page says so. A thread can be searched by itself."""
    await talk(run, turns=30)
    await talk(run, "bridge", turns=1, resource="sailing")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(f"{SEARCH}?q=point")
        await expect(page.locator(".result")).to_have_count(20)
        await expect(page.locator("main")).to_contain_text("messages fit; the best 20 stand here")
        await page.get_by_role("button", name="Show up to 100").click()
        await expect(page.get_by_role("button", name="Show up to 100")).to_have_count(0)
        assert await page.locator(".result").count() > 20
        await page.get_by_label("Only in the resource").fill("sailing")
        await page.get_by_role("button", name="Search").click()
        await expect(page.locator(".result")).to_have_count(2)
        await watched.open("#/thread/local/boat/boat")
        await page.get_by_role("link", name="Search it").click()
        await expect(page.get_by_text("Only in the thread boat.")).to_be_visible()
        await page.get_by_role("searchbox").fill("sailing")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
        await watched.check_accessible()
        await watched.check_quiet()


async def test_how_many_resources_were_searched_is_told(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the number or the time did not suffice for all."""
    for resource in ("boat", "sailing", "rowing"):
        await talk(run, "bridge", turns=1, resource=resource)
    async with open_page(browser, run.base) as watched:
        main = watched.page.locator("main")
        for most, told in ((1, "Only 1 resource was searched."), (2, "Only 2 resources were")):
            monkeypatch.setattr("om_proxy.management.api.routes.search.MAX_RESOURCES", most)
            await watched.open(f"{SEARCH}?q=point{most}")
            await expect(main).to_contain_text(told)
        await watched.check_accessible()
        await watched.check_quiet()


async def test_the_admin_chooses_whose_messages_are_searched(
    run: Running, browser: Browser
) -> None:
    """A search is about one key."""
    await talk(run, "of-a", turns=1, key="sk-a")
    await talk(run, "of-b", turns=1, key="sk-b")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(SEARCH)
        await page.evaluate(f"sessionStorage.setItem('om-credential', '{ADMIN_TOKEN}')")
        await page.reload()
        await page.get_by_role("searchbox").fill("boat")
        await page.keyboard.press("Enter")
        await expect(page.locator(".result-head", has_text="of-b").first).to_be_visible()
        await expect(page.locator(".result-head", has_text="of-a")).to_have_count(0)
        await page.get_by_label("Of the key").select_option(index=1)
        await page.get_by_role("button", name="Search").click()
        await page.locator(".result", has_text="of-a").get_by_role("link").first.click()
        await expect(page.locator(".page-title")).to_contain_text("of-a")
        await expect(page.locator(".line-box.found")).to_be_visible()
        await watched.check_quiet()


async def test_an_admin_who_may_read_no_text_is_told_so(tmp_path: Path, browser: Browser) -> None:
    more = f"server: {{admin_token: {ADMIN_TOKEN}, admin_reads: false}}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await talk(run, turns=1)
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open(f"{SEARCH}?q=boat")
            await page.evaluate(f"sessionStorage.setItem('om-credential', '{ADMIN_TOKEN}')")
            await page.reload()
            await expect(page.locator("main")).to_contain_text("this server shows no texts")
            await expect(page.locator(".result")).to_have_count(0)
            await watched.check_accessible()


async def test_a_search_that_fails_or_takes_long_is_told(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And can be tried again."""
    await talk(run, turns=1)
    may_answer = asyncio.Event()

    async def hold(route: Route) -> None:
        await may_answer.wait()
        await route.continue_()

    async def fail(*args: object, **kwargs: object) -> None:
        raise StorageError("the disk is gone")

    async with open_page(browser, run.base) as watched:
        page = watched.page
        await page.route(lambda url: "/v1/search" in url, hold)
        await watched.open(f"{SEARCH}?q=boat")
        await expect(page.get_by_text("Still searching.")).to_be_visible()
        store_type = type(run.app.store)
        with monkeypatch.context() as patch:
            patch.setattr(store_type, "messages_by_seq", fail)
            may_answer.set()
            await expect(page.get_by_role("alert")).to_be_visible()
            await watched.check_accessible()
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".result").first).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)


async def test_a_message_that_is_not_there_is_told(run: Running, browser: Browser) -> None:
    await talk(run, turns=1)
    async with open_page(browser, run.base) as watched:
        await watched.open("#/thread/local/boat/boat?message=9000")
        await expect(watched.page.get_by_text("There is no message 9000")).to_be_visible()
        await expect(watched.page.locator(".line-box")).to_have_count(2)
        await watched.check_accessible()


async def test_a_line_of_a_note_is_found_and_opened(run: Running, browser: Browser) -> None:
    """By the keyboard alone. What was typed stays while one chooses what is searched."""
    await talk(run, turns=14)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(SEARCH)
        await page.get_by_role("searchbox").fill("bridges")
        notes = page.get_by_role("button", name="Notes")
        await notes.press("Enter")
        await expect(notes).to_be_focused()
        await expect(notes).to_have_attribute("aria-pressed", "true")
        await expect(page.get_by_label("Said by")).to_have_count(0)
        results = page.get_by_role("list", name="Lines of notes found").get_by_role("listitem")
        await expect(results.first).to_contain_text("the bridge lets 13.1 m pass")
        assert set(await results.locator("mark").all_text_contents()) == {"bridge"}
        await check_each_form(watched)
        await page.get_by_role("searchbox").fill("pier points")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status")).to_contain_text("lines of notes fit")
        line = await results.first.locator(".text").text_content()
        await results.first.get_by_role("link", name="boat").press("Enter")
        found = page.locator(".found-line")
        await expect(found).to_contain_text(line or "-")
        await expect(found).to_be_in_viewport()
        await expect(found).to_have_attribute("aria-current", "true")
        await expect(page.locator("article.marked").locator(".found-line")).to_have_count(1)
        await check_each_form(watched)
        await page.go_back()
        await expect(page.get_by_role("searchbox")).to_have_value("pier points")
        await expect(notes).to_have_attribute("aria-pressed", "true")
        await page.get_by_role("button", name="Messages").click()
        await expect(page.get_by_role("list", name="Messages found")).to_be_visible()
        await watched.check_quiet()


async def test_a_note_that_threads_share_opens_in_their_resource(
    tmp_path: Path, browser: Browser
) -> None:
    async with run_with_scripted_models(
        tmp_path, f"{SMALL}, scope: resource", more=ADMIN_TOKEN_SETTINGS
    ) as run:
        await talk(run, "mast", turns=14, resource="sailing")
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open(f"{SEARCH}?q=bridge&in=notes")
            await page.get_by_role("link", name="Shared notes of sailing").first.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_have_text("sailing")
            await expect(page.locator(".found-line")).to_contain_text("bridge")
            await expect(page.locator(".found-line")).to_be_in_viewport()
            await watched.check_accessible()
            # an entry of a log of the thread's own is another one
            await watched.open("#/thread/local/sailing/mast?note=1&line=1")
            await expect(page.get_by_text("does not stand here any more")).to_be_visible()
            await expect(page.locator(".marked, .found-line")).to_have_count(0)
            await watched.open("#/resource/local/sailing?note=9000&line=1")
            await expect(page.get_by_text("does not stand here any more")).to_be_visible()
            await watched.check_quiet()


async def test_a_search_of_notes_that_finds_nothing_or_fails_is_told(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(run, turns=14)

    async def fail(*args: object, **kwargs: object) -> None:
        raise StorageError("the disk is gone")

    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(f"{SEARCH}?in=notes")
        await expect(page.get_by_role("heading", name="What was noted?")).to_be_visible()
        await page.get_by_role("searchbox").fill("zeppelin")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("No note has these words.")
        await watched.check_accessible()
        await page.get_by_role("searchbox").fill("pier")
        with monkeypatch.context() as patch:
            patch.setattr(NoteSearch, "find", fail)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("alert")).to_be_visible()
            await watched.check_accessible()
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".result").first).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        await watched.open("#/thread/local/boat/boat?note=9000&line=1")
        await expect(page.get_by_text("does not stand here any more")).to_be_visible()
        await watched.check_accessible()
