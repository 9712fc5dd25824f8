"""The overview says which requests have no memory, and what to do."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Browser, expect

from om_proxy.edge.vocabulary import REASON_ROWS
from om_proxy.management.dashboard.pages import load_site
from om_proxy.observability.figures.fact_counter import REFUSED_REASON
from tests.e2e.running import Running
from tests.management.dashboard.boat_threads import ADMIN_TOKEN
from tests.management.dashboard.browser import open_page
from tests.management.dashboard.test_pages import ROOT

BODY = {"model": "scripted-actor", "messages": [{"role": "user", "content": "hi"}]}


def test_each_reason_and_client_has_its_page() -> None:
    """The page says of each reason of a request without memory what to do, and names a page that
    exists, of a client too."""
    site = load_site()
    made = re.findall(rb"^export const \w+ = (.*);$", site.assets["reasons.js"].plain, re.MULTILINE)
    reasons, clients = map(json.loads, made)
    off_reasons = [
        name for row in REASON_ROWS if "off" in row.sent_with.split() for name in row.names
    ]
    assert all(reasons[name][1] for name in (*off_reasons, REFUSED_REASON))
    pages = [*(page for *_, page in reasons.values()), *clients.values()]
    assert [page for page in pages if not (ROOT / page).is_file()] == []


@pytest.mark.asyncio(loop_scope="session")
async def test_requests_without_memory_are_told_by_reason(run: Running, browser: Browser) -> None:
    """By client, and API or route, with the page that helps. To an admin, since they are those of all
    callers."""
    chat, other = f"{run.base}/v1/chat/completions", f"{run.base}/v1/embeddings"
    for _ in range(2):
        await run.http.post(chat, json=BODY, headers={"user-agent": "OpenAI/Python 2.54.0"})
    await run.http.post(other, json={}, headers={"x-om-thread": "t"})
    async with open_page(browser, run.base) as watched:
        page = watched.page
        card = page.get_by_role("region", name="Requests without memory")
        await watched.open()
        await expect(card).to_have_count(0)
        await page.get_by_role("button", name="Sign in", exact=True).first.click()
        await page.get_by_label("Key or admin token").fill(ADMIN_TOKEN)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        rows = card.get_by_role("row")
        await expect(rows.nth(1)).to_contain_text("The request names no thread")
        no_thread, route = (rows.nth(place).get_by_role("cell") for place in (1, 2))
        await expect(no_thread.nth(0)).to_have_text("openai-python")
        await expect(no_thread.nth(1)).to_have_text("chat")
        await expect(no_thread.nth(2)).to_have_text("2")
        await expect(no_thread.nth(3)).to_contain_text("docs/clients/openai-python.md")
        await expect(rows.nth(2)).to_contain_text("its route has no memory")
        await expect(route.nth(0)).to_have_text("python-httpx")
        await expect(route.nth(1)).to_have_text("/v1/embeddings")
        await expect(route.nth(3)).to_contain_text("docs/clients/README.md")
        await expect(rows).to_have_count(3)
        await watched.check_accessible()
        await watched.check_quiet()
