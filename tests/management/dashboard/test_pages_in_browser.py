"""The dashboard in a browser, over a live proxy with a conversation behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, FloatRect, expect

from om_proxy.common.errors import StorageError
from om_proxy.storage.values.records import EventPage
from om_proxy.testing.scripted import OBSERVER, Fault, ScriptedServer
from tests.e2e.running import SMALL, Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN, BOAT_THREAD_PLACE
from tests.management.dashboard.browser import (
    NARROW,
    THEMES,
    WIDE,
    Watched,
    open_page,
)
from tests.support.long_forms import IS_LONG

FACTS = (
    "Our boat lies at pier 14.",
    "The mast is 12.6 m high, and the bridge lets 13.1 m pass.",
    "We leave on May 9 at 06:40, never later.",
    "The harbour master wants 55 euros for each night.",
    "Two of us must wear a harness whenever the wind is above 6 Beaufort.",
)
PRICED_OBSERVER = "gpt-4o-mini"


pytestmark = pytest.mark.asyncio(loop_scope="session")


async def talk(
    run: Running, thread: str = "boat", *, turns: int = 30, key: str = "", resource: str = ""
) -> None:
    """Play a conversation that memory observes and condenses. Without a key it is the thread of a
    loopback's caller, whom the dashboard asks for nothing."""
    chat = run.chat(thread, key=key)
    if resource:
        chat.headers["x-om-resource"] = resource
    if not key:
        del chat.headers["authorization"]
    for number in range(turns):
        await chat.say(f"{FACTS[number % len(FACTS)]} That is point {number}. {'And so on. ' * 12}")
        await run.app.background.wait_idle()
        run.clock.now += 60


async def test_a_thread_is_found_and_read(run: Running, browser: Browser) -> None:
    """From the list to the notes, to what an entry was made from, and to the next prompt."""
    await talk(run)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await page.get_by_role("link", name="boat").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(FACTS[0])
        entry = page.get_by_role("article").first
        await expect(entry).to_contain_text("pier 14")
        await entry.get_by_role("button", name="What was it made from?").click()
        await expect(entry.locator(".message").first).to_contain_text(FACTS[0])
        context = page.get_by_role("region", name="What the model sees")
        await expect(context).to_contain_text("tokens go to the model")
        await context.get_by_label("If the user now writes").fill("At which pier?")
        await context.get_by_role("button", name="Show").click()
        await context.get_by_text("Messages in the prompt").last.click()
        await expect(context).to_contain_text("At which pier?")
        await watched.check_quiet()


async def test_a_title_is_set_and_a_thread_is_forgotten(run: Running, browser: Browser) -> None:
    """Forgetting asks for the thread's name first."""
    await talk(run, turns=4)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title").fill("Sailing in May")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sailing in May")
        await page.get_by_role("button", name="Forget").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_role("button", name="Forget")).to_be_disabled()
        await dialog.get_by_role("textbox").fill("boat")
        await dialog.get_by_role("button", name="Forget").click()
        await expect(page.get_by_role("heading", name="No conversations yet")).to_be_visible()
        assert await run.memories() == []
        await watched.check_quiet()


async def test_signing_in_with_a_key_shows_its_threads(run: Running, browser: Browser) -> None:
    """A client's key is a tenant. The page says so where there is nothing without a key."""
    await talk(run, "secret-plan", turns=1, key="sk-a")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await page.get_by_role("button", name="sign in with it").click()
        await page.get_by_label("Key or admin token").fill("sk-a")
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_role("link", name="secret-plan").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(FACTS[0])
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to see it")).to_be_visible()
        assert await page.evaluate("[document.cookie, sessionStorage.length]") == ["", 0]


async def test_the_admin_token_is_kept_in_the_tab(run: Running, browser: Browser) -> None:
    """It reaches the threads of every key, and a page that is loaded again keeps it."""
    await talk(run, "of-a", turns=1, key="sk-a")
    await talk(run, "of-b", turns=1, key="sk-b")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        await page.get_by_label("Key or admin token").fill(ADMIN_TOKEN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.get_by_text("All threads")).to_be_visible()
        await page.reload()
        await page.get_by_role("link", name="of-a").click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(FACTS[0])
        await page.goto(f"{run.base}/om/#/threads")
        await expect(page.get_by_role("link", name="of-b")).to_be_visible()
        assert ADMIN_TOKEN not in page.url


