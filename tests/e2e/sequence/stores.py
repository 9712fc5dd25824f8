"""The stores that several processes can share: each opener gives the address of an empty one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

OpenStore = Callable[[Path], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def open_sqlite(folder: Path) -> AsyncIterator[str]:
    yield f"sqlite:///{folder}/om.db"


# a further backend adds a line; it takes away what it made when its block ends
STORES: Mapping[str, OpenStore] = {"sqlite": open_sqlite}
