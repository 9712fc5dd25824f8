"""A prompt beyond a model's window: of the actor, one bounded observation and the shortened prompt
once more (docs/contributing/behaviour.md#refused-prompts); of the reflector, the older entries
alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from om_proxy.testing.scripted import Fault, RecordedRequest, ScriptedServer
from tests.e2e.raw_upstream import COMPLETION, chat_body, read_reason, run_with_raw_upstream
from tests.e2e.running import Chat, Running, read_streamed_text, run_with_scripted_models
from tests.e2e.trouble import wrap_opened_stores
from tests.support.upstream_server import Call, script_answer

WINDOW = 2_000
# Thresholds that are not reached, so that nothing is observed before the window is: as with a model
# of 8 000 tokens and defaults.
FAR = "observation: {message_tokens: 9000, buffer_tokens: false, block_timeout: 20s}"
SOON = FAR.replace("20s", "400ms")
BATCHES = (
    "observation: {message_tokens: 900, buffer_tokens: 300, block_after: 90000, block_timeout: 20s}"
)
STORY = "My locker at the station is number {n}, and the code of that locker is {n}{n}{n}. " * 4
ASK = "What is the code of locker 3?"


def models(**windows: int) -> ScriptedServer:
    script = {
        said["content"].strip(): noted
        for said, noted in zip(talk(60)[::2], talk(60)[1::2], strict=True)
    }
    return ScriptedServer(
        script,
        window={"scripted-actor": WINDOW, **{f"scripted-{who}": n for who, n in windows.items()}},
    )


def talk(turns: int, first: int = 1) -> list[dict[str, Any]]:
    said = [(STORY.format(n=n), f"Noted: locker {n}.") for n in range(first, first + turns)]
    return [
        {"role": role, "content": text}
        for pair in said
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]  # fmt: skip


def asking(turns: int, question: str = ASK) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "Be brief."},
        *talk(turns),
        {"role": "user", "content": question},
    ]


async def post(
    chat: Chat, messages: Sequence[dict[str, Any]], *, stream: bool = False, **headers: str
) -> httpx.Response:
    body = {"model": "scripted-actor", "messages": messages, "stream": stream}
    run = chat.running
    return await run.http.post(
        f"{run.base}/v1/chat/completions", json=body, headers={**chat.headers, **headers}
    )


def told(answer: httpx.Response) -> str:
    why = answer.headers.get("x-om-reason")
    return answer.headers["x-om-status"] + (f"/{why}" if why else "")


def said(answer: httpx.Response) -> str:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return read_streamed_text(answer.content)
    return str(answer.json()["choices"][0]["message"]["content"])


def reply(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200
    return {"role": "assistant", "content": said(answer)}


def refusal(seen: RecordedRequest) -> bytes:
    """What the scripted server answers this request with."""
    text = f"This model's maximum context length is {WINDOW} tokens; your messages have {seen.prompt_tokens}."
    error = {
        "message": text,
        "type": "scripted_error",
        "param": None,
        "code": "context_length_exceeded",
    }
    return orjson.dumps({"error": error})


def to_actor(run: Running) -> list[RecordedRequest]:
    return run.models.requests_to("scripted-actor")


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - the scripted server has no event to wait for
            await asyncio.sleep(0)


async def begun(run: Running) -> Chat:
    """A thread whose caller the upstream has accepted."""
    chat = run.chat()
    assert (await post(chat, asking(0, STORY.format(n=1)))).status_code == 200
    run.models.requests.clear()
    return chat


# ── it fits in the end ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_raw_history_beyond_the_window(tmp_path: Path, stream: bool) -> None:
    """It is observed up to the question, sent once more, and answered from what was observed; so is
    the next turn, at once."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        messages = asking(24)
        answer = await post(chat, messages, stream=stream)
        text = said(answer)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert "333" in text
        raw, shortened = to_actor(run)
        assert raw.prompt_tokens > WINDOW >= shortened.prompt_tokens
        assert list(raw.messages) == messages
        assert shortened.messages[-1] == messages[-1]
        assert len(run.models.requests_to("scripted-observer")) == 1
        assert int(answer.headers["x-om-tokens-sent"]) < int(answer.headers["x-om-tokens-received"])

        memory = await run.memory()
        assert (memory.covered_count, memory.count) == (48, 50)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": "And of locker 7?"},
        ]
        answer = await post(chat, messages, stream=stream)
        assert (answer.status_code, told(answer)) == (200, "applied")
        assert "777" in said(answer)
        assert len(to_actor(run)) == 3


