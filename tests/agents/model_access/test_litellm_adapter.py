"""The litellm adapter. One import of litellm (about 5 s), in the adapter's own thread, serves all
these tests."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import orjson
import pytest
import pytest_asyncio

from om_proxy.agents.model_access.credentials import KEY_VARIABLES
from om_proxy.agents.model_access.dialect import IMAGE_NOT_SHOWN
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.agents.model_access.llm import Image, Prompt, Target
from om_proxy.agents.models import Abilities
from om_proxy.agents.observer import Observer, ObserverTask
from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong
from tests.agents.messages import messages, user
from tests.agents.scripted_llm import Waits, bullets, words
from tests.agents.test_observer import Settings
from tests.support.long_forms import long_form
from tests.support.upstream_server import Call, Script, run_upstream_server, script_answer

pytestmark = pytest.mark.slow

PROMPT = Prompt("be exact", ("the canary sings",), 0.3, 1_000)
FINE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m-1",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "noted"}}
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}

NOTES = bullets("User showed a picture")
IN_THEIR_LANGUAGE: dict[str, dict[str, Any]] = {
    "hosted_vllm/m": {
        **FINE,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": NOTES}}],
    },
    "gemini/gemini-2.5-flash": {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": NOTES}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 11},
    },
    "anthropic/claude-sonnet-4-5": {
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": NOTES}],
        "usage": {"input_tokens": 9, "output_tokens": 2},
    },
    "ollama_chat/llava": {
        "model": "llava",
        "message": {"role": "assistant", "content": NOTES},
        "done": True,
    },
}
INLINE = "QUJDREVG"  # an image's bytes


@pytest.fixture(scope="module")
def litellm() -> Iterator[LiteLLM]:
    adapter = LiteLLM(clock=lambda: 1_700_000_000.0)
    yield adapter
    adapter.close()


def target(base: str, model: str = "hosted_vllm/m") -> Target:
    return Target(model, "litellm", base, api_key="k1")


def failing(status: int, message: str, *headers: bytes, code: str | None = None) -> Script:
    body = {"error": {"message": message, "type": "x", "code": code}}
    return script_answer(
        orjson.dumps(body), b"Content-Type: application/json", *headers, status=b"%d X" % status
    )


@pytest.fixture
def no_collections() -> Iterator[None]:
    """They run on whichever thread allocates, and take long on the heap of a whole suite."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_an_answer(litellm: LiteLLM) -> None:
    """litellm calls a server with its own base and key; its import never blocks the caller's event
    loop."""
    prompt = Prompt("be exact", ("look", Image("data:image/png;base64,AAAA")), 0.3, 1_000)
    async with run_upstream_server(
        script_answer(orjson.dumps(FINE), b"Content-Type: application/json")
    ) as server:
        asking = asyncio.create_task(litellm.complete(target(server.base), prompt))
        longest, turned, begun = 0.0, time.thread_time(), time.process_time()
        while not asking.done():
            await asyncio.sleep(0.001)
            longest, turned = max(longest, time.thread_time() - turned), time.thread_time()
        used = time.process_time() - begun
        answer = await asking
    assert (
        answer.text,
        answer.usage.input_tokens,
        answer.usage.output_tokens,
        answer.usage.cached_tokens,
    ) == (
        "noted",
        9,
        2,
        4,
    )
    assert longest < used / 2  # on the loop, import and call would be one turn
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
        (
            failing(400, "maximum context length is 8192 tokens", code="context_length_exceeded"),
            PromptTooLong,
        ),
    ],
    ids=["429", "503", "500", "401", "404", "400", "too long"],
)
async def test_failures(litellm: LiteLLM, script: Script, kind: type[ModelError]) -> None:
    """litellm's exceptions become the proxy's, after one call and without a word of the prompt."""
    async with run_upstream_server(script) as server:
        with pytest.raises(ModelError) as raised:
            await litellm.complete(target(server.base), PROMPT)
    assert type(raised.value) is kind
    assert "canary" not in str(raised.value)
    assert raised.value.__suppress_context__
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("gemini/gemini-2.5-flash", "GEMINI_API_KEY"),
        ("openai/gpt-4o", "OPENAI_API_KEY"),
        ("anthropic/claude-x", "memory.api_key"),
    ],
)
async def test_without_a_key(
    litellm: LiteLLM, monkeypatch: pytest.MonkeyPatch, model: str, named: str
) -> None:
    """A missing key is no busy server, though litellm reports both alike for some providers."""
    for name in ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelError) as raised:
        await litellm.complete(Target(model, "litellm"), PROMPT)
    assert type(raised.value) is ModelError
    assert named in raised.value.advice


async def test_retry_after(litellm: LiteLLM) -> None:
    """The error has the wait that the server names."""
    async with run_upstream_server(failing(429, "slow down", b"Retry-After: 3")) as server:
        with pytest.raises(ModelBusy) as raised:
            await litellm.complete(target(server.base), PROMPT)
    assert raised.value.retry_after_s == 3.0


