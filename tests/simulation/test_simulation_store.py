"""The simulated store holds the contract of every store: what it finds is found of a store."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "storage"))  # the contract's own helpers are imported by bare name

from contract import Opener, StoreContract

from om_proxy.storage.base import Store
from tests.simulation.store import Disk, SimulatedStore


class TestSimulatedStore(StoreContract):
    """The whole contract over one disk."""

    @pytest.fixture
    def opener(self) -> Opener:
        disk = Disk(time.time)

        async def opened() -> Store:
            return SimulatedStore(disk)

        return opened
