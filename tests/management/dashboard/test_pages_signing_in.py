"""Sign in to the dashboard by the link that the server prints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from om_proxy.management.api.sign_in import SESSION_LIFE_S, SignIn
from om_proxy.settings.config import parse
from om_proxy.settings.identity.naming import encode_name
from tests.e2e.running import Clock, Running, run_with_scripted_models
from tests.management.dashboard.browser import open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sign_in(clock: Clock) -> SignIn:
    return SignIn(clock)


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path, sign_in: SignIn) -> AsyncIterator[Running]:
    """A proxy with one thread of a key."""
    async with run_with_scripted_models(tmp_path, sign_in=sign_in) as running:
        await running.chat(encode_name("plan"), key="sk-a").say("One.")
        yield running


async def find_place(run: Running) -> str:
    key = (await run.memory()).key
    return f"#/thread/{key.tenant}/{key.resource}/{key.thread}"


async def test_the_link_signs_in_for_later_tabs(
    run: Running, sign_in: SignIn, clock: Clock, browser: Browser
) -> None:
    """The token leaves the address. A page that is loaded again stays, a new tab too, until the
    session ends."""
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await page.goto(sign_in.link_to(run.base))
        await expect(page.get_by_text("All threads", exact=True)).to_be_visible()
        assert "sign-in" not in page.url
        assert await page.evaluate("[document.cookie, sessionStorage.length]") == ["", 0]
        place = await find_place(run)
        await watched.open(place)
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text("One.")
        await watched.check_quiet()
        tab = await page.context.new_page()
        await page.close()
        await tab.goto(f"{run.base}/om/{place}")
        await expect(tab.get_by_role("heading", level=1)).to_have_text("One.")
        clock.now += SESSION_LIFE_S
        await tab.reload()
        await expect(tab.get_by_role("heading", name="Sign in to see it")).to_be_visible()


async def test_a_page_that_needs_signing_in_comes_back(
    run: Running, sign_in: SignIn, browser: Browser
) -> None:
    """By a key as by the link, opened where the page stands."""
    place = await find_place(run)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open(place)
        await page.get_by_role("main").get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_label("Key or admin token").fill("sk-a")
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("One.")
        await page.reload()
        await expect(page.get_by_role("heading", level=1)).to_have_text("One.")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to see it")).to_be_visible()
        await page.evaluate("(link) => { location.href = link; }", sign_in.link_to(run.base))
        await expect(page.get_by_role("heading", level=1)).to_have_text("One.")
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in to see it")).to_be_visible()
        assert [text for text in watched.console if "404" not in text] == []


async def test_a_link_that_was_used_says_so(
    run: Running, sign_in: SignIn, browser: Browser
) -> None:
    """A visitor who is signed in already sees the pages all the same."""
    link = sign_in.link_to(run.base)
    async with open_page(browser, run.base) as watched:
        await watched.page.goto(link)
        await expect(watched.page.get_by_text("All threads", exact=True)).to_be_visible()
        await watched.page.goto("about:blank")
        await watched.page.goto(link)
        await expect(watched.page.get_by_text("All threads", exact=True)).to_be_visible()
    async with open_page(browser, run.base) as watched:
        await watched.page.goto(link)
        await expect(watched.page.get_by_text("This link was used already")).to_be_visible()
        await watched.check_accessible()
        await watched.page.get_by_role("button", name="Cancel").click()
        await expect(watched.page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_the_page_looks_again_when_a_link_was_opened_elsewhere(
    tmp_path: Path, browser: Browser
) -> None:
    """Where the API asks everybody, a tab that waits for signing in goes on by itself."""
    sign_in = SignIn()
    more = "server: {api: admin, admin_token: a-long-admin-token}"
    assert parse(more).server.is_loopback
    async with (
        run_with_scripted_models(tmp_path, more=more, sign_in=sign_in) as run,
        open_page(browser, run.base) as watched,
    ):
        await watched.open("#/settings")
        await expect(watched.page.get_by_label("Key or admin token")).to_be_visible()
        tab = await watched.page.context.new_page()
        await tab.goto(sign_in.link_to(run.base))
        await expect(tab.get_by_role("heading", name="Overview")).to_be_visible()
        await watched.page.evaluate("dispatchEvent(new Event('focus'))")
        await expect(watched.page.get_by_role("heading", name="Settings")).to_be_visible()
