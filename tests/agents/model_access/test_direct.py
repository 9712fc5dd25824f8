"""Asking a model over HTTP, with a scripted server."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from om_proxy.agents.model_access.direct import MAX_ANSWER_BYTES, Direct
from om_proxy.agents.model_access.llm import Image, Prompt, Target
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError, PromptTooLong
from om_proxy.wire.upstream import AiohttpTransport
from tests.support.upstream_server import (
    Call,
    Script,
    UpstreamServer,
    run_upstream_server,
    script_answer,
)

PROMPT = Prompt("be exact", ("the canary sings",), 0.3, 100_000)
FINE = {
    "model": "m-1",
    "choices": [{"message": {"content": "noted"}}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    },
}


STREAM = b"".join(
    b"data: " + data + b"\n\n"
    for data in (
        b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "not"}}]}',
        b'{"choices": [{"index": 0, "delta": {"content": "ed"}, "finish_reason": "stop"}]}',
        b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}',
        b"[DONE]",
    )
)


@pytest.fixture
async def direct() -> AsyncIterator[Direct]:
    transport = AiohttpTransport()
    yield Direct(transport, clock=lambda: 1_700_000_000.0)
    await transport.aclose()


def steps(*answers: tuple[int, Any]) -> Script:
    """Answer each request with the next answer; the last answer is repeated."""
    left = list(answers)

    async def script(call: Call) -> None:
        status, body = left.pop(0) if len(left) > 1 else left[0]
        await script_answer(orjson.dumps(body), status=b"%d X" % status)(call)

    return script


def error(message: str, code: str | None = None) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    }


def bodies(server: UpstreamServer) -> list[dict[str, Any]]:
    return [orjson.loads(seen.body) for seen in server.seen]


async def test_an_answer(direct: Direct) -> None:
    """The call is one POST with the given credential; text, model and usage are returned."""
    async with run_upstream_server(script_answer(orjson.dumps(FINE))) as server:
        target = Target("m", base_url=server.base + "/", headers=(("api-key", "k1"),))
        answer = await direct.complete(target, PROMPT)
    assert (answer.text, answer.model) == ("noted", "m-1")
    assert len(server.seen[0].header(b"host")) == 1
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.cached_tokens) == (
        9,
        2,
        4,
    )
    (seen,) = server.seen
    assert seen.line == b"POST /v1/chat/completions HTTP/1.1"
    assert seen.header(b"api-key") == [b"k1"]
    assert seen.header(b"authorization") == []
    assert orjson.loads(seen.body) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be exact"},
            {"role": "user", "content": "the canary sings"},
        ],
        "temperature": 0.3,
        "max_tokens": 100_000,
    }


async def test_the_configured_key(direct: Direct) -> None:
    """A configured key is sent as a bearer token, and a query in the base stays."""
    async with run_upstream_server(script_answer(orjson.dumps(FINE))) as server:
        await direct.complete(
            Target("m", base_url=f"{server.base}?api-version=2", api_key="k2"), PROMPT
        )
    assert server.seen[0].header(b"authorization") == [b"Bearer k2"]
    assert server.seen[0].line == b"POST /v1/chat/completions?api-version=2 HTTP/1.1"


async def test_what_is_inherited(direct: Direct) -> None:
    """An inherited call has the query and the routing of its request, and its own messages."""
    members = (("provider", b'{"zdr":true}'), ("model", b'"other"'))
    async with run_upstream_server(script_answer(orjson.dumps(FINE))) as server:
        target = Target("m", base_url=f"{server.base}?a=1", query=b"b=%2F2", members=members)
        await direct.complete(target, PROMPT)
    assert server.seen[0].line == b"POST /v1/chat/completions?a=1&b=%2F2 HTTP/1.1"
    (body,) = bodies(server)
    assert (body["provider"], body["model"]) == ({"zdr": True}, "m")


async def test_a_compressed_answer(direct: Direct) -> None:
    """The answer of a server that compresses it anyway is read."""
    zipped = script_answer(gzip.compress(orjson.dumps(FINE)), b"Content-Encoding: gzip")
    async with run_upstream_server(zipped) as server:
        assert (await direct.complete(Target("m", base_url=server.base), PROMPT)).text == "noted"
    assert server.seen[0].header(b"accept-encoding") == [b"identity"]


async def test_refusals_are_adapted_to_and_remembered(direct: Direct) -> None:
    """One thing after the other is left out, whatever the refusal says; the next call begins without
    what was refused, and another model with all of it."""
    refusals = ((400, error("no")), (400, error("no")), (422, error("no")), (200, FINE))
    async with run_upstream_server(steps(*refusals)) as server:
        target = Target("m", base_url=server.base)
        for _ in range(2):
            assert (await direct.complete(target, PROMPT)).text == "noted"
        await direct.complete(Target("other", base_url=server.base), PROMPT)
    sent = [sorted(set(body) - {"model", "messages"}) for body in bodies(server)]
    assert sent == [
        ["max_tokens", "temperature"],
        ["max_completion_tokens", "temperature"],
        ["temperature"],
        [],
        [],
        ["max_tokens", "temperature"],
    ]


async def test_a_server_that_only_streams(direct: Direct) -> None:
    """It is asked for a stream, and its answer is read from the events."""

    async def script(call: Call) -> None:
        is_stream = b'"stream":true' in call.seen.body
        answer = script_answer(STREAM) if is_stream else script_answer(b"{}", status=b"400 X")
        await answer(call)

    async with run_upstream_server(script) as server:
        for calls in (5, 6):
            answer = await direct.complete(Target("m", base_url=server.base), PROMPT)
            assert (answer.text, answer.finish, answer.usage.input_tokens) == ("noted", "stop", 9)
            assert len(server.seen) == calls


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (b"", BrokenAnswer),
        (b'data: {"error": {"message": "engine died"}}\n\ndata: [DONE]\n\n', ModelBusy),
    ],
)
async def test_a_stream_without_its_end(
    direct: Direct, end: bytes, error: type[ModelError]
) -> None:
    """A stream that breaks off is no answer, nor is one with an error in it."""
    begin = b'data: {"choices": [{"delta": {"content": "not"}}]}\n\n'
    async with run_upstream_server(script_answer(begin + end)) as server:
        with pytest.raises(error):
            await direct.complete(Target("m", base_url=server.base), PROMPT)


@pytest.mark.parametrize(
    "refusal",
    [b'{"error":{"message":"no","code":400}}', b'event: error\ndata: {"message":"no"}\n\n'],
)
async def test_a_refusal_inside_a_200(direct: Direct, refusal: bytes) -> None:
    """It is adapted to, and remembered, like any other."""

    async def script(call: Call) -> None:
        is_refused = b"temperature" in call.seen.body
        await script_answer(refusal if is_refused else orjson.dumps(FINE))(call)

    async with run_upstream_server(script) as server:
        for calls in (4, 5):
            assert (
                await direct.complete(Target("m", base_url=server.base), PROMPT)
            ).text == "noted"
            assert len(server.seen) == calls


async def test_an_answer_that_cannot_be_read(direct: Direct) -> None:
    """It teaches nothing: the server may have refused the request in its own way."""
    answers = ((200, {}), (400, error("no")), (200, FINE))
    async with run_upstream_server(steps(*answers)) as server:
        target = Target("m", base_url=server.base)
        with pytest.raises(ModelBusy):
            await direct.complete(target, PROMPT)
        await direct.complete(target, PROMPT)
    assert (
        "max_completion_tokens" in bodies(server)[-1]
    )  # the likeliest of what is not accepted yet


async def test_a_too_long_prompt_inside_a_200(direct: Direct) -> None:
    told = error("the prompt is too long", "context_length_exceeded")
    async with run_upstream_server(steps((200, told))) as server:
        with pytest.raises(PromptTooLong):
            await direct.complete(Target("m", base_url=server.base), PROMPT)


async def test_images_are_left_out_once(direct: Direct) -> None:
    """A server that refuses images is asked without them. It may have been that image only, so
    nothing is remembered."""
    prompt = Prompt("s", ("look", Image("data:image/png;base64,AA")))
    refusals = ((500, error("image input is not supported")), (200, FINE), (200, FINE))
    async with run_upstream_server(steps(*refusals)) as server:
        for _ in range(2):
            assert (
                await direct.complete(Target("m", base_url=server.base), prompt)
            ).text == "noted"
    contents = [body["messages"][-1]["content"] for body in bodies(server)]
    assert [type(content) for content in contents] == [list, str, list]


async def test_an_answer_s_limit_that_crowds_out_the_prompt(direct: Direct) -> None:
    """If the window is too small for prompt and answer, the call is repeated without the limit
    before the prompt counts as too long."""
    both = "maximum context length is 8192 tokens, you requested 101000 (1000 in the messages, 100000 in the completion)"
    async with run_upstream_server(
        steps((400, error(both, "context_length_exceeded")), (200, FINE))
    ) as server:
        assert (await direct.complete(Target("m", base_url=server.base), PROMPT)).text == "noted"
    async with run_upstream_server(
        steps((400, error("maximum context length", "context_length_exceeded")))
    ) as server:
        with pytest.raises(PromptTooLong):
            await direct.complete(Target("m", base_url=server.base), PROMPT)


async def test_endless_refusals(direct: Direct) -> None:
    """A server that refuses everything is asked with less and less, and the next time hardly
    more than once."""
    async with run_upstream_server(
        steps((400, error("bad max_tokens, bad temperature")))
    ) as server:
        # limit renamed; left out: limit, temperature, unstreamed, system
        for calls in (6, 8):
            with pytest.raises(ModelError) as raised:
                await direct.complete(Target("m", base_url=server.base), PROMPT)
            assert type(raised.value) is ModelError
            assert len(server.seen) == calls


async def test_a_model_that_was_guessed(direct: Direct) -> None:
    """That a server does not know it says nothing of the request."""
    target = Target("small", is_guess=True)
    async with run_upstream_server(steps((404, error("no")), (200, FINE))) as server:
        with pytest.raises(ModelError):
            await direct.complete(replace(target, base_url=server.base), PROMPT)
        assert len(server.seen) == 1


async def test_an_outage(direct: Direct) -> None:
    """A 500 costs one more call, and none for a while if that fails too."""
    async with run_upstream_server(steps((500, error("no")))) as server:
        for calls in (2, 3, 4):
            with pytest.raises(ModelBusy):
                await direct.complete(Target("m", base_url=server.base), PROMPT)
            assert len(server.seen) == calls


@pytest.mark.parametrize("member", ["message", "param"])
async def test_a_refusal_of_megabytes(direct: Direct, member: str) -> None:
    """Only the beginning of a long refusal is read."""
    for text, kind in (
        ("context_length_exceeded" + "x" * 2_000, PromptTooLong),
        ("x" * 2_000 + "context_length_exceeded", ModelError),
    ):
        told = {"error": {"message": "no", member: text}}
        async with run_upstream_server(steps((400, told))) as server:
            with pytest.raises(ModelError) as raised:
                await direct.complete(Target(member, base_url=server.base), PROMPT)
        assert type(raised.value) is kind


@pytest.mark.parametrize(
    "error",
    [
        "%s",
        '{"error":%s}',
        '{"error":{"message":%s}}',
        '{"message":"x","code":%s}',
        '{"message":"x","param":%s}',
    ],
)
async def test_a_refusal_of_many_levels(direct: Direct, error: str) -> None:
    """A refusal of hundreds of levels, which can be read and not written, is a refusal like any
    other."""
    body = (error % ("[" * 1_015 + "]" * 1_015)).encode()
    async with run_upstream_server(script_answer(body, status=b"400 X")) as server:
        with pytest.raises(ModelError) as raised:
            await direct.complete(Target("m", base_url=server.base), PROMPT)
    assert type(raised.value) is ModelError


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
async def test_busy(direct: Direct, status: int) -> None:
    """A busy server is asked once: retries are the caller's."""
    script = script_answer(b'{"error":"x"}', b"Retry-After: 3", status=b"%d X" % status)
    async with run_upstream_server(script) as server:
        with pytest.raises(ModelBusy) as raised:
            await direct.complete(Target("m", base_url=server.base), PROMPT)
    assert raised.value.retry_after_s == 3.0
    assert len(server.seen) == 1


