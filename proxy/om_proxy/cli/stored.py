"""What the commands that change stored memories share. The server may run meanwhile: it sees what
has changed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from om_proxy.app import open_store
from om_proxy.cli.exit_status import INTERRUPTED
from om_proxy.doctor.report import database
from om_proxy.settings import load
from om_proxy.storage.base import Store
from om_proxy.telemetry.logs import configure


def run_with_store(config: str | None, work: Callable[[Store], Coroutine[Any, Any, int]]) -> int:
    """Run `work` on the store that the configuration names, and close the store after it; the exit
    status of the work."""
    configure("off")  # what the command prints is its story

    async def open_and_work() -> int:
        settings = load(config)
        database(settings)
        store = await open_store(settings.storage.url)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(open_and_work())
    except KeyboardInterrupt:
        return INTERRUPTED


def escape_unprintable(text: str) -> str:
    """Make visible what would move the cursor or hide itself: a model wrote the titles."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def print_error(text: str) -> None:
    print(f"om-proxy: {text}", file=sys.stderr)
