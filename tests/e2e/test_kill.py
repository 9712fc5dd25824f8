"""The proxy killed in the middle of a long conversation: nothing acknowledged is lost, nothing is
stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.killing import killed_and_restarted
from tests.e2e.replay import calls_of, coding_session
from tests.support.long_forms import long_form

KILLS = 10


@long_form
@pytest.mark.slow
async def test_the_coding_session_with_ten_kills(tmp_path: Path) -> None:
    """SIGKILL at ten random calls: the client's own retry is all it takes, and every promise still
    holds."""
    conversation = coding_session()
    if conversation is None:
        pytest.skip("the shared coding session is not here: ../shared/data/coding-session.jsonl")
    inspector = await killed_and_restarted(tmp_path, calls_of(conversation), KILLS, seed=20)
    assert inspector.breaks >= 3
