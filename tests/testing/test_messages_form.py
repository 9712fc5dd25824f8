"""The scripted model server speaks the Messages API: its answers hold to the SDK's types."""

from typing import Any

import httpx
import orjson
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from om_proxy.testing import notes
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, Fault, ScriptedServer

CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"path": "a_long_name_of_a_file.py"}'},
}
SCRIPT: dict[str, dict[str, Any]] = {
    "Read it": {"role": "assistant", "content": "I look at it.", "tool_calls": [CALL]},
    "toolu_1": {"role": "assistant", "content": "It holds 14 vans and one typo."},
}
TRANSCRIPT = "<transcript>\nUser (09:00): The dock takes 3 m.\n</transcript>"
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def ask(models: ScriptedServer, *messages: Any, **body: Any) -> httpx.Response:
    whole = {"model": ACTOR, "max_tokens": 99, "messages": list(messages), **body}
    async with serve_on_loopback(models) as url, httpx.AsyncClient(trust_env=False) as http:
        return await http.post(f"{url}/v1/messages", json=whole)


async def ask_for_text(*messages: Any, **body: Any) -> str:
    answer = await ask(ScriptedServer(SCRIPT), *messages, **body)
    return "".join(
        b.text for b in Message.model_validate(answer.json()).content if b.type == "text"
    )


async def test_a_turn_with_a_tool() -> None:
    """The streamed answer is the plain one; the result finds the next line."""
    asked: list[Any] = [user("Read it")]
    async with (
        serve_on_loopback(ScriptedServer(SCRIPT)) as url,
        AsyncAnthropic(base_url=url, api_key="k") as anthropic,
    ):
        plain = await anthropic.messages.create(model=ACTOR, max_tokens=99, messages=asked)
        async with anthropic.messages.stream(
            model=ACTOR, max_tokens=99, messages=asked
        ) as stream:  # fmt: skip
            streamed = await stream.get_final_message()
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "VANS"}
        asked += [{"role": "assistant", "content": plain.content}, user([result])]
        last = await anthropic.messages.create(model=ACTOR, max_tokens=99, messages=asked)
    assert [block.type for block in plain.content] == ["text", "tool_use"]
    assert streamed.to_dict()["content"] == plain.to_dict()["content"]
    assert (plain.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
    assert plain.usage.output_tokens == streamed.usage.output_tokens
    assert (last.content[0].type, last.stop_reason) == ("text", "end_turn")


async def test_events_hold_to_the_types_of_the_sdk() -> None:
    """Each has its `event:` line and the type of that name; one is a ping."""
    text = (await ask(ScriptedServer(SCRIPT), user("Read it"), stream=True)).text
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    values = [orjson.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name for name, _ in events] == [f"event: {value['type']}" for value in values]
    types = [value["type"] for value in values]
    assert types[:3] == ["message_start", "content_block_start", "ping"]
    assert types[-2:] == ["message_delta", "message_stop"]
    for value in values:
        if value["type"] != "ping":  # the SDK knows it by its name alone
            EVENT.validate_python(value)


@pytest.mark.parametrize(
    ("message", "more", "text"),
    [
        ("hello", {}, "Noted: hello"),
        ([{"type": "text", "text": "hello"}], {}, "Noted: hello"),
        (
            "What takes the dock of Ely?",
            {"system": [{"type": "text", "text": "The dock of Ely takes 3 m."}]},
            "You said: The dock of Ely takes 3 m.",
        ),
        (
            [{"type": "tool_result", "tool_use_id": "x"}, {"type": "text", "text": "hello"}],
            {},
            "Noted: hello",
        ),
    ],
)
async def test_what_is_read(message: Any, more: dict[str, Any], text: str) -> None:
    """A text, blocks, and the member `system`; what stands behind a result is the newest."""
    assert await ask_for_text(user(message), **more) == text


async def test_a_mark_leaves_the_cached_prefix_as_it_was() -> None:
    """A prompt that continues another one is cached as far as that went, with its credential."""
    models = ScriptedServer()
    long = {"type": "text", "text": " ".join(f"fact {n}" for n in range(2000))}
    marked = {**long, "cache_control": {"type": "ephemeral"}}
    await ask(models, user([marked]))
    usage = (await ask(models, user([long]), user("and now?"))).json()["usage"]
    first, second = models.requests
    assert first.cached_tokens == 0
    assert usage["cache_read_input_tokens"] == second.cached_tokens > first.prompt_tokens - 128
    assert usage["input_tokens"] == second.prompt_tokens - second.cached_tokens


async def test_a_memory_model_is_asked() -> None:
    """The observer answers `system` and `messages` as it answers a chat."""
    told = await ask_for_text(user(TRANSCRIPT), system="Observe.", model=OBSERVER)
    assert told == notes.observe(TRANSCRIPT)


@pytest.mark.parametrize("messages", [3, ["x"], [{"role": "user"}]])
async def test_no_request(messages: Any) -> None:
    answer = await ask(ScriptedServer(), messages=messages)
    error = {"type": "invalid_request_error", "message": "the body is no messages request"}
    assert (answer.status_code, answer.json()["error"]) == (400, error)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(kind="http"), "overloaded_error"),
        (Fault(kind="http", status=500, code="new"), "api_error"),
    ],
)
async def test_an_error_has_the_shape_of_the_api(fault: Fault, kind: str) -> None:
    answer = await ask(ScriptedServer(faults=[fault]), user("hello"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (fault.status, kind)


async def test_a_cut_stream_has_no_end() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await ask(ScriptedServer(faults=[Fault(kind="cut")]), user("hello"), stream=True)
