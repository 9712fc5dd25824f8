"""Destroy the keys of what a store has removed, where a key store has them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from om_proxy.common.errors import KeysAway
from om_proxy.storage.values.records import ForgetResult

if TYPE_CHECKING:
    from om_proxy.storage.encryption.separate_keys import KeyRows, SeparateKeys


class DoomedKeys:
    """The keys that the data says are to be destroyed. `separate`: None: keys are beside the data,
    and went with it."""

    def __init__(self, separate: SeparateKeys | None, rows: KeyRows) -> None:
        self._separate = separate
        self._rows = rows

    async def destroy(self) -> bool:
        """Destroy them. Return False if any is left."""
        return self._separate is None or await self._separate.destroy_doomed(self._rows)

    async def settle(self, removed: ForgetResult) -> ForgetResult:
        """Destroy them. Return the result with what is true of the removed bytes then."""
        return removed.settle_keys(is_destroyed=await self.destroy())

    async def wait_destroyed(self) -> None:
        """Return once there is none."""
        if self._separate:
            await self._separate.wait_destroyed(self._rows)

    async def sweep(self) -> None:
        """Destroy old keys that belong to nothing."""
        if self._separate:
            with suppress(KeysAway):  # the next hour will do
                await self._separate.sweep(self._rows)
