"""The excerpt that the observer reads fits its budget and keeps what matters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.notes.log_excerpt import excerpt_log

LOG = [
    "Date: May 1, 2023\n* 🔴 plums\n* 🟢 small talk\n* 🟡 asked a",
    "Date: May 2, 2023\n* 🟢 b\n* ✅ done c\n* 🟡 d",
]


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        pytest.param(None, "\n\n".join(LOG), id="all of it"),
        pytest.param(0, "", id="nothing"),
        pytest.param(words("\n\n".join(LOG)), "\n\n".join(LOG), id="it just fits"),
        pytest.param(1, "", id="not even a line"),
    ],
)
def test_whole_or_nothing(budget: int | None, text: str) -> None:
    """None is all, 0 is nothing."""
    assert excerpt_log(LOG, budget, words) == text


def test_newest_lines_and_what_matters() -> None:
    """The newest lines stand whole; of the older ones 🔴 and ✅ do, under their date, with gaps
    marked by their line count."""
    old = "Date: May 1, 2023\n* 🔴 User grows plums\n" + "\n".join(
        f"* 🟢 small talk {i}" for i in range(50)
    )
    new = "Date: May 9, 2023\n" + "\n".join(f"* 🟡 asked {i}" for i in range(5))
    talk = "\n".join(f"* 🟢 small talk {i}" for i in range(46, 50))
    assert excerpt_log([old, new], 84, words) == (
        f"Date: May 1, 2023\n* 🔴 User grows plums\n[46 lines left out]\n{talk}\n\n{new}"
    )


def test_the_newest_part_keeps_its_date() -> None:
    """The day's heading comes along when the cut falls inside a day."""
    entry = "Date: May 1, 2023\n" + "\n".join(f"* 🟢 note {i}" for i in range(50))
    assert excerpt_log([entry], 26, words).split("\n")[:2] == [
        "Date: May 1, 2023",
        "[48 lines left out]",
    ]


def test_newer_lines_that_matter_come_first() -> None:
    """The older lines go where not all of them fit."""
    entry = "\n".join(
        [*(f"* 🔴 rule {i}" for i in range(40)), *(f"* 🟢 talk {i}" for i in range(40))]
    )
    kept = excerpt_log([entry], 100, words)
    assert "rule 39" in kept
    assert "rule 0" not in kept
    assert "talk 39" in kept


def test_most_of_it_is_new_whatever_the_mark() -> None:
    """Older 🔴 lines get a quarter: what the other person told is shown too, if it is new."""
    entry = "\n".join(f"* 🔴 I like {i}\n* 🟡 Assistant likes {i}" for i in range(200))
    older, _, newest = excerpt_log([entry], 400, words).rpartition(" left out]\n")
    assert 240 <= words(newest) <= 310
    assert "🔴" in older
    assert "🟡" not in older


LINES = st.sampled_from(
    [
        "Date: May 1, 2023",
        "* 🔴 rule one",
        "  * part of it",
        "* ✅ done",
        "* 🟢 talk talk talk",
        "",
        "* 🟡 asked",
    ]
)


@given(
    st.lists(st.lists(LINES, min_size=1, max_size=8).map("\n".join), max_size=6), st.integers(0, 60)
)
def test_it_fits_and_is_true(entries: list[str], budget: int) -> None:
    """The excerpt never exceeds the budget. Kept lines stand in their order, and gaps count every
    line left out."""
    text = excerpt_log(entries, budget, words)
    assert words(text) <= budget
    if not text:
        return
    rest = iter("\n\n".join(entries).split("\n"))
    shown = [line for line in text.split("\n") if line.strip()]
    gaps = [int(line[1:].split()[0]) for line in shown if line.endswith("left out]")]
    kept = [line for line in shown if not line.endswith("left out]")]
    assert all(line in rest for line in kept)
    assert len(kept) + sum(gaps) == sum(
        1 for line in "\n".join(entries).split("\n") if line.strip()
    )
