"""The store's secret as one process knows it, and the names of threads that are made with it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from om_proxy.memory.model import Key
from om_proxy.storage.shared.forgetting import (
    FirstTurn,
    LabelThread,
    create_thread_labeler,
    digest_names,
)
from om_proxy.storage.values.changes import Change

SECRET_BYTES = 32

# Returns the stored secret; where there is none, the one that is proposed is stored.
KeepSecret = Callable[[bytes], Awaitable[bytes]]
# Stores another secret, if the store may take one.
AdoptSecret = Callable[[bytes], Awaitable[object]]


class StoreSecret:
    """The secret of one store. `keep`, `adopt`: the backend's ways to its row."""

    def __init__(self, keep: KeepSecret, adopt: AdoptSecret) -> None:
        self._keep = keep
        self._adopt = adopt
        self.known: bytes | None = None  # None: not read yet

    async def read(self, proposed: bytes | None = None) -> bytes:
        """Return `Store.secret`."""
        self.known = await self._keep(proposed or os.urandom(SECRET_BYTES))
        return self.known

    async def adopt(self, secret: bytes) -> bool:
        """Return `Store.adopt_secret`."""
        await self._adopt(secret)
        return await self.read() == secret

    async def create_labeler(self) -> LabelThread:
        return create_thread_labeler(await self.read())

    async def digest_names(self, key: Key) -> tuple[bytes, ...]:
        return digest_names(self.known or await self.read(), key)

    async def find_first_turn(self, change: Change) -> FirstTurn | None:
        if change.before.version or change.began_at is None:
            return None  # as for nearly every commit: without the secret
        return FirstTurn(await self.digest_names(change.before.key), change.began_at)
