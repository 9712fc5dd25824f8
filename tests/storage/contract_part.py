"""The part of the contract that a second way to a backend is held to in each run: the whole is the
first way's, and with OM_TEST_LONG=all the second's too."""

from __future__ import annotations

from collections.abc import Callable

from tests.storage.contract import StoreContract
from tests.support.long_forms import IS_LONG

EACH_KIND = (
    # most statements, in random order, of several stores at once
    "test_store_is_a_dictionary",
    "test_shared_logs_are_as_the_rules_have_them",
    "test_people_lose_no_change",
    "test_concurrent_turns_lose_nothing",
    "test_two_stores_share_one_truth",
    "test_what_races_with_a_forget_brings_nothing_back",
    # what those leave out: each kind of record, list, lease and event
    "test_what_went_out_is_remembered",
    "test_cancelled_caller_leaves_the_store_whole",
    "test_page_of_all_messages",
    "test_set_due_of_a_backlog",
    "test_claim_leases_what_is_due",
    "test_claims_at_once_share_what_is_due",
    "test_one_of_many_gets_the_lease",
    "test_parked_thread_is_not_due_until_revived",
    "test_tails_of_other_threads",
    "test_line_of_a_list",
    "test_resources_of_tenants",
    "test_titles_of_tenants_are_searched_if_asked",
    "test_idle_thread_tells_the_work_on_it",
    "test_dropped_generations_are_gone",
    "test_erased_notes_keep_their_place",
    "test_any_state_leads_to_the_newest",
    "test_each_of_both_is_told_for_itself",
    "test_events_page_by_page",
    "test_events_are_pruned_by_age",
    "test_webhooks_keep_their_place",
    "test_a_batch_of_the_ledger_is_added_once",
    "test_groups_of_the_ledger",
    "test_audit_of_tenants",
    "test_receipt",
    "test_restored_thread_answers_as_it_did",
    "test_a_moved_thread_is_as_if_it_had_always_been_there",
    "test_totals_of_due_and_parked_threads",
    "test_clock_is_the_one_that_leases_end_by",
    "test_secret_is_made_once",
    "test_promise_is_whole",
)


def keep_part(*names: str) -> Callable[[type[StoreContract]], type[StoreContract]]:
    """Return what leaves the contract these tests alone."""

    def kept(contract: type[StoreContract]) -> type[StoreContract]:
        assert all(callable(getattr(contract, name, None)) for name in names)
        for name in dir(contract):
            if name.startswith("test_") and name not in names and not IS_LONG:
                setattr(contract, name, None)
        return contract

    return kept
