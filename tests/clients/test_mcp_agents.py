"""The blocks of docs/guides/mcp.md and what judges the agents that read memory by them."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.clients.mcp_agents import AGENTS, CALLS, judge_answers, read_block, write_stream
from tests.clients.recipes import ADDRESS


def test_every_agent_has_its_block() -> None:
    for heading in ("claude", "Codex", "opencode"):
        assert f"{ADDRESS}/om/mcp" in read_block(heading)
    assert tomllib.loads(read_block("Codex"))["mcp_servers"]["memory"]
    assert json.loads(read_block("opencode"))["mcp"]["memory"]
    assert len(AGENTS) == 3


def test_what_does_not_hold_is_refused() -> None:
    answers = {tool: held for tool, (_, held) in CALLS.items()}
    assert judge_answers(answers) == "4 tools listed and called"
    for wrong in ({**answers, "read_messages": "nothing"}, dict(list(answers.items())[1:])):
        with pytest.raises(AssertionError):
            judge_answers(wrong)


def test_a_stream_holds_its_call() -> None:
    block = {"type": "tool_use", "id": "t", "name": "n", "input": {"query": "violin"}}
    data = write_stream({"content": [block], "stop_reason": "tool_use"})
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line[:5] == "data:"]
    assert json.loads(events[2]["delta"]["partial_json"]) == {"query": "violin"}
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
