"""`scripts/bench search-load`: it plays both tenants to the end, and says what it saw."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.bench.search_load import Searches, print_figures, run


async def test_both_tenants_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await run(Namespace(searches=2, messages=200, seconds=0.5), tmp_path)
    said = capsys.readouterr().out
    assert "2 searches at once over 200 messages" in said
    assert "failed otherwise               0" in said
    assert "searches answered            0.0" not in said


def test_figures_are_rates_and_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    asked = Namespace(searches=64, messages=200, seconds=9.0)
    print_figures(asked, [2.0] * 9, [3.0] * 9, Searches(80, 5, 12.5, 0), 7.0)
    said = capsys.readouterr().out
    for figure in ("1.50    (goal", "8.0 a second", "0.5 a second", "12 ms", "7 MB"):
        assert figure in said