async def test_retry_after_a_date(direct: Direct) -> None:
    """A Retry-After date is read with the given clock."""
    script = script_answer(b"", b"Retry-After: Tue, 14 Nov 2023 22:13:50 GMT", status=b"503 X")
    async with run_upstream_server(script) as server:
        with pytest.raises(ModelBusy) as raised:
            await direct.complete(Target("m", base_url=server.base), PROMPT)
    assert raised.value.retry_after_s == 30.0


async def test_an_unreachable_server(direct: Direct) -> None:
    """A server that is down is worth another try."""
    async with run_upstream_server(script_answer(b"")) as server:
        base = server.base
    with pytest.raises(ModelBusy):
        await direct.complete(Target("m", base_url=base), PROMPT)


async def test_a_broken_answer(direct: Direct) -> None:
    """A body that ends early, or a reset connection, may be retried."""

    async def short(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        call.close()

    async def reset(call: Call) -> None:
        call.reset()

    for script in (short, reset):
        async with run_upstream_server(script) as server:
            with pytest.raises(ModelBusy):
                await direct.complete(Target("m", base_url=server.base), PROMPT)


async def test_an_endless_answer(direct: Direct) -> None:
    """An answer above the limit is an error, and takes no more memory."""
    async with run_upstream_server(script_answer(b" " * (MAX_ANSWER_BYTES + 1))) as server:
        with pytest.raises(ModelError, match="larger"):
            await direct.complete(Target("m", base_url=server.base), PROMPT)


async def test_cancelled(direct: Direct) -> None:
    """A deadline ends the call and closes its connection."""
    closed = asyncio.Event()

    async def hang(call: Call) -> None:
        await call.closed.wait()
        closed.set()

    async with run_upstream_server(hang) as server:
        asking = asyncio.create_task(direct.complete(Target("m", base_url=server.base), PROMPT))
        await server.wait_seen(1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(30):
            await closed.wait()


@pytest.mark.parametrize(
    "target",
    [
        Target("m"),
        Target("m", base_url="no address"),
        Target("m", base_url="http://[broken"),
        Target("m", base_url="http://127.0.0.1:1/v1", headers=(("authorization", "a\r\nb: c"),)),
    ],
)
async def test_a_configuration_that_cannot_work(direct: Direct, target: Target) -> None:
    """An impossible configuration raises a ModelError, and no foreign exception."""
    with pytest.raises(ModelError):
        await direct.complete(target, PROMPT)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500])
async def test_errors_quote_nothing(
    direct: Direct, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No error, cause or log line holds prompt or key, even if the server repeats them."""
    caplog.set_level(logging.DEBUG)
    async with run_upstream_server(
        steps((status, error("you said: the canary sings, with key k-canary")))
    ) as server:
        with pytest.raises(ModelError) as raised:
            await direct.complete(Target("m", base_url=server.base, api_key="k-canary"), PROMPT)
    told: BaseException | None = raised.value
    while told is not None:
        assert "canary" not in f"{told!s} {told!r}"
        told = told.__cause__ or told.__context__
    assert "canary" not in caplog.text