async def test_a_long_history_first_seen(tmp_path: Path) -> None:
    """An upstream that has counted a first request's tokens knows its caller: its history is stored
    and observed."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        answer = await post(run.chat(), asking(24))
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert "333" in answer.text
        memory = await run.memory()
        assert (memory.covered_count, memory.count) == (48, 50)


async def test_a_rewritten_prompt_beyond_the_window(tmp_path: Path) -> None:
    """Rewritten, original, shortened, and never more: what was not observed yet is observed too."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        messages = asking(24)
        messages.append(reply(await post(chat, messages)))
        covered = (await run.memory()).coverage
        run.models.requests.clear()
        messages += [
            *talk(24, first=30),
            {"role": "user", "content": "What is the code of locker 44?"},
        ]
        answer = await post(chat, messages)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert "444444" in answer.text
        rewritten, original, shortened = to_actor(run)
        assert list(original.messages) == messages
        assert original.prompt_tokens > rewritten.prompt_tokens > WINDOW >= shortened.prompt_tokens
        assert (await run.memory()).coverage > covered


async def test_a_refusal_of_another_kind_and_then_the_window(tmp_path: Path) -> None:
    """A rewritten prompt may be refused for anything; the original's refusal decides."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        messages = asking(24)
        messages += [
            reply(await post(chat, messages)),
            *talk(1, first=50),
            {"role": "user", "content": ASK},
        ]
        run.models.requests.clear()
        run.models.faults.switch(
            Fault(kind="http", model="scripted-actor", status=422, code="strict", times=3)
        )
        answer = await post(chat, messages)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        # as it is, in its plain form, with the block in the first message, the original, shortened
        assert len(to_actor(run)) == 5


async def test_what_is_buffered_needs_no_observation(tmp_path: Path) -> None:
    """Chunks become active below the threshold, for the request fails otherwise; their rest is
    observed."""
    buffering = "observation: {message_tokens: 9000, buffer_tokens: 500, block_timeout: 5s}"
    async with run_with_scripted_models(tmp_path, buffering, models=models()) as run:
        chat = run.chat()
        for turns in range(2, 16, 2):
            assert (await post(chat, asking(turns, STORY.format(n=turns + 1)))).status_code == 200
            await run.app.background.wait_idle()
        before = await run.memory()
        assert before.chunks
        assert not before.log.entries
        answer = await post(chat, asking(24))
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        after = await run.memory()
        assert after.log.entries[: len(before.chunks)] == before.chunks


async def test_a_backlog_of_several_batches(tmp_path: Path) -> None:
    """An observation reads no more than the threshold; one follows another as long as the deadline
    allows."""
    async with run_with_scripted_models(tmp_path, BATCHES, models=models()) as run:
        answer = await post(await begun(run), asking(40))
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        memory = await run.memory()
        assert len(memory.log.entries) > 2
        assert all(entry.source_tokens <= 900 for entry in memory.log.entries)
        assert memory.covered_count == 80


async def test_an_observer_with_the_same_window(tmp_path: Path) -> None:
    """A batch that is too long for it is halved, and the other half follows."""
    async with run_with_scripted_models(tmp_path, FAR, models=models(observer=2 * WINDOW)) as run:
        answer = await post(await begun(run), asking(24))
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert "333" in said(answer)
        memory = await run.memory()
        assert (len(memory.log.entries), memory.covered_count) == (2, 48)


async def test_a_fork_beyond_the_window(tmp_path: Path) -> None:
    """What lies before an edit is observed for it; what the edit takes back stands until its reply
    has come."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        assert (await post(chat, asking(18))).status_code == 200
        run.models.requests.clear()
        edited = [
            *asking(18)[:-1],
            {"role": "user", "content": ASK + " Please. " + "I am in a hurry. " * 150},
        ]
        answer = await post(chat, edited)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        memory = await run.memory()
        assert (memory.covered_count, memory.count) == (36, 38)
        (question, _) = memory.tail
        assert b"hurry" in question.item.raw


async def test_an_agent_s_long_turn(tmp_path: Path) -> None:
    """Steps leave from within a turn, each call with its result; the step that is asked about
    stays."""

    def step(n: int) -> list[dict[str, Any]]:
        function = {"name": "read_locker", "arguments": f'{{"number": {n}}}'}
        call = {"id": f"c{n}", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{n}", "content": STORY.format(n=n)},
        ]

    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        messages = [
            *asking(1, "Read all of my lockers."),
            *(message for n in range(24) for message in step(n)),
        ]
        answer = await post(chat, messages)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        _, shortened = to_actor(run)
        assert list(shortened.messages[-2:]) == messages[-2:]
        results = [m["tool_call_id"] for m in shortened.messages if m["role"] == "tool"]
        assert (
            results
            == [c["id"] for m in shortened.messages for c in m.get("tool_calls") or ()]
            == ["c23"]
        )


