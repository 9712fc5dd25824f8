"""Fifty requests with look-ups and two activations: the tools never vary, each prompt is the beginning
of the next one while the notes stay, byte for byte, and a provider's prompt cache keeps hitting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count, pairwise
from pathlib import Path

from om_proxy.testing.scripted import (
    CACHE_STEP_TOKENS,
    MIN_CACHED_TOKENS,
    Fault,
    Message,
    RecordedRequest,
    ScriptedServer,
    message_text,
)
from tests.e2e.previewing import list_message_bytes, list_tool_bytes
from tests.e2e.running import run_with_scripted_models

MEMORY_SETTINGS = (
    "retrieval: true, observation: {message_tokens: 6000, buffer_tokens: 1500}, "
    "reflection: {observation_tokens: 60000}"
)
REMARK = "Crate {n} weighs {n} kilos, is painted red and goes to dock {n} at Quarry Steps. " * 14
REQUESTS = 50
LEAST_CACHED_SHARE = 0.98
SEARCH_ANSWER_HEADER = "best first"  # the header of every answer to a search


class LooksUpSometimes(ScriptedServer):
    """An actor that looks up something else in every third turn, wherever it has the tool."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = count()

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        is_offered = any("call recall." in message_text(message) for message in messages)
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "It is as you say."}
        if model != "scripted-actor" or not is_offered:
            return super().choose_answer(model, messages, fault)
        turn = next(self._turns)
        if turn % 3:
            return super().choose_answer(model, messages, fault)
        arguments = json.dumps({"mode": "search", "query": f"crate {turn} dock", "limit": 2})
        function = {"name": "recall", "arguments": arguments}
        call = {"id": f"own-{turn}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}


def notes_of(prompt: RecordedRequest) -> list[str]:
    return [t for t in map(message_text, prompt.messages) if "<observations>" in t]


def tools_of(prompt: RecordedRequest) -> list[bytes]:
    return list_tool_bytes(prompt.body)


async def test_fifty_requests(tmp_path: Path) -> None:
    models = LooksUpSometimes()
    async with run_with_scripted_models(tmp_path, MEMORY_SETTINGS, models=models) as run:
        chat = run.chat()
        for number in range(REQUESTS):
            await chat.say(REMARK.format(n=number))
            run.clock.now += 1
            await run.app.background.wait_idle()
        prompts = models.requests_to("scripted-actor")
        observed = models.requests_to("scripted-observer")
    breaks, cached, cacheable = 0, 0, 0
    for before, after in pairwise(prompts):
        if notes_of(before) != notes_of(after):
            breaks += 1
            continue
        assert tools_of(after) == tools_of(before)
        begun = list_message_bytes(before.body)
        assert list_message_bytes(after.body)[: len(begun)] == begun
        if before.prompt_tokens >= MIN_CACHED_TOKENS:
            cached += after.cached_tokens
            cacheable += before.prompt_tokens // CACHE_STEP_TOKENS * CACHE_STEP_TOKENS
    assert breaks >= 2  # the notes of each activation
    assert len({tuple(tools_of(prompt)) for prompt in prompts if notes_of(prompt)}) == 1
    look_ups = sum(prompt.messages[-1]["role"] == "tool" for prompt in prompts)
    assert look_ups >= 8
    assert cached / cacheable >= LEAST_CACHED_SHARE
    assert not any(
        SEARCH_ANSWER_HEADER in message_text(m) for seen in observed for m in seen.messages
    )
