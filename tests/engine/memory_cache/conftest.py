"""The store of the room's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.memory_cache.watched_store import (
    WatchedStore,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[WatchedStore]:
    opened = await WatchedStore.open(tmp_path / "om.db")
    assert isinstance(opened, WatchedStore)
    opened.asked = []
    yield opened
    await opened.close()