async def test_two_requests_at_once(tmp_path: Path) -> None:
    """They wait for the same observation, and both are answered."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        both = await asyncio.gather(
            post(chat, asking(24)), post(chat, asking(24, "What is the code of locker 5?"))
        )
        assert [(answer.status_code, told(answer)) for answer in both] == [
            (200, "applied/context-overflow")
        ] * 2
        assert ["333" in said(both[0]), "555" in said(both[1])] == [True, True]
        assert (await run.memory()).covered_count >= 48


async def test_a_fork_of_several_messages_beyond_the_window(tmp_path: Path) -> None:
    """None of them is stored yet, nor is what they take back observed for them: only what lies
    before both."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        assert (await post(chat, asking(18))).status_code == 200
        edited = [
            *asking(12, "Forget locker 13."),
            {"role": "assistant", "content": "Forgotten."},
            *talk(10, first=30),
        ]
        answer = await post(chat, [*edited, {"role": "user", "content": ASK}])
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        (observer,) = run.models.requests_to("scripted-observer")
        shown = observer.messages[-1]["content"]
        assert ["number 12," in shown, "number 13," in shown, "number 30," in shown] == [
            True,
            False,
            False,
        ]
        memory = await run.memory()
        assert (memory.covered_count, memory.count) == (24, 48)


# ── it does not ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_observer_that_never_answers(tmp_path: Path, stream: bool) -> None:
    """At the deadline the client gets the upstream's error byte for byte; what it said is stored
    and a later try succeeds."""
    async with run_with_scripted_models(
        tmp_path, SOON, models=models(), model_timeout_s=1.0
    ) as run:
        chat = await begun(run)
        run.models.faults.switch(Fault(kind="hang", model="scripted-observer", times=1))
        started = time.perf_counter()
        answer = await post(chat, asking(24), stream=stream)
        assert time.perf_counter() - started < 10
        (raw,) = to_actor(run)
        assert (answer.status_code, answer.content) == (400, refusal(raw))
        assert answer.headers["content-type"] == "application/json"
        assert told(answer) == "degraded/context-overflow"
        assert float(answer.headers["x-om-overhead-ms"]) >= 400
        memory = await run.memory()
        assert (memory.coverage, memory.count) == (0, 49)

        await run.app.background.wait_idle()
        run.clock.now += 7 * 3_600  # beyond the back-off
        answer = await post(chat, asking(24), stream=stream)
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert (await run.memory()).count == 50


async def test_an_observation_that_is_late(tmp_path: Path) -> None:
    """It goes on without the client, and the next try is shortened by it at once."""
    slow = Fault(kind="slow", model="scripted-observer", seconds=0.8, times=1)
    async with run_with_scripted_models(tmp_path, SOON, models=models()) as run:
        chat = await begun(run)
        run.models.faults.switch(slow)
        answer = await post(chat, asking(24))
        assert (answer.status_code, told(answer)) == (400, "degraded/context-overflow")
        await run.app.background.wait_idle()
        assert (await run.memory()).chunks
        answer = await post(chat, asking(24))
        assert (answer.status_code, told(answer)) == (200, "applied/context-overflow")
        assert len(run.models.requests_to("scripted-observer")) == 1


async def test_an_observer_that_fails(tmp_path: Path) -> None:
    """The client is told at once, and while the thread is in back-off nothing is waited for."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        run.models.faults.switch(Fault(kind="http", model="scripted-observer", status=401))
        for status in ("degraded/context-overflow", "raw/observer-failing"):
            run.models.requests.clear()
            answer = await post(chat, asking(24))
            (raw,) = to_actor(run)
            assert (answer.status_code, answer.content, told(answer)) == (400, refusal(raw), status)
        assert not run.models.requests_to("scripted-observer")


async def test_a_question_beyond_the_window(tmp_path: Path) -> None:
    """Where the shortened prompt is refused as well, the first refusal is what the client gets;
    nothing more is tried."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        answer = await post(chat, asking(8, "What is it? " * 800))
        raw, shortened = to_actor(run)
        assert raw.prompt_tokens > shortened.prompt_tokens > WINDOW
        assert (answer.status_code, answer.content) == (400, refusal(raw))
        assert told(answer) == "degraded/context-overflow"
        assert answer.headers["x-om-tokens-sent"] == answer.headers["x-om-tokens-received"]


