"""With nothing set, a model that is known to call tools looks messages up behind its notes, and no
other request is changed by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.testing.scripted import Fault, Message, RecordedRequest, ScriptedServer, message_text
from tests.e2e.running import CRATE_REMARK, SMALL, run_with_scripted_models

LOOK_UP = {"name": "recall", "arguments": '{"query":"crate"}'}
CALL = {"id": "own", "type": "function", "function": LOOK_UP}
TURNS = 12


class LooksUpWhereItMay(ScriptedServer):
    """An actor that looks up a message in each turn in which it is offered the tool."""

    def choose_answer(
        self, model: str, messages: Sequence[Message], fault: Fault | None
    ) -> Message:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "It is red."}
        is_offered = any("call recall." in message_text(message) for message in messages)
        if is_offered and model == "scripted-actor":
            return {"role": "assistant", "content": None, "tool_calls": [CALL]}
        return super().choose_answer(model, messages, fault)


def list_tool_names(prompt: RecordedRequest) -> list[Any]:
    return [tool["function"]["name"] for tool in orjson.loads(prompt.body).get("tools", [])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "tools", "word"),
    [("scripted-actor/gpt-4o", ["recall"], "offered"), ("scripted-actor", [], "unsure")],
)
async def test_nothing_is_set(
    tmp_path: Path, model: str, tools: list[str], word: str, stream: bool
) -> None:
    """Before the first notes, and before a model of which nothing is known, no prompt has the tool.
    The client never sees a call."""
    models = LooksUpWhereItMay()
    async with run_with_scripted_models(tmp_path, SMALL, models=models) as run:
        chat = run.chat()
        chat.model = model
        words = []
        for number in range(TURNS):
            reply, receipt = await chat.say(CRATE_REMARK.format(n=number), stream=stream)
            assert reply
            words.append(receipt.get("recall"))
            await run.app.background.wait_idle()
        prompts = models.requests_to("scripted-actor")
    assert words[0] is None
    assert words[-1] == word
    noted = [b"<observations>" in prompt.body for prompt in prompts]
    assert {False, True} == set(noted)
    for prompt, has_notes in zip(prompts, noted, strict=True):
        assert list_tool_names(prompt) == (tools if has_notes else [])
        assert (b"such as [m12-m40]" in prompt.body) is (has_notes and bool(tools))
