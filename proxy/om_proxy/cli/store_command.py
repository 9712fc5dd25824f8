"""Run the commands that change stored memories. A server may run at the same time: it sees every
change."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from om_proxy.app import open_store
from om_proxy.cli.exit_status import INTERRUPTED
from om_proxy.doctor.report import find_database
from om_proxy.settings import load
from om_proxy.storage.base import Store
from om_proxy.telemetry.logs import configure_log


def run_with_store(config: str | None, work: Callable[[Store], Coroutine[Any, Any, int]]) -> int:
    """Run `work` on the store that the configuration names, close the store, and return the exit
    status of the work."""
    configure_log("off")  # the command prints what matters

    async def open_and_work() -> int:
        settings = load(config)
        find_database(settings)
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
    """Escape characters that would move the cursor or stay invisible: models write titles."""
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def print_error(text: str) -> None:
    print(f"om-proxy: {text}", file=sys.stderr)