async def test_a_newest_message_that_does_not_fit(tmp_path: Path) -> None:
    """The client is told so, and its message is never tried alone."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = run.chat(**{"x-om-history": "new"})
        for message in talk(4)[::2]:
            assert (await post(chat, [message])).status_code == 200
        run.models.requests.clear()
        answer = await post(chat, [{"role": "user", "content": "What is it? " * 800}])
        assert (answer.status_code, told(answer)) == (400, "degraded/context-overflow")
        assert all(len(call.messages) > 1 for call in to_actor(run))


async def test_a_client_that_sends_its_newest_message_only(tmp_path: Path) -> None:
    """Its prompt is shortened when it does not fit any more. No model is asked without the
    conversation, and every request is answered."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = run.chat()
        receipts = []
        for message in talk(40)[::2]:
            answer = await post(chat, [message])
            assert answer.status_code == 200
            receipts.append(told(answer))
        assert set(receipts) == {"raw", "applied", "applied/context-overflow"}
        assert all(len(call.messages) > 1 for call in to_actor(run)[1:])


@pytest.mark.parametrize(
    ("mode", "config", "status"),
    [
        ("read", FAR, "raw"),
        ("write", FAR, "raw/write-only"),
        ("on", f"mode: shadow, {FAR}", "raw/write-only"),
        ("off", FAR, "off/mode-off"),
    ],
    ids=["read", "write", "shadow", "off"],
)
async def test_modes(tmp_path: Path, mode: str, config: str, status: str) -> None:
    """Where nothing may be stored, or nothing rewritten, the refusal is the answer."""
    async with run_with_scripted_models(tmp_path, config, models=models()) as run:
        chat = await begun(run)
        answer = await post(chat, asking(24), **{"x-om-mode": mode})
        (raw,) = to_actor(run)
        assert (answer.status_code, answer.content, told(answer)) == (400, refusal(raw), status)
        assert not run.models.requests_to("scripted-observer")


@pytest.mark.parametrize("status", [503, 429])
async def test_another_failure_of_the_shortened_prompt(tmp_path: Path, status: int) -> None:
    """It says nothing against the prompt: the client is told to try again, and then it is short
    from the start."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        run.models.faults.switch(
            Fault(
                kind="slow", model="scripted-actor", seconds=0.0, times=1
            ),  # for the original, which the window refuses
            Fault(kind="http", model="scripted-actor", status=status, times=1),
        )
        answer = await post(chat, asking(24))
        assert (answer.status_code, told(answer)) == (status, "applied/context-overflow")
        answer = await post(chat, asking(24))
        assert (answer.status_code, told(answer)) == (200, "applied")


async def test_a_store_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory fails open here, too: the refusal, one second after the deadline at the latest."""
    stores = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path, SOON, models=models()) as run:
        chat = await begun(run)
        run.models.faults.switch(Fault(kind="slow", model="scripted-actor", seconds=0.2, times=1))
        asked = asyncio.create_task(post(chat, asking(24)))
        await until(lambda: bool(to_actor(run)))
        stores[0].slow()
        started = time.perf_counter()
        answer = await asked
        assert time.perf_counter() - started < 10
        stores[0].well()
        (raw,) = to_actor(run)
        assert (answer.status_code, answer.content) == (400, refusal(raw))
        assert told(answer) == "degraded/context-overflow"


async def test_a_client_that_leaves_while_it_is_waited(tmp_path: Path) -> None:
    """Nothing more is asked of the actor; the observation goes on, for what was said is stored."""
    async with run_with_scripted_models(tmp_path, FAR, models=models()) as run:
        chat = await begun(run)
        run.models.faults.switch(
            Fault(kind="slow", model="scripted-observer", seconds=0.5, times=1)
        )
        asked = asyncio.create_task(post(chat, asking(24)))
        await until(lambda: bool(run.models.requests_to("scripted-observer")))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await run.app.background.wait_idle()
        assert len(to_actor(run)) == 1
        memory = await run.memory()
        assert (memory.count, len(memory.chunks)) == (49, 1)


# ── whose word it is ──────────────────────────────────────────────────────────────────────────────

PAGE = b"<html><head><title>413 Request Entity Too Large</title></head></html>"


