"""Conversations are listed by their titles and labels, never by their names."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from om_proxy.memory.recall.thread_list import (
    ListedThread,
    ThreadListPage,
    find_list_limit,
    write_thread_list,
)
from om_proxy.memory.tokens import estimate_tokens

UTC = ZoneInfo("UTC")
MARCH_1, MAY_8, NEXT_YEAR = 1_677_660_000.0, 1_683_554_160.0, 1_704_448_800.0


def write(*threads: ListedThread, page: int = 1, next_at: float | None = None) -> str:
    listed = ThreadListPage(threads, page, 2, next_at)
    text, shown = write_thread_list(listed, UTC, 500, estimate_tokens)
    assert text.count("\n") == shown
    return text


def test_a_list() -> None:
    text = write(
        ListedThread("3f9c2a7714e0b6d2", "Trip to Rome", 812, MARCH_1, MAY_8, True),
        ListedThread("00aa11bb22cc33dd", None, 1, MAY_8, MAY_8, False),
        page=2,
        next_at=MARCH_1,
    )
    assert text == (
        "conversations 3 to 4, newest first; more: page 3\n"
        '- "Trip to Rome" [3f9c2a77], 812 messages, Mar 1 – May 8, 2023, ← current\n'
        "- untitled [00aa11bb], 1 message, May 8, 2023"
    )
    later = ListedThread("00aa11bb22cc33dd", None, 2, MAY_8, NEXT_YEAR, False)
    assert write(later).endswith("May 8, 2023 – Jan 5, 2024")
    assert write() == "recall: nothing found; no conversation is here"


def test_titles_give_way() -> None:
    thread = ListedThread("3f9c2a7714e0b6d2", "好" * 60, 1, MAY_8, MAY_8, False)
    text = write(*[thread] * 12)
    assert estimate_tokens(text) <= 500
    assert text.count("[3f9c2a77]") == 12


def test_what_does_not_fit_is_reached_by_its_time() -> None:
    """Names of resources are whole, so that a reader can give them back."""
    name = "\\" * 256
    threads = [
        ListedThread("3f9c2a7714e0b6d2", None, 1, MAY_8, MAY_8 - number, False, name)
        for number in range(20)
    ]
    text = write(*threads)
    assert estimate_tokens(text) <= 500
    first, *lines = text.split("\n")
    assert (
        first == "conversations 1 to 3, newest first; more: before 2023-05-08T13:55:57.000002+00:00"
    )
    assert len(lines) == 3
    assert estimate_tokens(write(threads[0]._replace(title="好" * 60))) <= 500


def test_a_time_that_would_show_the_last_one_again_names_it() -> None:
    """The conversation behind it ended in the same moment, or right before."""
    thread = ListedThread("3f9c2a7714e0b6d2", None, 1, MAY_8, MAY_8, False)
    for next_at, way_on in (
        (MAY_8, "before 2023-05-08T13:56:00.000002+00:00 3f9c2a7714e0b6d2"),
        (MAY_8 - 1e-6, "before 2023-05-08T13:56:00.000001+00:00 3f9c2a7714e0b6d2"),
        (MAY_8 - 4e-6, "before 2023-05-08T13:55:59.999998+00:00"),
    ):
        assert write(thread, page=50, next_at=next_at).split("\n")[0].endswith(f"; more: {way_on}")


def test_the_last_page_is_followed_by_a_time() -> None:
    """A page behind the 50th cannot be asked for."""
    thread = ListedThread("3f9c2a7714e0b6d2", None, 1, MAY_8, MAY_8, False)
    first = write(thread, page=50, next_at=MARCH_1).split("\n")[0]
    assert first.endswith("; more: before 2023-03-01T08:40:00.000002+00:00")


def test_a_page_has_room_for_each() -> None:
    assert [find_list_limit(20, tokens) for tokens in (500, 800, 8_000)] == [12, 20, 20]
    assert find_list_limit(3, 500) == 3
