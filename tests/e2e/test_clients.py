"""Real clients through a live proxy, across an activation: those that are installed with the
project. The others: scripts/clients."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.look_ups import PLANTED, Planted
from tests.clients.playing import played
from tests.support.long_forms import long_form


@pytest.mark.parametrize(
    ("name", "events", "changes"),
    [
        pytest.param("openai-python/chat", "inline", {}, id="openai-python", marks=long_form),
        pytest.param("openai-python/chat", "inline,text", {}, id="openai-python with texts"),
        pytest.param(
            "litellm/chat", "inline,text", {"tool": None}, id="litellm with texts", marks=long_form
        ),
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
        pytest.param("openai-python/chat", {}, id="openai-python", marks=long_form),
        pytest.param("openai-python/responses", {}, id="openai-python by responses"),
        pytest.param("anthropic-python/messages", {}, id="anthropic-python"),
        pytest.param(
            "litellm/chat", {"tool": None}, id="litellm"
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


async def test_client_of_replies_with_look_ups(tmp_path: Path) -> None:
    """The model looks up earlier messages before it answers, calls the client's tools beside that,
    and the client sees none of it: scripts/clients --look-ups runs the others."""
    verdict = await played("openai-python/chat", tmp_path, Path(sys.prefix), look_ups=True)
    assert verdict.turns == 14
    assert verdict.look_ups >= 9


@pytest.mark.sample(1)
@pytest.mark.parametrize("planted", PLANTED)
async def test_a_fault_in_such_replies_is_found(planted: Planted, tmp_path: Path) -> None:
    """A second role, a gap between calls, and a second finish."""
    with pytest.raises((AssertionError, IndexError)):
        await played(
            "openai-python/chat", tmp_path, Path(sys.prefix), look_ups=True, planted=planted
        )
