"""The benchmark of retention measures both stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.retention import print_figures, run


async def test_both_stores_have_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over few threads: each goes in a step of its own, and turns go on beside it."""
    figures = await run(30, tmp_path, quiet_turns=3)
    for one in figures:
        assert len(one.step_s) == 30
        assert one.busy_s
    print_figures(figures)
    assert len(capsys.readouterr().out.splitlines()) == 4
