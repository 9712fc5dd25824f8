"""The part of the contract that a second way to a backend is held to in each run: the whole is the
first way's, and with OM_TEST_LONG=all the second's too."""

from __future__ import annotations

from collections.abc import Callable

from tests.storage.contract import StoreContract
from tests.support.long_forms import IS_LONG


def keep_part(*names: str) -> Callable[[type[StoreContract]], type[StoreContract]]:
    """Return what leaves the contract these tests alone."""

    def kept(contract: type[StoreContract]) -> type[StoreContract]:
        assert all(callable(getattr(contract, name, None)) for name in names)
        for name in dir(contract):
            if name.startswith("test_") and name not in names and not IS_LONG:
                setattr(contract, name, None)
        return contract

    return kept
