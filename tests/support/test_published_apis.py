"""The checks of requests find each fault, and none in a sound one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.published_apis import find_refusal
from tests.support.three_apis import APIS, Api, write_body

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"q": 1}'},
}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "c2"}]},
    {"role": "tool", "tool_call_id": "c1", "content": "one"},
    {"role": "tool", "tool_call_id": "c2", "content": "two"},
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": "And?"},
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_sound_request(api: Api, stream: bool) -> None:
    assert find_refusal(api, write_body(api, HISTORY, model="m", stream=stream)) is None


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("absent", [2, 3, 4])
def test_a_call_or_a_result_is_absent(api: Api, absent: int) -> None:
    history = HISTORY[:absent] + HISTORY[absent + 1 :]
    assert find_refusal(api, write_body(api, history, model="m"))


@pytest.mark.parametrize(
    ("api", "more"),
    [
        ("responses", {"input": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        ("responses", {"input": [{"type": "reasoning", "id": "r", "summary": []}]}),
        ("responses", {"instructions": 3}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "input_text"}]}]}),
        ("messages", {"messages": [{"role": "assistant", "content": "a"}]}),
        ("messages", {"messages": [{"role": "user", "content": ""}]}),
        ("messages", {"max_tokens": None}),
        (
            "messages",
            {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5},
        ),
    ],
)
def test_a_fault(api: Api, more: dict[str, Any]) -> None:
    assert find_refusal(api, write_body(api, HISTORY, model="m") | more)


def test_results_come_first() -> None:
    body = write_body("messages", [*HISTORY[:5], HISTORY[-1]], model="m")
    assert find_refusal("messages", body) is None
    body["messages"][-1]["content"].reverse()
    assert find_refusal("messages", body)
