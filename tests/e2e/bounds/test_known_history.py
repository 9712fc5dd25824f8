"""A request costs nothing that grows with the messages that are known already, but their bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.wire.apis.split import SlicedMessages
from tests.e2e.running import run_with_scripted_models

MEMORY_SETTINGS = "observation: {message_tokens: 100, buffer_tokens: false}"
KNOWN_MESSAGES = 2_001
MAX_CUT_MESSAGES = 50


@pytest.mark.parametrize("memory", [MEMORY_SETTINGS, "observation: {message_tokens: 10000000}"])
async def test_known_messages_are_not_cut_out_of_the_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    """With notes in their place, and without."""
    cuts: list[int] = []
    slice_at = SlicedMessages._message_at

    def count(messages: SlicedMessages, index: int) -> bytes:
        cuts.append(index)
        return slice_at(messages, index)

    monkeypatch.setattr(SlicedMessages, "_message_at", count)
    async with run_with_scripted_models(tmp_path, memory) as run:
        talk = run.chat("t")
        talk.history += [
            {"role": ("user", "assistant")[number % 2], "content": f"box {number} is on pallet 7"}
            for number in range(KNOWN_MESSAGES - 1)
        ]
        for _ in range(3):
            status = (await talk.say("Where is box 9?"))[1]["status"]
            await run.app.background.wait_idle()
        cuts.clear()
        await talk.say("And box 10?")
        assert status == ("applied" if memory == MEMORY_SETTINGS else "raw")
        assert len(cuts) < MAX_CUT_MESSAGES
