"""Measure how soon the overview is seen on a slow network, and how smoothly a long thread scrolls.

Run by `scripts/dashboard-speed`. It prints figures and fails on none: they are those of the machine
and of what else runs on it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page

from om_proxy.observability import logs
from om_proxy.testing import loopback
from om_proxy.testing.scripted import ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.dashboard.browser import open_browser, open_page

ROUNDS = 3
MESSAGES = 5_000
# of Chromium: bytes each second, and milliseconds that each request takes longer. The developer
# tools multiply the round trip of their profile by 3.75; other tools take it as it is.
PROFILES = {
    "no throttling": None,
    "Fast 3G, 150 ms a request": (1_600_000 / 8, 750_000 / 8, 150),
    "Fast 3G as in DevTools, 562 ms a request": (1_600_000 / 8 * 0.9, 750_000 / 8 * 0.9, 562.5),
}
HIGH = "observation: {message_tokens: 2000000, buffer_tokens: false}"
_FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_WATCH_LONG_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((e) => e.duration)))
    .observe({ type: "longtask", buffered: false });
}"""
_SCROLL = """async () => {
  const column = document.querySelector(".column-body");
  const pause = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const lines = () => document.querySelectorAll(".line-box").length;
  for (let still = 0; still < 90; ) {
    const [before, at] = [lines(), column.scrollTop];
    column.scrollBy(0, 1_200);
    await pause();
    still = lines() > before || column.scrollTop > at ? 0 : still + 1;
  }
  return lines();
}"""


class ShortServer(ScriptedServer):
    """A model server that answers any history in one word."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await loopback.read_body(receive)
        choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}}
        await loopback.send_json(send, 200, {"object": "chat.completion", "choices": [choice]})


async def talk(run: Running, thread: str, count: int) -> None:
    """Send one request whose history has so many messages."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[n % 2], "content": f"Point {n}: {'and so it goes on, ' * 12}"}
        for n in range(count - 1)
    ]
    body = {"model": "scripted-actor", "messages": messages}
    url = f"{run.base}/v1/chat/completions"
    answer = await run.http.post(url, json=body, headers={"x-om-thread": thread})
    assert answer.status_code == 200, answer.text


async def measure_paint(
    browser: Browser, base: str, profile: tuple[float, float, float] | None
) -> tuple[float, float]:
    """Return the milliseconds to the first paint, and until the figures stand on the page."""
    async with open_page(browser, base) as watched:
        page = watched.page
        if profile is not None:
            await throttle(page, *profile)
        await page.goto(f"{base}/om/#/overview", wait_until="commit")
        await page.locator(".hero-figure").wait_for()
        shown = float(await page.evaluate("performance.now()"))
        return float(await page.evaluate(_FIRST_PAINT)), shown


async def throttle(page: Page, down: float, up: float, latency_ms: float) -> None:
    session = await page.context.new_cdp_session(page)
    await session.send("Network.enable")
    conditions = {"offline": False, "downloadThroughput": down, "uploadThroughput": up}
    await session.send("Network.emulateNetworkConditions", {**conditions, "latency": latency_ms})


async def measure_scrolling(browser: Browser, base: str) -> tuple[int, list[float]]:
    """Scroll a thread from its first message to its last. Return the messages that stand on the
    page, and the milliseconds of each task above 50 ms."""
    async with open_page(browser, base) as watched:
        page = watched.page
        await watched.open("#/thread/local/long/long")
        await page.locator(".line-box").first.wait_for()
        await page.wait_for_load_state("networkidle")
        await page.evaluate(_WATCH_LONG_TASKS)
        count = int(await page.evaluate(_SCROLL))
        return count, [float(ms) for ms in await page.evaluate("window.longTasks")]


async def measure() -> None:
    with tempfile.TemporaryDirectory(prefix="om-proxy-speed-") as folder:
        async with (
            run_with_scripted_models(Path(folder), HIGH, models=ShortServer()) as run,
            open_browser() as browser,
        ):
            await talk(run, "short", 20)
            await talk(run, "long", MESSAGES)
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            for name, profile in PROFILES.items():
                rounds = [await measure_paint(browser, run.base, profile) for _ in range(ROUNDS)]
                first, shown = (statistics.median(times) for times in zip(*rounds, strict=True))
                print(f"{name}: first paint {first:.0f} ms, figures {shown:.0f} ms")
            count, tasks = await measure_scrolling(browser, run.base)
            longest = max(tasks, default=0.0)
            print(f"{count} messages: {len(tasks)} tasks above 50 ms, the longest {longest:.0f} ms")


def main() -> None:
    logs.configure_log("off")
    asyncio.run(measure())


if __name__ == "__main__":
    main()
