"""Open the store for the commands that change how all of it is encrypted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from om_proxy.cli.store_command import run_quietly
from om_proxy.doctor.report import find_database
from om_proxy.errors import UsageError
from om_proxy.settings import load
from om_proxy.storage.encryption.conversion import ConvertibleStore
from om_proxy.store_opening import open_store


def run_conversion(
    config: str | None,
    work: Callable[[ConvertibleStore], Coroutine[Any, Any, int]],
    *,
    advice: str,
    begins_encryption: bool = False,
    moves_keys: bool = False,
) -> int:
    """Run `work` on the store that the configuration names, and return its exit status. `advice`:
    what to do first if there is no master key."""

    async def open_and_work() -> int:
        settings = load(config)
        if not settings.storage.key_sources:
            raise UsageError(f"set storage.encryption_key first{advice}")
        find_database(settings)
        store = await open_store(
            settings.storage,
            create=False,
            begins_encryption=begins_encryption,
            moves_keys=moves_keys,
        )
        try:
            # each backend is one
            return await work(cast(ConvertibleStore, store))
        finally:
            await store.close()

    return run_quietly(open_and_work())
