"""The part of the store contract that an encrypted server keeps in every run."""

# what reads or writes an encrypted text in a way of its own
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
    "test_search_newest_2000",
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