@pytest.mark.parametrize(
    ("error", "observed"), [(PAGE, False), (b'{"error":{"code":"tokens_limit_reached"}}', True)]
)
async def test_a_413_of_a_first_request(tmp_path: Path, error: bytes, observed: bool) -> None:
    """A gateway may answer it without a look at the credential: on its word nothing is stored or
    observed. A server that has counted the tokens has looked."""
    question, answered = (
        {"role": "user", "content": "number " * 60},
        {"role": "assistant", "content": "well"},
    )
    async with run_with_raw_upstream(tmp_path) as site:
        body = orjson.dumps({"model": "m", "messages": [question, answered] * 4 + [question]})
        script = script_answer(
            error, b"Content-Type: text/html", status=b"413 Request Entity Too Large"
        )
        got = await site.ask(body, b"X-OM-Thread: t", script=script)
        assert (got.status, got.body) == (413, error)
        assert read_reason(got) == ("degraded/context-overflow" if observed else "raw")
        assert (len(site.server.seen) > 1, await site.threads()) == (observed, int(observed))


async def test_a_bare_413_of_a_known_thread(tmp_path: Path) -> None:
    """From a caller the upstream has answered before, it is what it says: too large, and worth an
    observation."""
    notes = {
        "content": "<observations>\nDate: Nov 14, 2023\n* 🔴 (10:00) User counts to seven\n</observations>"
    }
    refused = 1

    async def script(call: Call) -> None:
        nonlocal refused
        if call.seen.header(b"authorization") == [b"Bearer sk-observer"]:
            await script_answer(orjson.dumps({"choices": [{"message": notes}]}))(call)
        elif refused:
            refused -= 1
            await script_answer(PAGE, status=b"413 Request Entity Too Large")(call)
        else:
            await script_answer(COMPLETION)(call)

    question = {"role": "user", "content": "number " * 200}
    answered = {"role": "assistant", "content": "fünf €"}  # what COMPLETION says
    async with run_with_raw_upstream(tmp_path) as site:
        body = orjson.dumps({"model": "m", "messages": [question]})
        assert (await site.ask(body, b"X-OM-Thread: t")).status == 200
        body = orjson.dumps({"model": "m", "messages": [question, answered] * 4 + [question]})
        got = await site.ask(body, b"X-OM-Thread: t", script=script)
        assert (got.status, got.body, read_reason(got)) == (
            200,
            COMPLETION,
            "applied/context-overflow",
        )
        refused_one, _, shortened = site.server.seen
        assert refused_one.body == body
        assert orjson.loads(shortened.body)["messages"][-1] == question


@pytest.mark.parametrize("size", [100, 70_000, 1_000_000])
async def test_any_error_arrives_as_it_came(tmp_path: Path, size: int) -> None:
    """Read or not: large ones are not looked into, and no byte is lost or doubled."""
    error = b'{"error":{"message":"' + b"x" * size + b'"}}'
    async with run_with_raw_upstream(tmp_path) as site:
        script = script_answer(error, b"Content-Type: application/json", status=b"400 Bad Request")
        got = await site.ask(chat_body("one"), b"X-OM-Thread: t", script=script)
        assert (got.status, got.body, read_reason(got)) == (400, error, "raw")
        assert len(site.server.seen) == 1


# ── the reflector ─────────────────────────────────────────────────────────────────────────────────

TWO_MODELS = 'models: {"*": {observation: {model: openai/scripted-observer}, reflection: {model: openai/scripted-reflector}}}'


async def test_a_log_beyond_the_reflector_s_window(tmp_path: Path) -> None:
    """The older entries of the stretch are reflected on, as many as it takes; the log shrinks, no
    entry and no message is lost, and all goes on."""
    window = 1_900
    budget = (
        STORY
        + "My budget for it is {n} coins a day. Should I rent locker {n} for another day, or for the week?"
    )
    async with run_with_scripted_models(
        tmp_path, models=ScriptedServer(window={"scripted-reflector": window}), more=TWO_MODELS
    ) as run:
        chat = run.chat()
        for n in range(30):
            await chat.say(budget.format(n=n))
            await run.app.background.wait_idle()
        asked = [seen.prompt_tokens for seen in run.models.requests_to("scripted-reflector")]
        assert max(asked) > window > min(asked)
        memory = await run.memory()
        assert memory.log.generation >= 1
        assert memory.failures.count == 0
        assert memory.log.entries[0].kind == "reflection"
        ranges = [(entry.after, entry.last) for entry in (*memory.log.entries, *memory.chunks)]
        assert [after for after, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
        assert memory.count == 60
