"""What one prompt lacks of another, and what it has besides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.management.api.routes.context import diff_messages


@pytest.mark.parametrize(
    ("received", "sent", "dropped", "added"),
    [
        ("", "", (), ()),
        ("sab", "sab", (), ()),
        ("sabcd", "sNHcd", (1, 2), (1, 2)),
        ("sabcd", "Scd", (0, 1, 2), (0,)),
        ("saba", "sNa", (1, 2), (1,)),
        ("ab", "xaby", (), (0, 3)),
        ("ab", "", (0, 1), ()),
        ("", "ab", (), (0, 1)),
        ("ab", "ba", (1,), (0,)),
    ],
    ids=[
        "nothing",
        "the same",
        "notes and hint for the oldest",
        "notes in the instructions",
        "of equal ones the newest stays",
        "both ends",
        "all dropped",
        "all added",
        "another order",
    ],
)
def test_difference(
    received: str, sent: str, dropped: tuple[int, ...], added: tuple[int, ...]
) -> None:
    found = diff_messages([c.encode() for c in received], [c.encode() for c in sent])
    assert found == (dropped, added)


PROMPTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), max_size=12)


@given(PROMPTS, PROMPTS)
def test_the_difference_leads_from_one_to_the_other(
    received: list[bytes], sent: list[bytes]
) -> None:
    """Without what was dropped, and without what was added, both are the same."""
    dropped, added = diff_messages(received, sent)
    assert [m for i, m in enumerate(received) if i not in dropped] == [
        m for i, m in enumerate(sent) if i not in added
    ]