async def test_an_unreachable_server(litellm: LiteLLM) -> None:
    """A server that is down is worth another try, and nobody is told that it answered."""
    async with run_upstream_server(script_answer(b"")) as server:
        base = server.base
    with pytest.raises(ModelBusy, match="could not be reached"):
        await litellm.complete(target(base), PROMPT)


async def test_unknown_provider(litellm: LiteLLM) -> None:
    """A name that litellm does not know is an error that the operator can correct."""
    with pytest.raises(ModelError) as raised:
        await litellm.complete(Target("no-such-provider/m", "litellm"), PROMPT)
    assert type(raised.value) is ModelError


EMBEDDINGS_ANSWER = {
    "object": "list",
    "model": "e",
    "data": [
        {"object": "embedding", "index": 1, "embedding": [0.0, 1.0]},
        {"object": "embedding", "index": 0, "embedding": [1.0, 0.0]},
    ],
    "usage": {"prompt_tokens": 7, "total_tokens": 7},
}


async def test_embeddings(litellm: LiteLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the texts, whatever the order of the answer; the server and the key stand in
    the environment."""
    script = script_answer(orjson.dumps(EMBEDDINGS_ANSWER), b"Content-Type: application/json")
    async with run_upstream_server(script) as server:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", server.base)
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", "k1")
        found = await litellm.embed_texts("hosted_vllm/e", ["the canary", "sings"])
    assert found == (([1.0, 0.0], [0.0, 1.0]), 7)
    [seen] = server.seen
    sent = orjson.loads(seen.body)
    assert (sent["model"], sent["input"]) == ("e", ["the canary", "sings"])
    assert seen.header(b"authorization") == [b"Bearer k1"]


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (failing(429, "the canary sings"), ModelBusy),
        (failing(500, "the canary sings"), ModelBusy),
        (failing(401, "the canary sings"), ModelError),
        (
            script_answer(
                orjson.dumps({**EMBEDDINGS_ANSWER, "data": EMBEDDINGS_ANSWER["data"][:1]}),  # type: ignore[index] - a list
                b"Content-Type: application/json",
            ),
            ModelBusy,
        ),
    ],
    ids=["busy", "broken", "no key", "too few"],
)
async def test_failed_embeddings(
    litellm: LiteLLM, monkeypatch: pytest.MonkeyPatch, script: Script, kind: type[ModelError]
) -> None:
    async with run_upstream_server(script) as server:
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", server.base)
        monkeypatch.setenv("HOSTED_VLLM_API_KEY", "k1")
        with pytest.raises(ModelError) as raised:
            await litellm.embed_texts("hosted_vllm/e", ["the canary", "sings"])
    assert type(raised.value) is kind
    assert "canary" not in str(raised.value)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the hosts whose address is looked up; only this machine's is returned."""
    hosts: list[str] = []
    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        hosts.append(host)
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "unknown here")
        return known(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return hosts


def addressed(base: str) -> list[dict[str, Any]]:
    """Return message parts that name an address, in every form a client may write, and one inline
    image."""
    return [
        {"type": "image_url", "image_url": {"url": f"{base}/x.png"}},
        {"type": "image_url", "image_url": f"{base}/y.png"},
        {"type": "image_url", "image_url": {"url": "https://pictures.example/z.png"}},
        {"type": "image_url", "image_url": {"url": "http://pictures.example/z"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png,{base}/x.png"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base}/x.png"}},
        {"type": "image", "source": {"type": "url", "url": f"{base}/x.png"}},
        {"type": "image_file", "image_file": {"url": f"{base}/x.png"}},
        {"type": "file", "file": {"file_id": f"{base}/x.pdf"}},
        {"type": "file", "file": {"file_data": f"{base}/x.pdf", "filename": "x.pdf"}},
        {"type": "input_audio", "input_audio": {"data": f"{base}/x.wav", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": f"{base}/x.mp4"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{INLINE}"}},
    ]


@pytest.mark.parametrize("model", IN_THEIR_LANGUAGE)
async def test_addresses_in_messages(litellm: LiteLLM, looked_up: list[str], model: str) -> None:
    """No part of a message makes the proxy look up a host or connect to one; the message is
    observed, with its inline images."""
    observer = Observer(
        litellm,
        tokens=words,
        sleep=Waits(),
        rng=Random(1),
        abilities=lambda _model: Abilities(takes_images=True),
    )
    answer = script_answer(
        orjson.dumps(IN_THEIR_LANGUAGE[model]), b"Content-Type: application/json"
    )
    async with (
        run_upstream_server(answer) as provider,
        run_upstream_server(script_answer(b"secret")) as stranger,
    ):
        task = ObserverTask(messages=messages(user(addressed(f"http://127.0.0.1:{stranger.port}"))))
        made = await observer.observe(task, [target(provider.base, model)], Settings())
    assert "User showed a picture" in made.text
    assert stranger.accepted == 0
    default = (
        {"localhost"} if model.startswith("ollama") else set()
    )  # asked what the model can do, whatever its address
    assert set(looked_up) <= {"127.0.0.1"} | default
    (sent,) = (
        seen.body for seen in provider.seen if b"[Image #3: z.png]" in seen.body
    )  # Ollama is asked for more
    assert INLINE.encode() in sent
    assert sent.count(IMAGE_NOT_SHOWN.encode()) == 7
    assert b"pictures.example" not in sent
    assert b":%d" % stranger.port not in sent


CASES = {
    "refused": failing(401, "bad key sk-CANARY-ECHO: CANARY-TEXT"),
    "broke": failing(500, "CANARY-ECHO"),
    "page": script_answer(b"<html>CANARY-ECHO"),
    "nothing": script_answer(b"{}", b"Content-Type: application/json"),
    "half": script_answer(
        b'{"choices": [{"message": {"content": "CANARY-ECHO', b"Content-Type: application/json"
    ),
    "list": script_answer(
        orjson.dumps(
            {**FINE, "choices": [{"message": {"role": "assistant", "content": ["CANARY-ECHO"]}}]}
        ),
        b"Content-Type: application/json",
    ),
    "odd": script_answer(
        b'{"id": 1, "type": "message", "role": "CANARY-ECHO", "model": "m", "stop_reason": "CANARY-ECHO", "content": '
        b'[{"type": "text", "text": "CANARY-ECHO"}, {"type": "CANARY-ECHO"}], "usage": {"input_tokens": 1, "output_tokens": 1}, '
        b'"choices": [{"index": 0, "finish_reason": "CANARY-ECHO", "message": {"role": "assistant", "content": ["CANARY-ECHO"]}}], '
        b'"candidates": [{"finishReason": "CANARY-ECHO", "content": {"role": "model", "parts": [{"text": "CANARY-ECHO"}]}}]}',
        b"Content-Type: application/json",
    ),
}
LOUD = {
    "LITELLM_LOG": "DEBUG",
    "JSON_LOGS": "true",
    "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "1",
    "OPENAI_LOG": "debug",
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "50",
    "PYTHONWARNINGS": "always",
}


class Asked(NamedTuple):
    """A process that asked models through litellm, and what it wrote."""

    said: dict[str, Any]
    written: bytes
    errors: bytes
    requests: int
    places: int


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param({}, id="as it comes", marks=long_form),
        pytest.param(LOUD, id="told to be loud"),
    ],
)
async def asked(request: pytest.FixtureRequest) -> Asked:
    """A process of its own, because litellm changes the process and takes seconds to import."""

    async def script(call: Call) -> None:
        (case,) = (case for case in CASES if f"/{case}".encode() in call.seen.line)
        await CASES[case](call)

    known = {name for names in KEY_VARIABLES.values() for name in names}
    environ = {name: value for name, value in os.environ.items() if name not in known}
    async with run_upstream_server(script) as server:
        places = [f"{model}@{server.base}/{case}" for model in IN_THEIR_LANGUAGE for case in CASES]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "tests.agents.asking_litellm",
                *places,
                "no-such-provider/m@http://127.0.0.1:9",
            ),
            env=environ | request.param,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
    return Asked(orjson.loads(out), out + err, err, len(server.seen), len(places))


