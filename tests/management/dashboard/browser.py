"""The system's Chromium over the dashboard, and what a page did that it must not do.

Playwright's own browsers are not on every machine, so the tests take the one on PATH, and are
skipped where there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE_SCRIPT = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
WIDE, NARROW = (1440, 900), (390, 844)
# as long as Playwright waits for a click; its five seconds for an expectation are short where both
# cores are busy
EXPECTATION_TIMEOUT_MS = 30_000
expect.set_options(timeout=EXPECTATION_TIMEOUT_MS)
Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")

# a report of the policy stands in the page, because the page may send none
_WATCH_POLICY = """
window.policyReports = [];
addEventListener("securitypolicyviolation", (event) =>
  window.policyReports.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`));
"""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def require_chromium() -> str:
    """Return the browser's path; skip the test, loudly, where there is none."""
    path = find_chromium()
    if path is None:
        pytest.skip("THE DASHBOARD IS NOT TESTED IN A BROWSER: no Chromium on PATH")
    return path


def list_launch_arguments() -> list[str]:
    """A container's root has no sandbox; everybody else keeps it. No page needs a GPU, whose part
    software would play."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    return ["--disable-gpu", "--disable-software-rasterizer", *sandbox]


@dataclass
class Watched:
    """A page of the browser, and everything about it that a test must know of."""

    page: Page
    base: str  # the proxy's address
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    async def open(self, place: str = "") -> None:
        """Open a place of the dashboard, such as `#/threads`."""
        await self.page.goto(f"{self.base}/om/{place}")
        await self.page.wait_for_selector("h1")

    async def check_quiet(self) -> None:
        """Fail for a message on the console, a request elsewhere, and a report of the policy."""
        assert self.console == []
        host = urlsplit(self.base).netloc
        assert [url for url in self.requests if urlsplit(url).netloc != host] == []
        assert await self.page.evaluate("window.policyReports") == []

    async def check_accessible(self) -> None:
        """Fail for each rule of WCAG 2.2 AA that axe-core finds broken."""
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(f"() => {{ {AXE_SCRIPT} }}")
        # one place of each rule that holds is enough: all of them take longer than the rules do
        options = {
            "runOnly": {"type": "tag", "values": list(AXE_TAGS)},
            "resultTypes": ["violations"],
        }
        found = await self.page.evaluate("(options) => axe.run(document, options)", options)
        broken = [
            f"{rule['id']}: {node['html'][:200]} — {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]
        assert not broken, "\n".join(broken)
        assert len(found["passes"]) > 10  # it did run

    async def text(self, selector: str = "main") -> str:
        return await self.page.inner_text(selector)


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    path = require_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=list_launch_arguments()
        )
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser,
    base: str,
    *,
    size: tuple[int, int] = WIDE,
    theme: Theme = "light",
    zone: str = "Europe/Lisbon",
    **context_options: Any,
) -> AsyncIterator[Watched]:
    """Open a page of its own cookies and storage; its animations are off."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=theme,
        reduced_motion="reduce",
        timezone_id=zone,
        locale="en-GB",
        **context_options,
    )
    try:
        await context.add_init_script(_WATCH_POLICY)
        page = await context.new_page()
        watched = Watched(page, base)
        page.on("console", lambda message: watched.console.append(message.text))
        page.on("pageerror", lambda error: watched.console.append(str(error)))
        page.on("request", lambda request: watched.requests.append(request.url))
        yield watched
    finally:
        await context.close()
