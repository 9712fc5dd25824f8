"""Take the pictures of the dashboard in docs/dashboard: the demo's five days behind it, on a wide and
a narrow screen, in both themes.

Run by `scripts/dashboard-shots`. Two runs differ a little, because notes are made in the background.
So no test compares the pictures with a new run.
"""

from __future__ import annotations

import asyncio
import io
import subprocess
import tempfile
from pathlib import Path

from playwright.async_api import Page
from rich.console import Console

from om_proxy.cli.demo.kept import serve_kept
from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.story import load_story
from om_proxy.observability.telemetry import logs
from tests.management.dashboard.browser import NARROW, THEMES, WIDE, open_browser, open_page

PICTURES = Path(__file__).parents[3] / "docs" / "dashboard"
# picture → its place on the dashboard
PLACES = {
    "overview": "#/overview",
    "search": "#/search?q=height+limit+dock",
    "thread": "#/thread/local/van-planner/van-planner",
}
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
                        await watched.page.wait_for_timeout(800)  # until what it asks for is drawn
                        await save(watched.page, PICTURES / f"{name}-{size_name}-{theme}.png")
                    await watched.check_quiet()


async def save(page: Page, path: Path) -> None:
    """Save what the window shows."""
    await asyncio.to_thread(write_picture, path, await page.screenshot())


def write_picture(path: Path, content: bytes) -> None:
    """Write it with 256 colours: a third of the bytes, and no visible loss."""
    command = ["pngquant", "--speed", "1", "--strip", "256", "-"]
    path.write_bytes(subprocess.check_output(command, input=content))


def main() -> None:
    logs.configure_log("off")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="om-proxy-shots-") as folder:
        asyncio.run(take_pictures(Path(folder)))


if __name__ == "__main__":
    main()
