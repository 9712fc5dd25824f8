"""The simulated store holds the contract of every store: what it finds is found of a store."""

from __future__ import annotations

import time

import pytest

from om_proxy.storage.base import Store
from tests.simulation.store import Disk, SimulatedStore
from tests.storage.contract import Opener, StoreContract


class TestSimulatedStore(StoreContract):
    """The whole contract over one disk."""

    @pytest.fixture
    def opener(self) -> Opener:
        disk = Disk(time.time)

        async def opened() -> Store:
            return SimulatedStore(disk)

        return opened