def test_nothing_is_written(asked: Asked) -> None:
    """litellm and its libraries write no prompt, key, header, address or answer, whatever fails and
    whatever the environment says."""
    assert b"CANARY" not in asked.written
    assert b"LiteLLM" not in asked.errors
    assert asked.requests == asked.places
    said = asked.said
    assert {"ModelBusy", "BrokenAnswer", "ModelError", "Answer"} == set(said["outcomes"])
    assert (said["heard"], said["loud"], said["largest_download"]) == ([], [], 0)


def test_the_table_of_keys_is_litellm_s(asked: Asked) -> None:
    """The table of `credentials.py` has the variables that litellm names."""
    missing = {provider: keys for provider, keys in asked.said["missing"].items() if keys}
    assert [
        provider
        for provider, keys in missing.items()
        if not set(KEY_VARIABLES[provider]) & set(keys)
    ] == []
    assert len(missing) > 12


async def test_cancelled(litellm: LiteLLM) -> None:
    """A deadline ends the call in litellm's thread, and closes its connection."""
    closed = asyncio.Event()

    async def hang(call: Call) -> None:
        await call.closed.wait()
        closed.set()

    async with run_upstream_server(hang) as server:
        asking = asyncio.create_task(litellm.complete(target(server.base), PROMPT))
        await server.wait_seen(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(30):
            await closed.wait()


def test_close_without_use() -> None:
    """An unused adapter can be closed."""
    LiteLLM().close()
