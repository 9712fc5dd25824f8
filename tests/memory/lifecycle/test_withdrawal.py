"""Entries without words: what they cover, and what else may hold those words."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from om_proxy.memory.lifecycle import branch, condensing, log_sharing, withdrawal
from om_proxy.memory.lifecycle.edits import withdraw_entry
from om_proxy.memory.model import EMPTY_CHAIN, Observation, Part
from om_proxy.memory.notes import sections
from tests.memory.sharing import LABELS, NOW, Resource, entry

A, B = LABELS["A"], LABELS["B"]


def shared(*ranges: tuple[str, int, int]) -> Observation:
    parts = tuple(
        Part(label, after, last, EMPTY_CHAIN, "task", "next") for label, after, last in ranges
    )
    return replace(entry("A", 0, 0), parts=parts)


@pytest.mark.parametrize(
    ("one", "other", "some", "inside"),
    [
        (entry("A", 0, 4), entry("A", 0, 4), True, True),
        (entry("A", 0, 4), entry("A", 4, 8), False, False),
        (entry("A", 0, 4), entry("A", 2, 8), True, False),
        (entry("A", 2, 4), entry("A", 0, 8), True, True),
        (entry("A", 4, 4), entry("A", 0, 8), True, True),  # a note of a fork
        (shared((A, 0, 4)), shared((B, 0, 4)), False, False),
        (shared((A, 0, 4)), shared((A, 2, 6), (B, 0, 4)), True, False),
        (shared((A, 0, 4), (B, 0, 2)), shared((A, 0, 6), (B, 0, 4)), True, True),
        (shared((A, 0, 4), (B, 0, 2)), shared((A, 0, 6)), True, False),
    ],
)
def test_ranges(one: Observation, other: Observation, some: bool, inside: bool) -> None:
    assert withdrawal.covers_some_of(one, other) == some
    assert withdrawal.lies_inside(one, other) == inside


def test_a_blank_entry_says_nothing() -> None:
    """Nor do the hints of its parts."""
    blank = withdrawal.blank(replace(shared((A, 0, 4)), task="secret", suggestion="s", title="t"))
    assert (blank.text, blank.tokens, blank.task, blank.suggestion, blank.title) == (
        "",
        0,
        "",
        None,
        None,
    )
    assert [(part.task, part.suggestion, part.last) for part in blank.parts] == [("", None, 4)]
    assert withdrawal.blank(blank) == blank
    assert sections.split_entry(blank) == []
    assert sections.plain_text(blank) == ""


def test_traces_are_older_entries_about_the_same_messages() -> None:
    """Not those of the current log, not those about others, and none that are blank already."""
    ids = count(1)
    same, summary, other, current = (
        replace(made, id=next(ids))
        for made in (entry("A", 0, 4), entry("A", 0, 8), entry("A", 4, 8), entry("A", 2, 4))
    )
    blank = replace(withdrawal.blank(same), id=next(ids))
    older = (same, summary, other, current, blank)
    traces = withdrawal.list_traces(entry("A", 0, 4), (current,), older)
    assert traces == (withdrawal.blank(same), withdrawal.blank(summary))


def two_threads() -> Resource:
    """A log with one reflection over both threads, which a person has withdrawn."""
    r = Resource("AB")
    for name in "ABA":
        r.cover(name, 4)
    r.reflect()
    r.swap("A")
    gone = withdraw_entry(r.shared_log, r.log[0].id, NOW)
    assert gone is not None
    r.store_log(gone)
    return r


def has_words(entries: tuple[Observation, ...]) -> bool:
    return any(entry.text for entry in entries)


def test_a_fork_in_a_shared_log_brings_no_words_back() -> None:
    """Coverage goes back as it would have with words."""
    r = two_threads()
    r.fork("A", 4)
    assert len(r.log) == 2
    assert not has_words(r.log)
    assert log_sharing.find_thread_coverage(r.log, A) == 4
    assert log_sharing.find_thread_coverage(r.log, B) == 4
    assert len({entry.id for entry in r.log}) == 2
    assert all(entry.id < r.shared_log.next_id for entry in r.log)


def test_leaving_a_shared_log_brings_no_words_back() -> None:
    r = two_threads()
    r.leave("A")
    own = r.voices["A"].memory.log.entries
    assert [(entry.after, entry.last, entry.text) for entry in own] == [(0, 4, ""), (4, 8, "")]
    assert not has_words(r.log)
    r.join("A")
    assert not has_words(r.log)
    assert log_sharing.find_thread_coverage(r.log, A) == 8


def test_a_forgotten_thread_brings_no_words_of_others_back() -> None:
    r = two_threads()
    after = branch.remove_thread(r.shared_log, r.past, A, NOW)
    assert [entry.text for entry in after.log.entries] == [""]
    assert after.next_id > max(entry.id for entry in after.log.entries)


def test_a_withdrawn_entry_separates_no_neighbours() -> None:
    """Its own depth says nothing: the stretch goes on through it."""
    noted = [replace(entry("A", n, n + 1), id=n + 1, tokens=100) for n in range(3)]
    deep = withdrawal.blank(replace(noted[1], depth=5))
    stretch = condensing.choose_stretch([noted[0], deep, noted[2]], 1_000)
    assert (stretch.start, stretch.count) == (0, 3)


def test_an_entry_in_another_log_covers_the_same_of_its_thread() -> None:
    """And nothing of a thread that it is not about."""
    own = entry("A", 2, 6)
    assert withdrawal.covers_some_of(
        withdrawal.as_shared_entry(own, A), shared((A, 4, 8), (B, 0, 2))
    )
    assert not withdrawal.covers_some_of(withdrawal.as_shared_entry(own, A), shared((B, 2, 6)))
    both = shared((A, 2, 6), (B, 0, 2))
    assert withdrawal.covers_some_of(own, withdrawal.as_own_entry(both, A))
    assert not withdrawal.covers_some_of(own, withdrawal.as_own_entry(both, B))
    assert not withdrawal.covers_some_of(own, withdrawal.as_own_entry(both, "nobody"))
