"""What a search finds of two of LoCoMo's conversations; `scripts/recall-quality` takes all ten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.recall_quality import measure_sqlite, read_conversations

LOCOMO = Path(__file__).parents[2] / "shared" / "data" / "locomo10.json"


async def test_evidence_is_found() -> None:
    """It takes 5 s. The figures fall by more than this margin if a rule of ranking is left out."""
    if not LOCOMO.exists():
        pytest.skip("the shared conversations are not here: ../shared/data/locomo10.json")
    quality = await measure_sqlite(read_conversations(LOCOMO)[:2])
    assert quality.questions == 302
    assert quality.at_5 >= 0.68
    assert quality.at_10 >= 0.79
    assert quality.at_20 >= 0.835
    assert quality.sessions_at_10 >= 0.95
