"""The lines of notes that a later reader cannot do without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.notes.line_priority import keep_important_lines

DAY = "Date: May 22, 2023"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("* 🔴 a\n* ✅ b", "* 🔴 a\n* ✅ b"),
        ("* 🔴 a\n* 🟡 b\n* 🟢 c\n* ✅ d", "* 🔴 a\n* ✅ d"),
        ("* 🟢 a\n  * b\n    * c\n* 🔴 d", "* 🔴 d"),
        ("* 🔴 a\n  * b\n  * 🟢 c\n    * d\n  * e", "* 🔴 a\n  * b\n  * e"),
        # what an important line belongs to stays
        ("* 🟡 a\n  * b\n  * ✅ c\n  * d", "* 🟡 a\n  * ✅ c"),
        (f"{DAY}\n* 🟢 a\n\nDate: May 23, 2023\n* 🔴 b\n", "Date: May 23, 2023\n* 🔴 b"),
        (f"{DAY}\n## Work\n* 🔴 a\n## Home\n* 🟢 b", f"{DAY}\n## Work\n* 🔴 a"),
        (f"**{DAY}**\n- 🔴 a\n- 🟢 b", f"**{DAY}**\n- 🔴 a"),
        (f"{DAY}\n* 🟢 a", ""),
        # lines that go on
        ("* 🔴 a\nand on\n* 🟢 b\nand on", "* 🔴 a\nand on"),
        ("* 🟢 b\nand on\n\nprose", ""),
        # without a mark nothing says that it matters; an emoji inside it is given its due
        ("* a\n* b", ""),
        ("* (09:14) 🔴 a\n* 🟢 b ✅", "* (09:14) 🔴 a"),
        ("1. 🔴 a\n2. 🟢 b", "1. 🔴 a"),
        ("🔴 a\n🟢 b", "🔴 a"),
        ("\t* 🔴 a\n\t* 🟢 b", "\t* 🔴 a"),
        ("", ""),
        ("\n\n", "\n\n"),
    ],
)
def test_kept_lines(text: str, kept: str) -> None:
    assert keep_important_lines(text) == kept


LINES = st.builds(
    lambda indent, bullet, mark, number: f"{'  ' * indent}{bullet}{mark}{number}",
    st.integers(0, 3),
    st.sampled_from(["* ", "- ", ""]),
    st.sampled_from(["🔴 ", "🟡 ", "🟢 ", "✅ ", "", "Date: "]),
    st.integers(),
)


@given(lines=st.lists(LINES | st.just(""), max_size=12))
def test_important_lines_always_stay(lines: list[str]) -> None:
    """Whatever stands around them, in their order; and a second time takes nothing more."""
    kept = keep_important_lines("\n".join(lines))
    important = [line for line in lines if "🔴" in line or "✅" in line]
    assert [line for line in kept.split("\n") if "🔴" in line or "✅" in line] == important
    assert keep_important_lines(kept) == kept
    if not important and any(lines):
        assert not kept
