"""Talk to a model from the dashboard."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from om_proxy.management.api.sign_in import SignIn
from om_proxy.testing.scripted import ACTOR, Fault, ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN, ADMIN_TOKEN_SETTINGS
from tests.management.dashboard.browser import NARROW, open_page

pytestmark = pytest.mark.asyncio(loop_scope="session")
REMARK = "And so on. " * 60


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_label("Your message")).to_have_value("")


async def test_notes_appear_while_one_talks(run: Running, browser: Browser) -> None:
    """With the receipt of each answer, and the next prompt. A key is in no storage."""
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/try")
        await expect(page.get_by_label("Model", exact=True)).to_have_value(ACTOR)
        await page.get_by_label("Key of the model server").fill("sk-mine")
        await say(page, "Our boat lies at pier 14.")
        await expect(page.locator(".receipt")).to_contain_text("raw")
        await say(page, f"The mast is 12.6 m high. {REMARK}")
        await run.app.background.wait_idle()
        await say(page, "At which pier does our boat lie?")
        await expect(page.locator(".receipt").last).to_contain_text("applied")
        memory = page.get_by_role("region", name="Memory")
        await expect(memory.get_by_role("article").first).to_contain_text("pier 14")
        prompt = page.get_by_role("region", name="What the model sees")
        await expect(prompt).to_contain_text("Notes in the prompt")
        assert await page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]
        await watched.check_accessible()
        await watched.check_quiet()
        # another page asks as the visitor again, whose threads hold none of it
        await page.get_by_role("link", name="Threads").click()
        await expect(page.get_by_role("heading", name="No conversations yet")).to_be_visible()
    (request, *_) = run.models.requests_to(ACTOR)
    assert (b"authorization", b"Bearer sk-mine") in request.headers
    assert (await run.memory()).key.thread.startswith("try-")


async def test_the_admin_token_goes_to_no_model(run: Running, browser: Browser) -> None:
    """The conversation is one without a key, and has a page of its own."""
    async with open_page(browser, run.base, size=NARROW) as watched:
        page = watched.page
        await watched.open()
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_label("Key or admin token").fill(ADMIN_TOKEN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_role("link", name="Try it").click()
        await expect(page.get_by_label("Model", exact=True)).to_have_value(ACTOR)
        await say(page, "Our boat lies at pier 14.")
        await page.get_by_role("tab", name="Next prompt").click()
        await expect(page.get_by_text("tokens go to the model")).to_be_visible()
        await page.get_by_role("link", name="Its page").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Our boat lies at pier 14.")
        await watched.check_quiet()
    for request in run.models.requests:
        assert ADMIN_TOKEN not in str(request.headers)


async def test_a_refusal_is_shown_and_no_word_is_lost(tmp_path: Path, browser: Browser) -> None:
    models = ScriptedServer(faults=[Fault(kind="http", model=ACTOR, status=401, times=1)])
    more = ADMIN_TOKEN_SETTINGS
    async with (
        run_with_scripted_models(tmp_path, models=models, more=more, sign_in=SignIn()) as run,
        open_page(browser, run.base) as watched,
    ):
        page = watched.page
        await watched.open("#/try")
        await expect(page.get_by_label("Model", exact=True)).to_have_value(ACTOR)
        await page.get_by_label("Your message").fill("Our boat lies at pier 14.")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".notice")).to_be_visible()
        await expect(page.get_by_label("Your message")).to_have_value("Our boat lies at pier 14.")
        await say(page, "Our boat lies at pier 14.")
        await expect(page.locator(".receipt")).to_contain_text("raw")
