"""The simulated store holds the contract of every store: what it finds is found of a store."""

from __future__ import annotations

import time

import pytest

from om_proxy.storage.base import Store
from tests.simulation.store import Disk, SimulatedStore
from tests.storage.contract import Opener, StoreContract


class TestSimulatedStore(StoreContract):
    """The contract over one disk, but for moving: no thread of a simulation leaves its store."""

    has_index = False

    test_restored_thread_answers_as_it_did = None  # type: ignore[assignment] # it restores none
    test_nothing_is_restored_over_what_is_stored = None  # type: ignore[assignment] # as above
    test_a_repaired_thread_keeps_its_row = None  # type: ignore[assignment] # as above
    test_restored_threads_share_their_log = None  # type: ignore[assignment] # as above
    test_no_field_of_a_restored_message_is_left_out = None  # type: ignore[assignment] # as above
    test_a_thread_loses_settings_that_break_a_rule = None  # type: ignore[assignment] # as above
    test_values_that_no_memory_has_are_put_aside = None  # type: ignore[assignment] # decodes none
    test_odd_bytes_survive = None  # type: ignore[assignment] # as above
    test_odd_text_survives = None  # type: ignore[assignment] # as above
    test_secret_of_another_store = None  # type: ignore[assignment] # as above

    @pytest.fixture
    def opener(self) -> Opener:
        disk = Disk(time.time)

        async def open_store() -> Store:
            return SimulatedStore(disk)

        return open_store
