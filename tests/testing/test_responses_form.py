"""The scripted model server speaks the Responses API: its answers hold to the SDK's types."""

from typing import Any

import httpx
import orjson
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from om_proxy.testing import notes
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ACTOR, OBSERVER, Fault, ScriptedServer

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"path": "a_long_name_of_a_file.py"}'},
}
SCRIPT: dict[str, dict[str, Any]] = {
    "Read it": {"role": "assistant", "content": "I look at both.", "tool_calls": [CALL, CALL]},
    "call_1": {"role": "assistant", "content": "It holds 14 vans and one typo."},
}
TRANSCRIPT = "<transcript>\nUser (09:00): The dock takes 3 m.\n</transcript>"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def ask(models: ScriptedServer, **body: Any) -> httpx.Response:
    async with serve_on_loopback(models) as url, httpx.AsyncClient(trust_env=False) as http:
        return await http.post(f"{url}/v1/responses", json={"model": ACTOR, **body})


async def ask_for_text(**body: Any) -> str:
    answer = Response.model_validate((await ask(ScriptedServer(SCRIPT), **body)).json())
    return answer.output_text


async def test_a_turn_with_tools() -> None:
    """The streamed answer is the plain one, with its usage; the results find the next line."""
    async with (
        serve_on_loopback(ScriptedServer(SCRIPT)) as url,
        AsyncOpenAI(base_url=url + "/v1", api_key="k") as openai,
    ):
        plain = await openai.responses.create(model=ACTOR, input="Read it")
        async with openai.responses.stream(model=ACTOR, input="Read it") as stream:
            streamed = await stream.get_final_response()
        history: list[Any] = [{"role": "user", "content": "Read it"}, *plain.output]
        history.append({"type": "function_call_output", "call_id": "call_1", "output": "VANS"})
        last = await openai.responses.create(model=ACTOR, input=history)
    assert [item.type for item in plain.output] == ["message", "function_call", "function_call"]
    assert plain.output_text == streamed.output_text == "I look at both."
    assert [item.arguments for item in streamed.output if item.type == "function_call"] == [
        CALL["function"]["arguments"]  # type: ignore[index] # a mapping
    ] * 2
    assert plain.usage
    assert plain.usage == streamed.usage
    assert last.output_text == "It holds 14 vans and one typo."


async def test_events_hold_to_the_types_of_the_sdk() -> None:
    """Each has its `event:` line, the type of that name, and the next number."""
    text = (await ask(ScriptedServer(SCRIPT), input="Read it", stream=True)).text
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    values = [orjson.loads(data.removeprefix("data: ")) for _, data in events]
    assert [name for name, _ in events] == [f"event: {value['type']}" for value in values]
    assert [value["sequence_number"] for value in values] == list(range(len(values)))
    assert values[0]["type"] == "response.created"
    assert values[-1]["type"] == "response.completed"
    for value in values:
        EVENT.validate_python(value)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"input": "hello"}, "Noted: hello"),
        (
            {"instructions": "The dock of Ely takes 3 m.", "input": "What takes the dock of Ely?"},
            "You said: The dock of Ely takes 3 m.",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
            "Noted: hello",
        ),
        ({"input": [{"type": "reasoning", "summary": []}, {"role": "user", "content": "a"}]},
         "Noted: a"),
    ],
)  # fmt: skip
async def test_what_is_read(body: dict[str, Any], text: str) -> None:
    """A text, items with parts, and instructions; reasoning says nothing."""
    assert await ask_for_text(**body) == text


async def test_a_memory_model_is_asked() -> None:
    """The observer answers `instructions` and `input` as it answers a chat."""
    given = {"model": OBSERVER, "instructions": "Observe.", "input": TRANSCRIPT}
    assert "* " in notes.observe(TRANSCRIPT)
    assert await ask_for_text(**given) == notes.observe(TRANSCRIPT)


@pytest.mark.parametrize("body", [{}, {"input": 3}, {"input": ["x"]}, {"input": [{"role": "a"}]}])
async def test_no_request(body: dict[str, Any]) -> None:
    answer = await ask(ScriptedServer(), **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request_error")


async def test_a_cut_stream_has_no_end() -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await ask(ScriptedServer(faults=[Fault(kind="cut")]), input="hello", stream=True)
