"""Model servers that refuse what memory adds to a request, with any status and any words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.raw_upstream import (
    EVENTS,
    chat_body,
    run_with_raw_upstream,
    script_completion,
    script_stream,
)
from tests.e2e.running import CRATE_REMARK, SMALL_LOG_MEMORY, Running, run_with_scripted_models
from tests.e2e.test_receipts import COMPLETION, T, read_reason, refusing, window_body
from tests.support.upstream_server import Call, Script, script_answer


class NoSystem(ScriptedServer):
    """A server whose template has no system message."""

    status = 500

    async def act_out_fault(
        self, receive: Any, send: Any, fault: Any, model: str, *more: Any
    ) -> bool:
        if model == "scripted-actor" and b'"role":"system"' in self.requests[-1].body:
            fault = Fault(kind="http", status=self.status)
        return await super().act_out_fault(receive, send, fault, model, *more)


def actor_bodies(run: Running) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in run.models.requests_to("scripted-actor")]


@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_template_without_a_system_message(tmp_path: Path, status: int) -> None:
    """Every call is answered, one with a call more, or two where its plain form is tried as well; from
    then on the block stands in the first user message."""
    models = NoSystem()
    models.status = status
    async with run_with_scripted_models(tmp_path, SMALL_LOG_MEMORY, models=models) as run:
        chat, detours, applied = run.chat(), 0, 0
        chat.history.clear()
        for number in range(20):
            before = len(actor_bodies(run))
            _, receipt = await chat.say(CRATE_REMARK.format(n=number))
            detours += len(actor_bodies(run)) - before - 1
            applied += receipt["status"] == "applied"
            await run.app.background.wait_idle()
        assert detours == (2 if status == 400 else 1)
        assert applied > 5
        first, *others = actor_bodies(run)[-1]["messages"]
        assert first["role"] == "user"
        assert "<observations>" in first["content"]
        assert {message["role"] for message in others} == {"user", "assistant"}


async def test_an_outage(tmp_path: Path) -> None:
    """It costs one call more, and the next requests none; nor do those of a server that took such
    prompts before, which are doubted once a minute."""
    failing = b"500 Internal Server Error"
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        for calls in (2, 1, 1):
            got = await site.ask(window_body("two"), T, script=refusing(failing, times=9))
            assert (got.status, len(site.server.seen)) == (500, calls)
        got = await site.ask(window_body("two"), T)
        assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, "applied")
        for calls in (2, 1, 1):
            got = await site.ask(window_body("three"), T, script=refusing(failing, times=9))
            assert (got.status, len(site.server.seen)) == (500, calls)


def breaking(breaks: Callable[[Call], None]) -> Script:
    async def script(call: Call) -> None:
        breaks(call)

    return script


@pytest.mark.parametrize("breaks", [Call.reset, Call.close], ids=["reset", "closed"])
async def test_a_server_that_breaks_the_connection(
    tmp_path: Path, breaks: Callable[[Call], None]
) -> None:
    """It may be its way to refuse: once, the request goes out without what the server never
    accepted. What it accepted before may be served already, and is not sent twice."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        for broken, calls, status in ((1, 2, 200), (0, 1, 200), (1, 1, 502)):
            scripts = [breaking(breaks)] * broken

            async def script(call: Call, scripts: list[Script] = scripts) -> None:
                await (scripts.pop() if scripts else script_completion())(call)

            got = await site.ask(window_body("two"), T, script=script)
            assert (got.status, len(site.server.seen)) == (status, calls)


@pytest.mark.parametrize(
    "status",
    [b"401 X", b"403 X", *(b"%d X\r\nRetry-After: 1" % n for n in (429, 500, 503, 529))],
)
async def test_no_refusal(tmp_path: Path, status: bytes) -> None:
    """These say nothing of the prompt, so the client gets them at once."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(window_body("two"), T, script=refusing(status))
        assert (got.status, len(site.server.seen)) == (int(status[:3]), 1)


@pytest.mark.parametrize("status", [b"400 X", b"404 X"])
async def test_a_refusal_that_says_when_to_come_back(tmp_path: Path, status: bytes) -> None:
    """It is about the request all the same."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        script = refusing(status + b"\r\nRetry-After: 1")
        got = await site.ask(window_body("two"), T, script=script)
        assert (got.status, len(site.server.seen)) == (200, 2)


