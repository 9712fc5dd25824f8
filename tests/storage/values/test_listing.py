"""Which threads a list holds, and which texts begin with a prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.model import Key
from om_proxy.storage.values.listing import (
    ThreadInfo,
    ThreadSelection,
    ThreadState,
    find_place,
    find_prefix_end,
    has_state,
    is_selected,
)

INFO = ThreadInfo(Key("t", "res", "thr"), 5.0, None, 1, 0, "Title", 0, False, row_id=7)


@pytest.mark.parametrize(
    ("selection", "selected"),
    [
        (ThreadSelection(None), True),
        (ThreadSelection("t"), True),
        (ThreadSelection("T"), False),
        (ThreadSelection("t", "res"), True),
        (ThreadSelection("t", "re"), False),
        (ThreadSelection("t", None, "re"), True),
        (ThreadSelection("t", None, "th"), True),
        (ThreadSelection("t", None, "Ti"), True),
        (ThreadSelection("t", None, "ti"), False),
        (ThreadSelection("t", None, "hr"), False),
        (ThreadSelection("t", None, None, "active"), True),
        (ThreadSelection("t", None, None, "parked"), False),
    ],
)
def test_selected_thread(selection: ThreadSelection, selected: bool) -> None:
    assert is_selected(INFO, selection) == selected


@pytest.mark.parametrize(
    ("failures", "parked", "has_notes", "states"),
    [
        (0, False, False, {"active"}),
        (0, False, True, {"active", "observed"}),
        (2, False, True, {"failing", "observed"}),
        (2, True, False, {"parked"}),
        (0, True, False, {"parked"}),
    ],
)
def test_state(failures: int, parked: bool, has_notes: bool, states: set[ThreadState]) -> None:
    info = INFO._replace(failures=failures, parked=parked, has_notes=has_notes)
    every: tuple[ThreadState, ...] = ("active", "failing", "parked", "observed")
    assert {state for state in every if has_state(info, state)} == states


def test_place_of_a_thread_without_a_turn() -> None:
    assert find_place(INFO) == (INFO.key, 5.0, 7)
    assert find_place(INFO._replace(turn_at=9.0)).active_at == 9.0


CHARACTERS = st.characters(exclude_categories=["Cs"])  # no stored name holds a surrogate
TEXT_STRATEGY = st.text(CHARACTERS | st.sampled_from("ab\ud7ff\ue000\U0010ffff"), max_size=4)


@given(prefix=TEXT_STRATEGY, text=TEXT_STRATEGY, rest=TEXT_STRATEGY)
def test_texts_of_a_prefix_are_a_range(prefix: str, text: str, rest: str) -> None:
    """A text begins with the prefix exactly if it lies from the prefix to its end, as code points
    and as UTF-8 order them."""
    end = find_prefix_end(prefix)
    for one in (text, prefix + rest):
        encoded = one.encode()
        inside = prefix.encode() <= encoded and (end is None or encoded < end.encode())
        assert inside == one.startswith(prefix)
