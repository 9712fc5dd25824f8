"""Values that are keyed by a thread's tenant are made anew for another tenant."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.memory.lifecycle.rekeying import (
    Row,
    chains_by_seq,
    chains_by_value,
    rekey_entry,
    rekey_view,
    replace_labels,
)
from om_proxy.memory.model import EMPTY_CHAIN, Cell, Observation, Part, View, extend_chain


def under(tenant: str, text: str) -> bytes:
    return hashlib.blake2b(text.encode(), key=tenant.encode(), digest_size=16).digest()


def chain_of(tenant: str, texts: Sequence[str]) -> bytes:
    chain = EMPTY_CHAIN
    for text in texts:
        chain = extend_chain(chain, under(tenant, text))
    return chain


def rows(*told: tuple[int, int, bool, str, Sequence[str]]) -> list[Row]:
    """Of (seq, parent, live, text, what its chain says came before it)."""
    return [
        Row(
            seq,
            parent,
            live,
            under("old", text),
            chain_of("old", (*before, text)),
            under("new", text),
        )
        for seq, parent, live, text, before in told
    ]


# one two three, of which three was taken back for four
FORKED = rows(
    (1, 0, True, "one", ()),
    (2, 1, True, "two", ["one"]),
    (3, 2, False, "three", ["one", "two"]),
    (4, 2, True, "four", ["one", "two"]),
)


def test_every_branch_is_chained_anew() -> None:
    by_seq = chains_by_seq(FORKED)
    assert by_seq[3] == chain_of("new", ["one", "two", "three"])
    assert by_seq[4] == chain_of("new", ["one", "two", "four"])
    by_value = chains_by_value(FORKED, by_seq)
    assert by_value[chain_of("old", ["one", "two"])] == chain_of("new", ["one", "two"])
    assert by_value[EMPTY_CHAIN] == EMPTY_CHAIN


def test_a_history_that_is_gone_matches_nothing() -> None:
    """Message 3 answered a "two" that the client has altered since: no chain of it may look like
    one that stands."""
    altered = rows(
        (1, 0, True, "one", ()),
        (2, 1, True, "2", ["one"]),
        (3, 2, False, "three", ["one", "two"]),
        (4, 2, True, "three", ["one", "2"]),
    )
    by_seq = chains_by_seq(altered)
    assert by_seq[4] == chain_of("new", ["one", "2", "three"])
    assert by_seq[3] not in (by_seq[4], chain_of("new", ["one", "two", "three"]), altered[2].chain)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=12))
def test_equal_histories_stay_equal(told: list[tuple[str, int, bool]]) -> None:
    """Two messages have equal chains under the new tenant exactly where they had under the old
    one."""
    paths: list[list[str]] = [[]]
    made: list[tuple[int, int, bool, str, Sequence[str]]] = []
    for seq, (text, parent, _) in enumerate(told, 1):
        paths.append([*paths[parent % seq], text])
        made.append((seq, parent % seq, False, text, paths[parent % seq]))
    found = rows(*made)
    by_seq = chains_by_seq(found)
    assert [by_seq[seq] for seq in range(1, len(paths))] == [
        chain_of("new", path) for path in paths[1:]
    ]


def view(texts: Sequence[str], *cells: Cell, tenant: str = "old") -> View:
    return View(
        count=len(texts),
        digest=b"d",
        chain=chain_of(tenant, texts),
        seq=2,
        end=2,
        asked_at=0.0,
        cells=cells,
    )


@pytest.mark.parametrize(
    ("attempt", "texts"),
    [
        (view(["one", "two"], Cell("same", 0, 2, 1, 2)), ["one", "two"]),
        (view(["one", "two", "three"], Cell("same", 0, 3, 1, 3)), ["one", "two", "three"]),
        (view(["four"], Cell("same", 0, 1, 4, 4)), ["four"]),
        (
            view(["two", "four"], Cell("unsent", 0, 0, 1, 1), Cell("same", 0, 2, 2, 4)),
            ["two", "four"],
        ),
        (view([]), []),
    ],
    ids=["the whole", "of another branch", "the newest alone", "a window", "nothing"],
)
def test_what_a_client_showed_is_known_by_its_words(attempt: View, texts: list[str]) -> None:
    chains = chains_by_value(FORKED, chains_by_seq(FORKED))
    assert rekey_view(attempt, FORKED, chains).chain == chain_of("new", texts)


@pytest.mark.parametrize(
    "attempt",
    [
        view(["one", "TWO"], Cell("same", 0, 1, 1, 1), Cell("altered", 1, 2, 2, 2)),
        view(["one", "a summary"], Cell("same", 0, 1, 1, 1), Cell("folded", 1, 2, 2, 4)),
        view(["one", "else"], Cell("same", 0, 2, 1, 2)),
        view(["one", "two"], Cell("same", 0, 2, 1, 1), tenant="third"),
    ],
    ids=["altered", "folded", "not what stands there", "too few"],
)
def test_what_only_the_client_had_is_known_by_its_bytes(attempt: View) -> None:
    """Its fingerprint cannot be computed again: the chain keeps a value that matches nothing, the
    digest still matches."""
    chains = chains_by_value(FORKED, chains_by_seq(FORKED))
    assert rekey_view(attempt, FORKED, chains) == attempt


def test_an_entry_of_a_shared_log() -> None:
    """Each part goes on where its own thread does; texts and hints call the threads by their new
    names, and change no other word."""
    old, new, other = "a" * 16, "b" * 16, "c" * 16
    chains = {b"1": b"one"}
    entry = Observation(
        id=1,
        after=0,
        last=2,
        chain=b"1",
        text=f'<thread id="{old}">\n* 🔴 {old}0 {"d" * 16}\n</thread>',
        tokens=1,
        source_tokens=9,
        at=1.0,
        task=f"see {old}",
        parts=(Part(old, 0, 2, b"1", old, None, at=9.0), Part(other, 0, 3, b"1")),
    )
    moved = rekey_entry(entry, {}, {old: new}, {old: chains})
    assert moved.text == f'<thread id="{new}">\n* 🔴 {old}0 {"d" * 16}\n</thread>'
    assert (moved.task, moved.suggestion) == (f"see {new}", None)
    assert moved.parts == (Part(new, 0, 2, b"one", new, None, at=9.0), Part(other, 0, 3, b"1"))


def test_names_are_no_part_of_longer_ones() -> None:
    assert replace_labels("a" * 17, {"a" * 16: "b" * 16}) == "a" * 17
