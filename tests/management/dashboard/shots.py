"""Take the pictures of the dashboard in docs/dashboard: the demo's five days behind it, on a wide and
a narrow screen, in both themes.

Run by `scripts/dashboard-shots`. With a folder as argument, take pictures of every page instead, with
the demo's data, with 200 threads and empty, to look at. Two runs differ a little, because notes are made in the background.
So no test compares the pictures with a new run.
"""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page, expect
from rich.console import Console

from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.stage import serve_kept
from om_proxy.cli.demo.story import load_story
from om_proxy.observability import logs
from tests.e2e.running import run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN, ADMIN_TOKEN_SETTINGS
from tests.management.dashboard.browser import NARROW, THEMES, WIDE, open_browser, open_page
from tests.management.dashboard.many_threads import talk_for_weeks

PICTURES = Path(__file__).parents[3] / "docs" / "dashboard"
# picture → its place on the dashboard
PLACES = {
    "overview": "#/overview",
    "search": "#/search?q=height+limit+dock",
    "thread": "#/thread/local/van-planner/van-planner",
}
EVERY_PAGE = {
    **{page: f"#/{page}" for page in ("overview", "threads", "live", "try", "audit", "settings")},
    "search": "#/search?q=crane+dock",
    "search-notes": "#/search?q=crane+dock&in=notes",
    "nothing-found": "#/search?q=zeppelin",
}
KEEP_TOKEN = f"sessionStorage.setItem('om-credential', '{ADMIN_TOKEN}')"
SIZES = {"wide": WIDE, "narrow": NARROW}


async def take_pictures(folder: Path) -> None:
    story = load_story()
    await play_story(story, Console(file=io.StringIO()), kept_folder=folder)
    async with serve_kept(story, folder, 0) as served, open_browser() as browser:
        for theme in THEMES:
            for size_name, size in SIZES.items():
                async with open_page(browser, served.url, size=size, theme=theme) as watched:
                    for name, place in PLACES.items():
                        await watched.open(place)
                        await wait_until_drawn(watched.page)
                        await save(watched.page, PICTURES / f"{name}-{size_name}-{theme}.png")
                    await watched.check_quiet()


async def look_at_every_page(folder: Path) -> None:
    """Take pictures of every page of three stores."""
    story = load_story()
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as many:
        async with open_browser() as browser:
            for name, threads in (("empty", 0), ("many", 200)):
                place = Path(many) / name
                place.mkdir()
                async with run_with_scripted_models(place, more=ADMIN_TOKEN_SETTINGS) as run:
                    await talk_for_weeks(run, threads)
                    await take_all(browser, run.base, folder / name, KEEP_TOKEN)
            await play_story(story, Console(file=io.StringIO()), kept_folder=Path(kept))
            async with serve_kept(story, Path(kept), 0) as served:
                await take_all(browser, served.url, folder / "demo")


async def take_all(browser: Browser, base: str, folder: Path, script: str = "") -> None:
    """Take each page whole, and the first thread and resource of the lists."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    for theme in THEMES:
        for size_name, size in SIZES.items():
            async with open_page(browser, base, size=size, theme=theme) as watched:
                page = watched.page
                await page.add_init_script(script)
                await watched.open("#/threads")
                await wait_until_drawn(page)
                lines = page.locator("a.line")
                places = dict(EVERY_PAGE)
                if await lines.count():
                    places["thread"] = str(await lines.first.get_attribute("href"))
                    places["resource"] = "/".join(places["thread"].split("/")[:-1]).replace(
                        "/thread/", "/resource/"
                    )
                for name, place in places.items():
                    await watched.open(place)
                    await wait_until_drawn(page)
                    file = folder / f"{name}-{size_name}-{theme}.png"
                    await page.screenshot(path=file, full_page=True)


async def wait_until_drawn(page: Page) -> None:
    """Wait until nothing is being read, and what came is drawn."""
    await page.wait_for_timeout(800)
    await expect(page.locator(".waiting")).to_have_count(0)
    await page.wait_for_timeout(200)


async def save(page: Page, path: Path) -> None:
    """Save what the window shows."""
    await asyncio.to_thread(write_picture, path, await page.screenshot())


def write_picture(path: Path, content: bytes) -> None:
    """Write it with 256 colours: a third of the bytes, and no visible loss."""
    command = ["pngquant", "--speed", "1", "--strip", "256", "-"]
    path.write_bytes(subprocess.check_output(command, input=content))


def main() -> None:
    logs.configure_log("off")
    if len(sys.argv) > 1:
        asyncio.run(look_at_every_page(Path(sys.argv[1])))
        return
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="om-proxy-shots-") as folder:
        asyncio.run(take_pictures(Path(folder)))


if __name__ == "__main__":
    main()
