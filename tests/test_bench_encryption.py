"""`scripts/bench encryption` measures a file without a key beside one with a key. Nothing is timed
here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.encryption import print_samples, run


async def test_both_files_have_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = await run(tmp_path, 2)
    assert [len(taken) for taken in samples.values()] == [2] * 4
    print_samples(samples)
    rows = capsys.readouterr().out.splitlines()
    assert [row.count("|") for row in rows] == [7] * 4
