"""A store that fails as a test says, around a real one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from om_proxy.app.store_opening import open_store
from om_proxy.settings.config import StorageSettings
from om_proxy.storage.base import Store


class FailingStore:
    """A store whose calls of `method` (None: of any) hang or raise until `well`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trouble: Exception | type[TimeoutError] | None = None
        self._method: str | None = None

    def slow(self) -> None:
        self._trouble, self._method = TimeoutError, None

    def raising(self, trouble: Exception, method: str | None = None) -> None:
        self._trouble, self._method = trouble, method

    def well(self) -> None:
        self._trouble = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def troubled(*args: Any, **named: Any) -> Any:
            if self._trouble is not None and name != "close" and self._method in (None, name):
                if self._trouble is TimeoutError:
                    await asyncio.Event().wait()
                assert isinstance(self._trouble, Exception)
                raise self._trouble
            return await method(*args, **named)

        return troubled


def wrap_opened_stores(monkeypatch: pytest.MonkeyPatch) -> list[FailingStore]:
    """Let every app open its store behind a FailingStore from now on. The list holds them."""
    opened: list[FailingStore] = []

    async def opening(
        settings: StorageSettings, generations: int | None = None, **named: Any
    ) -> FailingStore:
        opened.append(FailingStore(await open_store(settings, generations, **named)))
        return opened[-1]

    monkeypatch.setattr("om_proxy.app.store_opening.open_store", opening)
    return opened