async def test_threads_are_searched_and_filtered(run: Running, browser: Browser) -> None:
    """By the beginning of a name, by state, in either order. The address keeps what was asked."""
    for name in ("boat", "bridge", "harbour"):
        await talk(run, name, turns=1)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        lines = page.locator(".line")
        await watched.open("#/threads")
        await expect(lines).to_have_count(3)
        await expect(lines.first).to_contain_text("harbour")
        await expect(lines.first).to_contain_text("Messages word for word")
        await page.get_by_label("Order").select_option("name")
        await expect(lines.first).to_contain_text("boat")
        await page.get_by_role("searchbox").fill("b")
        await expect(lines).to_have_count(2)
        await page.reload()
        await expect(lines).to_have_count(2)
        await page.get_by_role("button", name="With notes").click()
        await expect(page.get_by_role("heading", name="No such thread")).to_be_visible()
        await watched.check_quiet()


async def test_threads_that_failed_stand_first(tmp_path: Path, browser: Browser) -> None:
    """With the cause, and with what still works."""
    models = ScriptedServer(faults=[Fault(kind="http", model=OBSERVER, status=400)] * 99)
    async with run_with_scripted_models(tmp_path, models=models) as run:
        await talk(run, turns=6)
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open("#/threads")
            trouble = page.get_by_role("region", name="Threads that need attention")
            await trouble.get_by_role("link", name="boat").click()
            await expect(page.get_by_text("Every message still reaches the model.")).to_be_visible()
            await watched.check_accessible()
            await watched.check_quiet()


async def test_a_resource_shows_what_each_thread_adds(tmp_path: Path, browser: Browser) -> None:
    """The log that its threads share, and the entries about each."""
    shared = f"{SMALL}, scope: resource"
    async with run_with_scripted_models(tmp_path, shared) as run:
        for name in ("boat", "bridge"):
            await talk(run, name, turns=14, resource="sailing")
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open("#/resource/local/sailing")
            await expect(page.get_by_role("region", name="Threads").locator(".line")).to_have_count(
                2
            )
            log = page.get_by_role("region", name="The shared log")
            await expect(log).to_contain_text("pier 14")
            added = page.get_by_role("region", name="What each thread adds")
            await expect(added.get_by_role("row", name="bridge")).to_be_visible()
            await watched.check_accessible()
            await watched.check_quiet()


async def test_events_appear_as_they_happen(run: Running, browser: Browser) -> None:
    """First those that are stored, then each new one, without loading the page again."""
    await talk(run, turns=6)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/live")
        await expect(page.get_by_text("connected")).to_be_visible()
        feed = page.get_by_role("list", name="Events, the newest first")
        await expect(feed.get_by_text("Notes were written ahead").first).to_be_visible()
        assert await feed.get_by_text("Notes took the place").count() == 0
        await talk(run, "other-boat", turns=14)
        await expect(feed.get_by_text("Notes took the place").first).to_be_visible()
        await expect(feed.get_by_role("link", name="other-boat").first).to_be_visible()
        await page.get_by_role("button", name="Became active").click()
        await expect(feed.get_by_text("Notes took the place")).to_have_count(0)
        await watched.check_quiet()