ERROR = b'{"error":{"message":"no system role","code":%s}}'
WRAPPED = {
    "object": lambda code: script_answer(ERROR % code, b"Content-Type: application/json"),
    "event": lambda code: script_stream(b"event: error\n", b"data: " + ERROR % code + b"\n\n"),
    "data": lambda code: script_stream(
        b": PROCESSING\n\n", b"data: " + ERROR % code + b"\n\n", b"data: [DONE]\n\n"
    ),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
async def test_a_refusal_inside_a_200(tmp_path: Path, wrap: Callable[[bytes], Script]) -> None:
    """The client gets the answer to the next prompt, or the refusal as it came where none follows.
    An error that is no refusal stays, too."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        for code, calls in ((b"400", 2), (b"500", 2), (b"null", 2), (b"429", 1)):
            scripts = [wrap(code)]

            async def script(call: Call, scripts: list[Script] = scripts) -> None:
                await (scripts.pop() if scripts else script_completion())(call)

            got = await site.ask(window_body("two"), T, script=script)
            assert len(site.server.seen) == calls
            assert (got.status, got.body == COMPLETION) == (200, calls > 1)
        told = got.body
        assert b"no system role" in told
        newest = await site.ask(chat_body("three"), T, script=wrap(b"400"))
        assert newest.body == told.replace(b"429", b"400")


@pytest.mark.parametrize(
    "script", [script_stream(*EVENTS), script_completion()], ids=["stream", "whole"]
)
async def test_a_200_without_a_refusal(tmp_path: Path, script: Script) -> None:
    """Its bytes stay as they are, however they came."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(window_body("two"), T, script=script)
        assert (got.body, len(site.server.seen)) in (
            (COMPLETION, 1),
            (b"".join(EVENTS), 1),
        )


async def test_a_form_that_is_refused(tmp_path: Path) -> None:
    """Its refusal is remembered: the next prompt has plain messages at once."""
    reply = b'{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"a","reasoning_content":"so"}}]}'

    async def script(call: Call) -> None:
        is_refused = b"reasoning_content" in call.seen.body
        await script_answer(reply, status=b"400 X" if is_refused else b"200 OK")(call)

    async with run_with_raw_upstream(tmp_path) as site:
        for number, calls in enumerate((1, 2, 1, 1)):
            got = await site.ask(chat_body(f"question {number}"), T, script=script)
            assert (got.status, len(site.server.seen)) == (200, calls)


async def test_the_original_is_sent_once(tmp_path: Path) -> None:
    """A status that may be an outage costs one call, whatever the original is answered."""
    statuses = iter([b"500 X", b"400 X"])

    async def script(call: Call) -> None:
        await script_answer(b'{"error":{}}', status=next(statuses))(call)

    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(window_body("two"), T, script=script)
        assert (got.status, len(site.server.seen)) == (400, 2)
        assert site.server.seen[-1].body == window_body("two")


@pytest.mark.parametrize("status", [b"400 X", b"500 X"])
async def test_a_stored_picture_that_has_expired(tmp_path: Path, status: bytes) -> None:
    """It costs one call more in each turn, in which a word stands for it, until it is noted: others
    may show pictures to this model that it takes."""
    shown = [{"type": "image_url", "image_url": {"url": "https://gone.example/a.png"}}]

    async def script(call: Call) -> None:
        is_refused = b"image_url" in call.seen.body
        answer = script_answer(b'{"error":{}}', status=status)
        await (answer if is_refused else script_completion())(call)

    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body(shown), T)
        for number in range(4):
            got = await site.ask(chat_body(f"question {number}"), T, script=script)
            assert (got.status, read_reason(got), len(site.server.seen)) == (200, "applied", 2)
            assert b'"[image]"' in site.server.seen[-1].body
