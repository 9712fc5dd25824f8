"""Real clients through a live proxy, across an activation: those that are installed with the project. The others: scripts/clients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clients.playing import played


@pytest.mark.parametrize("name", ["openai-python"])
async def test_client(name: str, tmp_path: Path) -> None:
    """The recipe as written: the client shows the server's answers, the model a valid prompt with notes, the memory everything."""
    verdict = await played(name, tmp_path, Path(sys.prefix))
    assert verdict.applied >= 5
