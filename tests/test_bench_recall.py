"""The benchmark of recall measures both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench import recall
from tests.bench.recall import Figure, print_figures, run


async def test_both_stores_have_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over few messages: an index grows the store, and nothing forgotten is found. The CPU of so
    few is less than what other processes of a server take or give back meanwhile."""
    monkeypatch.setattr(recall, "SHORT_RESOURCE_MESSAGES", 30)
    monkeypatch.setattr(recall, "LONG_TEXT_MESSAGES", 30)
    monkeypatch.setattr(recall, "CUT_ROUNDS", 1)
    every = [one async for one in run(tmp_path, messages=100, others=2, rounds=3)]
    assert [len(figures) for _, figures in every] == [2, 9, 9]
    for _, figures in every:
        sure = [f for f in figures if f.name != "canaries left" and "CPU" not in f.name]
        assert all(figure.value > 0 for figure in sure)
    assert [figures[-1].value for _, figures in every[1:]] == [0, 0]


async def test_figures_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    async def tell() -> AsyncIterator[tuple[str, list[Figure]]]:
        yield "SQLite", [Figure("search", 1.5, 15), Figure("canaries left", 0, 0)]

    await print_figures(tell())
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:4] == ["| SQLite | search | 1.50 | 15 |", "| SQLite | canaries left | 0.00 |  |"]
