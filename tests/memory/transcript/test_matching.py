"""Finding the end of a thread in what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.model import EMPTY_CHAIN, Item, Mark
from om_proxy.memory.transcript.matching import TextCounts, find_run_to_end, pair_leading
from tests.memory.building import item
from tests.support.counting import TIMES, count_lines_run


def marks(items: Sequence[Item]) -> tuple[Mark, ...]:
    return tuple(
        Mark(seq, i.fp, EMPTY_CHAIN, i.role, i.calls, i.answers, 1)
        for seq, i in enumerate(items, 1)
    )


def users(texts: str) -> list[Item]:
    return [item("user", text) for text in texts]


def told(sent: Sequence[Item], stored: Sequence[Mark]) -> tuple[int, int]:
    """The rule in plain steps: each place of what was sent, tried from there backwards."""
    best, last = (0, 0), len(stored) - 1
    for end in range(len(sent)):
        length = 0
        while length <= min(end, last) and sent[end - length].fp == stored[last - length].fp:
            length += 1
        if length and length >= best[1]:
            best = (end - length + 1, length)
    return best


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_the_longest_run(sent: str, stored: str) -> None:
    """The latest of equals, and never more than one side holds."""
    assert find_run_to_end(users(sent), marks(users(stored))) == told(
        users(sent), marks(users(stored))
    )


@pytest.mark.parametrize("stored", ["a", "ab", "aab", "abc"])
@pytest.mark.parametrize("sent", ["a", "ab", "b"])
def test_runs_are_found_in_steps_in_proportion(stored: str, sent: str) -> None:
    """However often a text comes again."""
    shorter, longer = (
        partial(find_run_to_end, users(sent * count), marks(users(stored * count)))
        for count in (50, 50 * TIMES)
    )
    assert count_lines_run(longer) <= (TIMES + 1) * count_lines_run(shorter)


def test_leading_pairs_are_found_in_steps_in_proportion() -> None:
    """The steps stay in proportion for a client that changes every reply and then asks a great
    deal."""

    def work(count: int) -> partial[list[object]]:
        ours = [item(role, f"{i}") for i in range(count) for role in ("user", "assistant")]
        sent = [
            item(i.role, "changed" + i.raw.decode()) if i.role == "assistant" else i for i in ours
        ]
        sent += [item("user", f"asked {i}") for i in range(count)]
        return partial(pair_leading, sent, marks(ours), TextCounts.of(marks(ours)))

    assert count_lines_run(work(50 * TIMES)) <= (TIMES + 1) * count_lines_run(work(50))
