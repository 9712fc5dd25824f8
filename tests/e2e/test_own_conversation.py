"""The conversation of the project's own, every call of it, through a live proxy with smaller
thresholds of the default's shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from om_proxy.cli.demo.story import INSTRUCTIONS, load_story
from tests.e2e.killing import killed_and_restarted
from tests.e2e.replay import Call, calls_of, replayed
from tests.support.long_forms import IS_LONG

OBSERVE_AT, REFLECT_AT = (
    6_000,
    2_500,
)  # tokens; a fifth and a sixteenth of the defaults, for a conversation of 50 000
THRESHOLDS = f"observation: {{message_tokens: {OBSERVE_AT}}}, reflection: {{observation_tokens: {REFLECT_AT}}}"
KILLS = 5 if IS_LONG else 2


def calls() -> list[Call]:
    conversation: list[dict[str, Any]] = []
    for turn in load_story().turns:
        conversation += [{"role": "user", "content": turn.said}, *map(dict, turn.follows)]
    return calls_of(conversation, {"role": "system", "content": INSTRUCTIONS})


async def test_the_own_conversation(tmp_path: Path) -> None:
    """Five days with tools: every prompt valid and bounded, nothing lost, nothing twice, the prefix
    stable between activations."""
    made = calls()
    assert len(made) > 100
    inspector = await replayed(
        tmp_path, made, THRESHOLDS, observe_at=OBSERVE_AT, reflect_at=REFLECT_AT
    )
    assert 5 <= inspector.breaks <= 30
    assert int(inspector.state[0]) >= 1, "the log was reflected on"


@pytest.mark.slow
async def test_the_own_conversation_with_kills(tmp_path: Path) -> None:
    """SIGKILL at two random calls, in the long form at five, on the way to the model or in the middle of its reply: every
    promise still holds."""
    inspector = await killed_and_restarted(
        tmp_path, calls(), KILLS, 5, THRESHOLDS, observe_at=OBSERVE_AT, reflect_at=REFLECT_AT
    )
    assert inspector.breaks >= 5
