"""A long conversation with tools, every call of it, through a live proxy with default
thresholds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.replay import calls_of, coding_session, replayed
from tests.support.long_forms import long_form


@pytest.mark.slow
@long_form
async def test_the_coding_session(tmp_path: Path) -> None:
    """439 calls: every prompt valid and bounded, nothing lost, nothing twice, the prefix stable
    between activations."""
    conversation = coding_session()
    if conversation is None:
        pytest.skip("the shared coding session is not here: ../shared/data/coding-session.jsonl")
    calls = calls_of(conversation)
    assert len(calls) == 439
    inspector = await replayed(tmp_path, calls)
    assert 3 <= inspector.breaks <= 20
