"""Redis keeps the contract, and what only Redis promises."""

from __future__ import annotations

from tests.storage.contract import StoreContract


class TestRedis(StoreContract):
    """The whole contract under a prefix of its own."""

    has_index = False
