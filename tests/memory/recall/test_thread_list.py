"""Conversations are listed by their titles and labels, never by their names."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from om_proxy.memory.recall.thread_list import ListedThread, ThreadListPage, write_thread_list
from om_proxy.memory.tokens import estimate_tokens

UTC = ZoneInfo("UTC")
MARCH_1, MAY_8, NEXT_YEAR = 1_677_660_000.0, 1_683_554_160.0, 1_704_448_800.0


def write(*threads: ListedThread, page: int = 1, has_more: bool = False) -> str:
    return write_thread_list(ThreadListPage(threads, page, 2, has_more), UTC, 500, estimate_tokens)


def test_a_list() -> None:
    text = write(
        ListedThread("3f9c2a7714e0b6d2", "Trip to Rome", 812, MARCH_1, MAY_8, True),
        ListedThread("00aa11bb22cc33dd", None, 1, MAY_8, MAY_8, False),
        page=2,
        has_more=True,
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
