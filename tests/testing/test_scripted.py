"""The scripted model server, with an SDK and with a raw client."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from om_proxy.common.errors import OmError
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import (
    ACTOR,
    OBSERVER,
    REFLECTOR,
    UNKNOWN_ANSWER,
    Fault,
    Faults,
    PromptCache,
    ScriptedServer,
    find_common_prefix,
    find_scripted_model,
    improvise,
)

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "read_file", "arguments": '{"path": "vans.py"}'},
}
SCRIPT: dict[str, dict[str, Any]] = {
    "Read vans.py": {"role": "assistant", "content": None, "tool_calls": [CALL]},
    "call_1": {"role": "assistant", "content": "It holds 14 vans and one typo."},
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def ask(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": ACTOR, "messages": list(messages), **more}


@pytest.fixture
def scripted() -> ScriptedServer:
    return ScriptedServer(SCRIPT)


@pytest.fixture
async def client(scripted: ScriptedServer) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serve_on_loopback(scripted) as url,
        httpx.AsyncClient(base_url=url + "/v1", timeout=60) as client,
    ):
        yield client


async def chat(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    return (await client.post("/chat/completions", json=body)).raise_for_status().json()


async def ask_for_text(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    return (await chat(client, body))["choices"][0]["message"]["content"]


async def test_scripted_turn_with_a_tool(client: httpx.AsyncClient) -> None:
    """The newest message finds the next line: a user's text, then a result's call id."""
    first = (await chat(client, ask(user("hello"), user("Read vans.py"))))["choices"][0]
    assert (first["finish_reason"], first["message"]["tool_calls"]) == ("tool_calls", [CALL])
    result = {"role": "tool", "tool_call_id": "call_1", "content": "VANS = ..."}
    assert (
        await ask_for_text(client, ask(user("Read vans.py"), first["message"], result))
        == "It holds 14 vans and one typo."
    )


async def test_openai_sdk_streams_the_same_answer() -> None:
    """The real SDK builds the plain answer, with its usage, from the stream."""
    async with (
        serve_on_loopback(ScriptedServer(SCRIPT)) as url,
        AsyncOpenAI(base_url=url + "/v1", api_key="k") as openai,
    ):
        asked: Any = [user("Read vans.py")]
        plain = await openai.chat.completions.create(model=ACTOR, messages=asked)
        async with openai.chat.completions.stream(
            model=ACTOR, messages=asked, stream_options={"include_usage": True}
        ) as stream:
            streamed = await stream.get_final_completion()
        models = [m.id async for m in openai.models.list()]
    assert plain.choices[0].message.tool_calls
    assert streamed.choices[0].message.tool_calls
    call = streamed.choices[0].message.tool_calls[0]
    assert (call.id, call.function.name, call.function.arguments) == (
        "call_1",
        "read_file",
        '{"path": "vans.py"}',
    )  # type: ignore[union-attr]  # a function call
    assert plain.usage
    assert streamed.usage
    assert streamed.usage.prompt_tokens == plain.usage.prompt_tokens
    assert models == [ACTOR, OBSERVER, REFLECTOR]


async def test_stream_without_usage_ends_with_done(client: httpx.AsyncClient) -> None:
    """Usage comes only when asked for, and the last event is [DONE]."""
    text = (await client.post("/chat/completions", json=ask(user("hello"), stream=True))).text
    assert text.endswith("data: [DONE]\n\n")
    assert '"usage"' not in text


async def test_cached_tokens_are_the_shared_prefix(
    client: httpx.AsyncClient, scripted: ScriptedServer
) -> None:
    """A prompt that continues the one before is cached as far as that one went; with a changed head
    it is not."""
    long = user(" ".join(f"fact {i}" for i in range(2000)))
    await chat(client, ask(long))
    await chat(client, ask(long, user("and now?")))
    await chat(client, ask(user("Changed " + long["content"]), user("and now?")))
    cold, warm, changed = scripted.requests
    assert (cold.cached_tokens, changed.cached_tokens) == (0, 0)
    assert cold.prompt_tokens - 128 < warm.cached_tokens <= cold.prompt_tokens < warm.prompt_tokens
    assert warm.cached_tokens % 128 == 0


def test_prompt_cache_forgets() -> None:
    """After its lifetime, a prefix is no longer cached."""
    cache = PromptCache(len, lifetime_s=300)
    prompt = ["x" * 2000, "y" * 2000]
    assert [cache.match_and_remember(prompt, now) for now in (0.0, 299.0, 700.0, 701.0)] == [
        0,
        3968,
        0,
        3968,
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("", "abc", ""), ("abc", "abd", "ab"), ("ab", "abc", "ab"), ("same", "same", "same")],
)
def test_common_prefix(one: str, other: str, same: str) -> None:
    """It returns the longest text with which both begin."""
    assert find_common_prefix(one, other) == same


QUESTION = "Two things. What is the height limit at the Quarry Steps dock?"
FACT = "The Quarry Steps dock takes nothing higher than 2.85 m."


@pytest.mark.parametrize(
    ("shown", "answer"),
    [
        ([f"I run the vans. {FACT}"], f"You said: {FACT}"),
        (
            [f"<observations>\nDate: Mar 2, 2026 (2 weeks ago)\n* 🔴 (09:04) User said: {FACT}\n"],
            f"On Mar 2, 2026 you said: {FACT}",
        ),
        (["The Harbour dock has no height limit at all, said the foreman."], UNKNOWN_ANSWER),
        (
            ["* 🟡 (09:04) User asked: What is the height limit at the Quarry Steps dock?"],
            UNKNOWN_ANSWER,
        ),
        ([], UNKNOWN_ANSWER),
    ],
)
def test_question_is_answered_from_the_prompt_alone(shown: list[str], answer: str) -> None:
    """The answer quotes the fact if the prompt holds it; otherwise the model does not know."""
    assert improvise([*map(user, shown), user(QUESTION)]) == answer


@pytest.mark.parametrize(
    ("kind", "text"),
    [("nothing", ""), ("refusal", "I'm sorry, but I can't help with that request.")],
)
async def test_fault_answers(
    client: httpx.AsyncClient, scripted: ScriptedServer, kind: Any, text: str
) -> None:
    """A fault strikes its models as often as `times` says; then the server is healthy again."""
    scripted.faults.switch(Fault(kind=kind, model="scripted-*", times=1))
    assert [await ask_for_text(client, ask(user("hello"))) for _ in range(2)] == [
        text,
        "Noted: hello",
    ]


async def test_fault_http(client: httpx.AsyncClient, scripted: ScriptedServer) -> None:
    """An HTTP fault has the given status, code and Retry-After."""
    scripted.faults.switch(
        Fault(kind="http", status=429, code="rate_limit_exceeded", retry_after=1.5)
    )
    answer = await client.post("/chat/completions", json=ask(user("hello")))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1.5")
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"


async def test_fault_hang_lasts_until_the_caller_leaves(
    client: httpx.AsyncClient, scripted: ScriptedServer
) -> None:
    """A hanging server sends nothing, records the request, and survives the disconnect."""
    scripted.faults.switch(Fault(kind="hang", times=1))
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/chat/completions", json=ask(user("hello")), timeout=0.2)
    assert await ask_for_text(client, ask(user("hello"))) == "Noted: hello"
    assert len(scripted.requests) == 2


async def test_fault_slow_then_cut(client: httpx.AsyncClient, scripted: ScriptedServer) -> None:
    """A slow answer arrives; a cut stream ends early."""
    scripted.faults.switch(Fault(kind="slow", seconds=0.01, times=1), Fault(kind="cut", times=1))
    assert await ask_for_text(client, ask(user("hello"))) == "Noted: hello"
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post("/chat/completions", json=ask(user("hello"), stream=True))


def test_faults_count_down_each_by_itself() -> None:
    """Two equal faults count separately; a fault without `times` never ends."""
    once = Fault(kind="prose", times=1)
    faults = Faults([once, once, Fault(kind="nothing", model="b*")])
    struck = [faults.take_next(model) for model in ("a", "a", "a", "b", "b")]
    assert [f.kind if f else None for f in struck] == ["prose", "prose", None, "nothing", "nothing"]


async def test_window(client: httpx.AsyncClient) -> None:
    """A prompt beyond the window is refused with the provider's error."""
    async with (
        serve_on_loopback(ScriptedServer(window=10)) as url,
        httpx.AsyncClient(timeout=60) as own,
    ):
        answer = await own.post(f"{url}/v1/chat/completions", json=ask(user("word " * 100)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_window_of_one_model() -> None:
    """The window of one model does not limit the others."""
    async with (
        serve_on_loopback(ScriptedServer(window={ACTOR: 10})) as url,
        httpx.AsyncClient(timeout=60) as own,
    ):
        statuses = [
            (
                await own.post(
                    f"{url}/v1/chat/completions", json={**ask(user("word " * 100)), "model": model}
                )
            ).status_code
            for model in (ACTOR, OBSERVER)
        ]
        assert statuses == [400, 200]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": 3}', b'{"messages": ["x"]}'])
async def test_no_chat_request(client: httpx.AsyncClient, body: bytes) -> None:
    """An invalid chat request gets a 400."""
    assert (await client.post("/chat/completions", content=body)).status_code == 400


async def test_a_failed_start_raises() -> None:
    """An application that cannot start raises an error."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(OmError, match="did not start"):
        async with asyncio.timeout(30), serve_on_loopback(broken, lifespan="on"):
            pass


def test_requests_are_recorded_by_model() -> None:
    """The server records bytes and headers as they came."""
    scripted = ScriptedServer()
    body = json.dumps(ask(user("hello"))).encode()

    async def call() -> None:
        async with serve_on_loopback(scripted) as url, httpx.AsyncClient(timeout=60) as own:
            await own.post(f"{url}/v1/chat/completions", content=body, headers={"x-trace": "7"})

    asyncio.run(call())
    (seen,) = scripted.requests_to(ACTOR)
    assert (seen.body, dict(seen.headers)[b"x-trace"]) == (body, b"7")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        (ACTOR, ACTOR),
        (f"openai/{OBSERVER}", OBSERVER),
        (f"{ACTOR}/gpt-4o", ACTOR),
        (f"openai/{REFLECTOR}/gemini/gemini-2.5-flash", REFLECTOR),
        ("openai/gpt-4o", "gpt-4o"),
    ],
)
def test_a_name_may_end_as_a_model_with_a_price(name: str, model: str) -> None:
    assert find_scripted_model(name) == model
