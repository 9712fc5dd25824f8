"""One import of litellm (about 5 s) serves all of these; it happens in the adapter's own thread, as in life."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import orjson
import pytest

from proxy.agents.litellm_adapter import LiteLLM
from proxy.agents.llm import Image, Prompt, Target
from proxy.errors import ModelBusy, ModelError, PromptTooLong
from tests.support.upstream_server import Call, Script, answering, upstream_server

pytestmark = pytest.mark.slow

PROMPT = Prompt("be exact", ("the canary sings",), 0.3, 1_000)
FINE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "noted"}}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}


@pytest.fixture(scope="module")
def litellm() -> Iterator[LiteLLM]:
    adapter = LiteLLM(clock=lambda: 1_700_000_000.0)
    yield adapter
    adapter.close()


def target(base: str, model: str = "hosted_vllm/m") -> Target:
    return Target(model, "litellm", base, api_key="k1")


def failing(status: int, message: str, *headers: bytes, code: str | None = None) -> Script:
    body = {"error": {"message": message, "type": "x", "code": code}}
    return answering(orjson.dumps(body), b"Content-Type: application/json", *headers, status=b"%d X" % status)


async def test_an_answer(litellm: LiteLLM) -> None:
    """Through litellm to a server of its own base and key; the event loop of the caller is never held up by the import."""
    prompt = Prompt("be exact", ("look", Image("data:image/png;base64,AAAA")), 0.3, 1_000)
    async with upstream_server(answering(orjson.dumps(FINE), b"Content-Type: application/json")) as server:
        asking = asyncio.create_task(litellm.complete(target(server.base), prompt))
        longest, turned = 0.0, (begun := time.perf_counter())
        while not asking.done():
            await asyncio.sleep(0.001)
            longest, turned = max(longest, time.perf_counter() - turned), time.perf_counter()
        answer = await asking
    assert (answer.text, answer.input_tokens, answer.output_tokens, answer.cached_tokens) == ("noted", 9, 2, 4)
    assert longest < (turned - begun) / 2  # on the loop, import and call would be one turn
    (seen,) = server.seen
    assert seen.line == b"POST /v1/chat/completions HTTP/1.1"
    assert seen.header(b"authorization") == [b"Bearer k1"]
    body = orjson.loads(seen.body)
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.3, 1_000)
    assert body["messages"][0] == {"role": "system", "content": "be exact"}
    assert body["messages"][1]["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (failing(429, "slow down", b"Retry-After: 3"), ModelBusy),
        (failing(503, "overloaded"), ModelBusy),
        (failing(500, "oops"), ModelBusy),
        (failing(401, "bad key: the canary sings"), ModelError),
        (failing(404, "no such model"), ModelError),
        (failing(400, "bad request: the canary sings"), ModelError),
        (failing(400, "maximum context length is 8192 tokens", code="context_length_exceeded"), PromptTooLong),
    ],
    ids=["429", "503", "500", "401", "404", "400", "too long"],
)
async def test_failures(litellm: LiteLLM, script: Script, kind: type[ModelError]) -> None:
    """litellm's exceptions become ours; asked once, and not a word of the prompt in them."""
    async with upstream_server(script) as server:
        with pytest.raises(ModelError) as raised:
            await litellm.complete(target(server.base), PROMPT)
    assert type(raised.value) is kind
    assert "canary" not in str(raised.value)
    assert raised.value.__suppress_context__
    assert len(server.seen) == 1


async def test_retry_after(litellm: LiteLLM) -> None:
    """The server's own time reaches the asker."""
    async with upstream_server(failing(429, "slow down", b"Retry-After: 3")) as server:
        with pytest.raises(ModelBusy) as raised:
            await litellm.complete(target(server.base), PROMPT)
    assert raised.value.retry_after == 3.0


async def test_nobody_listens(litellm: LiteLLM) -> None:
    """A server that is down is worth another try."""
    async with upstream_server(answering(b"")) as server:
        base = server.base
    with pytest.raises(ModelBusy):
        await litellm.complete(target(base), PROMPT)


async def test_unknown_provider(litellm: LiteLLM) -> None:
    """A name litellm does not know is the operator's to mend."""
    with pytest.raises(ModelError) as raised:
        await litellm.complete(Target("no-such-provider/m", "litellm"), PROMPT)
    assert type(raised.value) is ModelError


async def test_cancelled(litellm: LiteLLM) -> None:
    """A deadline ends the call in litellm's thread, and its connection."""
    closed = asyncio.Event()

    async def hang(call: Call) -> None:
        await call.closed.wait()
        closed.set()

    async with upstream_server(hang) as server:
        asking = asyncio.create_task(litellm.complete(target(server.base), PROMPT))
        await server.wait_seen(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(5):
            await closed.wait()


def test_close_without_use() -> None:
    """An adapter that was never asked has nothing to end."""
    LiteLLM().close()
