"""Create a part of the server when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FirstUse(Generic[T]):
    """A part that a server may never need. `create` imports what the part needs and returns it. It
    runs in a thread, so that only those wait who ask for the part: an import takes up to half a
    second."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._creation: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the part, which is created once. If `create` raises an error, raise it; the next
        call tries again."""
        creation = self._creation
        if creation is None or (creation.done() and (creation.cancelled() or creation.exception())):
            creation = asyncio.create_task(asyncio.to_thread(self._create))
            self._creation = creation
        return await asyncio.shield(creation)  # others wait for it too
