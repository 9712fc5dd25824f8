"""The browser of all tests, and a proxy with conversations of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.running import Running, run_with_scripted_models
from tests.management.dashboard.boat_threads import ADMIN_TOKEN_SETTINGS
from tests.management.dashboard.browser import open_browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Each test opens a page of it, with cookies and storage of its own."""
    async with open_browser() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, more=ADMIN_TOKEN_SETTINGS) as running:
        yield running
