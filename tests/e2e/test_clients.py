"""Real clients through a live proxy, across an activation: those that are installed with the
project. The others: scripts/clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.playing import played


@pytest.mark.parametrize(
    ("name", "events", "changes"),
    [
        pytest.param("openai-python", "inline", {}, id="openai-python"),
        pytest.param("openai-python", "inline,text", {}, id="openai-python with texts"),
        pytest.param("litellm", "inline,text", {"tool": None}, id="litellm with texts"),
    ],
)
async def test_client_of_streams_with_comments(
    name: str, events: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """All of that, and on the wire every stream begins with comments, once with 16 KiB of them."""
    verdict = await played(name, tmp_path, Path(sys.prefix), events=events, **changes)
    assert verdict.turns == 14


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("openai-python", {}, id="openai-python"),
        pytest.param(
            "litellm", {"tool": None}, id="litellm"
        ),  # with tools it needs a package that is not installed here
    ],
)
async def test_client(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """The recipe as written: the client shows the server's answers, the model a valid prompt with
    notes, the memory everything."""
    verdict = await played(name, tmp_path, Path(sys.prefix), **changes)
    assert verdict.turns == 14
    assert 0 < verdict.streamed < verdict.requests
    assert verdict.applied >= 5