async def test_the_feed_begins_once_the_store_is_back(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored events could not be read at first. The page is not loaded again."""
    await talk(run, turns=6)
    store_type = type(run.app.store)
    with monkeypatch.context() as patch:
        patch.setattr(store_type, "events", _fail)
        patch.setattr(store_type, "event_position", _fail)
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open("#/live")
            await expect(page.get_by_role("alert")).to_be_visible()
            patch.undo()
            feed = page.get_by_role("list", name="Events, the newest first")
            await expect(feed.get_by_text("Notes were written ahead").first).to_be_visible()
            await expect(page.get_by_text("connected")).to_be_visible()
            await expect(page.get_by_role("alert")).to_have_count(0)


async def _fail(*args: object, **kwargs: object) -> None:
    raise StorageError("the disk is gone")


async def test_the_feed_tells_of_lost_events(
    run: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were removed before the stream could read them."""
    await talk(run, turns=6)
    store_type = type(run.app.store)
    read_events = store_type.events

    async def read_behind_gap(*args: object) -> EventPage:
        page: EventPage = await read_events(*args)
        return page._replace(has_gap=True)

    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/live")
        await expect(page.get_by_text("connected")).to_be_visible()
        monkeypatch.setattr(store_type, "events", read_behind_gap)
        await expect(page.get_by_text("Some events are missing here")).to_be_visible()
        await watched.check_accessible()


async def test_the_overview_says_what_memory_saves(run: Running, browser: Browser) -> None:
    """In tokens, memory's own calls included; the chart has a table behind it, whose days are those
    of the ledger wherever the viewer is."""
    await talk(run, turns=20)
    async with open_page(browser, run.base, zone="America/Los_Angeles") as watched:
        page = watched.page
        await watched.open()
        saving = page.get_by_role("region", name="What memory saves")
        # notes of twenty turns are paid for, and save little before the conversation ends
        await expect(saving).to_contain_text("More tokens than without memory")
        await expect(saving.locator(".hero-figure")).to_have_class("hero-figure loss")
        await expect(saving).to_contain_text("20requests and their look-ups")
        stats = (await run.http.get(f"{run.base}/om/v1/stats")).json()["items"]
        sent = sum(sum(line["ledger"]["tokens"].values()) for line in stats)
        sent -= sum(line["ledger"]["tokens"]["output"] for line in stats)
        chart = page.get_by_role("region", name="Prompt tokens by day")
        await chart.get_by_text("Show as a table").click()
        await expect(chart.get_by_role("row").last).to_contain_text(f"{sent:,}")
        assert stats[0]["day"] == "2023-11-14"
        await expect(chart.get_by_role("row").nth(1)).to_contain_text("Nov 14, 2023")
        # the one bar stands in the middle, above its day
        bar, plot = chart.locator("rect").first, chart.locator(".tick-line line").first
        (bar_box, plot_box) = [await place.bounding_box() for place in (bar, plot)]
        assert bar_box is not None
        assert plot_box is not None
        assert find_middle(bar_box) == pytest.approx(find_middle(plot_box), abs=1)
        await watched.check_quiet()


async def test_the_chart_follows_a_window_that_becomes_narrow(
    run: Running, browser: Browser
) -> None:
    """The page is never wider than the window, and the chart fills its card."""
    await talk(run)
    async with open_page(browser, run.base) as watched:
        await watched.open("#/overview")
        chart = watched.page.locator(".chart")
        drawn = chart.locator("svg")
        for width, height in (WIDE, NARROW, WIDE):
            await watched.page.set_viewport_size({"width": width, "height": height})
            inside = await chart.evaluate(
                "(card) => card.clientWidth - 2 * parseFloat(getComputedStyle(card).paddingLeft)"
            )
            await expect(drawn).to_have_js_property("clientWidth", inside)
            assert await watched.page.evaluate("document.body.scrollWidth") == width
        await watched.check_quiet()


def find_middle(box: FloatRect) -> float:
    return box["x"] + box["width"] / 2


class PricedNotes(ScriptedServer):
    """A model server whose observer goes by a name that has a list price."""

    def choose_answer(self, model: str, messages: Sequence[Any], fault: Any) -> Mapping[str, Any]:
        role = OBSERVER if model == PRICED_OBSERVER else model
        return super().choose_answer(role, messages, fault)


async def test_the_overview_shows_a_loss_as_a_loss(tmp_path: Path, browser: Browser) -> None:
    """Notes of a short thread are paid for, and save nothing before it ends."""
    more = f'models: {{"gpt-4o": {{model: openai/{PRICED_OBSERVER}, economy: off}}}}'
    async with run_with_scripted_models(tmp_path, models=PricedNotes(), more=more) as run:
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": FACTS[0] * 40}]}
        for _ in range(3):
            answer = await run.http.post(
                f"{run.base}/v1/chat/completions", json=body, headers={"x-om-thread": "short"}
            )
            reply = answer.json()["choices"][0]["message"]
            body["messages"] += [reply, {"role": "user", "content": FACTS[1]}]
            await run.app.background.wait_idle()
        lines = (await run.http.get(f"{run.base}/om/v1/stats")).json()["items"]
        assert sum(line["ledger"]["saving"]["net"] for line in lines) < 0
        async with open_page(browser, run.base) as watched:
            await watched.open()
            saving = watched.page.get_by_role("region", name="What memory saves")
            await expect(saving).to_contain_text("Memory cost more than it saved−$0.0")
            await expect(saving).to_contain_text("Without memory$")
            await expect(saving).to_contain_text("Memory's own calls$0.0")
            await expect(saving).to_contain_text("Costs are at list prices.")
            await watched.check_quiet()


async def test_a_credential_that_no_header_carries_is_refused_in_words(
    run: Running, browser: Browser
) -> None:
    """Something else was copied with it. The server is not even asked."""
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        for credential in ("sk-a\u200b", "sk-\u00fc", "sk-\u0007"):
            await page.get_by_label("Key or admin token").fill(credential)
            await page.get_by_role("button", name="Sign in", exact=True).click()
            await expect(page.get_by_role("alert")).to_contain_text("characters that no key")
            await page.get_by_label("Key or admin token").fill("")
        await watched.check_accessible()
        await watched.check_quiet()


async def test_a_narrow_screen_shows_which_page_is_open(run: Running, browser: Browser) -> None:
    """The list of pages is wider than a telephone: it shows the one that the address names."""
    async with open_page(browser, run.base, size=NARROW) as watched:
        link = watched.page.get_by_role("link", name="Settings", exact=True)
        await watched.open("#/overview")
        await expect(link).not_to_be_in_viewport(ratio=1)
        await watched.open("#/settings")
        await expect(link).to_be_in_viewport(ratio=1)


async def test_a_setting_is_found_by_what_it_means(run: Running, browser: Browser) -> None:
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/settings")
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        await page.get_by_label("Key or admin token").fill(ADMIN_TOKEN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.get_by_role("columnheader", name="Set in").first).to_be_visible()
        await page.get_by_label("Find a setting").fill("free one")
        await expect(page.get_by_text("The TCP port. 0 takes a free one.")).to_be_visible()
        await expect(page.get_by_role("row")).to_have_count(2)
        await watched.check_quiet()


async def test_every_page_is_accessible(run: Running, browser: Browser) -> None:
    """axe-core finds nothing, on each page with much behind it and with nothing, in both themes, on a
    wide and a narrow screen. No page is wider than its window."""
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        await expect(page.get_by_role("heading", name="No conversations yet")).to_be_visible()
        await check_each_form(watched)
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        await check_each_form(watched)
        await page.get_by_label("Key or admin token").fill(ADMIN_TOKEN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await talk(run, turns=14)
        for place in (
            "overview",
            "threads",
            BOAT_THREAD_PLACE[2:],
            "search",
            "live",
            "audit",
            "settings",
        ):
            await page.evaluate("(place) => { location.hash = `#/${place}` }", place)
            current = page.locator("nav [aria-current]")
            await expect(current).to_have_text(
                re.compile(place.partition("/")[0].rstrip("s"), re.IGNORECASE)
            )
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            await expect(page.get_by_text("Loading…")).to_have_count(0)
            await check_each_form(watched)
        await page.evaluate("(place) => { location.hash = place }", BOAT_THREAD_PLACE)
        await page.get_by_role("button", name="Forget").click()
        await check_each_form(watched)
        await watched.check_quiet()


async def check_each_form(watched: Watched) -> None:
    """Check the page as it stands, in each theme and size, without loading it again. A theme changes
    no layout and a size no colour, so only the long form checks all four pairs."""
    sizes = (NARROW, WIDE)
    for size, theme in product(sizes, THEMES) if IS_LONG else zip(sizes, THEMES, strict=True):
        await watched.page.set_viewport_size({"width": size[0], "height": size[1]})
        await watched.page.emulate_media(color_scheme=theme)
        await watched.check_accessible()
        assert await watched.page.evaluate("document.documentElement.scrollWidth") <= size[0]
