"""An encrypted PostgreSQL schema keeps the contract."""

from __future__ import annotations

import pytest

from om_proxy.storage.base import Store
from om_proxy.storage.encryption.master_keys import MasterKeys
from om_proxy.storage.postgres.store import PostgresOptions, PostgresStore
from tests.storage.contract import Opener, StoreContract
from tests.storage.contract_part import keep_part

MASTER = bytes(range(32))
# what reads or writes an encrypted column by SQL of its own
PART = (
    "test_load_gives_what_was_committed",
    "test_conflict_writes_nothing",
    "test_superseded_messages_stay_but_are_not_live",
    "test_activation_adds_to_the_generation",
    "test_older_generations_stay_as_they_were",
    "test_pending_reflection_comes_and_goes",
    "test_erased_notes_keep_their_place",
    "test_erasing_shared_notes_clears_what_others_were_told",
    "test_odd_text_survives",
    "test_page_of_all_messages",
    "test_tails_of_other_threads",
    "test_forgetting_takes_it_out_of_the_log",
    "test_forgetting_uncovers_what_cannot_be_told_apart",
    "test_forgetting_clears_what_others_were_told",
    "test_with_the_last_thread_its_shared_log_goes",
    "test_work_in_flight_brings_no_forgotten_resource_back",
    "test_a_moved_log_calls_its_threads_as_the_new_tenant_does",
    "test_each_of_both_is_told_for_itself",
    "test_title_of_a_line_changes_with_it",
    "test_titles_of_tenants_are_searched_if_asked",
    "test_events_are_stored_with_their_commit",
)


@keep_part(*PART)
class TestEncryptedPostgres(StoreContract):
    """The contract on an encrypted schema: with OM_TEST_LONG=all the whole, else a part."""

    @pytest.fixture
    def opener(self, url: str, empty_schema: str) -> Opener:
        async def opened() -> Store:
            options = PostgresOptions(prefix=empty_schema, connections=5, timeout_s=30.0)
            return await PostgresStore.open(url, options, masters=MasterKeys([MASTER]))

        return opened
