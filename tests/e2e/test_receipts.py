"""Every word of the receipt, caused for real, and the list of them in docs/reference."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.common.errors import Conflict, StorageError
from om_proxy.memory.lifecycle.transitions import activate_chunks, add_chunk, park
from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from om_proxy.testing.scripted import Fault, ScriptedServer
from tests.e2e.playing import Model, Play, collect_turn_events
from tests.e2e.raw_upstream import (
    COMPLETION,
    ProxyUnderTest,
    chat_body,
    read_reason,
    run_with_raw_upstream,
)
from tests.e2e.running import run_with_scripted_models
from tests.e2e.trouble import wrap_opened_stores
from tests.e2e.written import collect_log_lines
from tests.memory.building import chunk
from tests.support.raw_client import RawClient, ask
from tests.support.upstream_server import Call, Script, script_answer

T = b"X-OM-Thread: t"
TINY = "observation: {message_tokens: 60, buffer_tokens: 20, block_timeout: 200ms}"


async def live(site: ProxyUnderTest) -> int:
    return (await site.app.store.load(Key(LOCAL_TENANT, "t", "t"))).count


# ── off, raw, applied ─────────────────────────────────────────────────────────────────────────────


async def test_off_raw_applied(tmp_path: Path) -> None:
    """Without a thread memory is off; with one there is nothing to rewrite at first; then the
    prompt is completed from memory."""
    async with run_with_raw_upstream(tmp_path) as site:
        assert read_reason(await site.ask(chat_body("hi"))) == "off/no-thread"
        assert (
            read_reason(await site.ask(chat_body("hi"), b"X-OM-Thread: {{LIBRECHAT_ID}}"))
            == "off/no-thread"
        )
        assert read_reason(await site.ask(chat_body("hi"), T, b"X-OM-Mode: off")) == "off/mode-off"
        assert (
            read_reason(await site.ask(chat_body("hi"), T, b"X-OM-Task: title"))
            == "off/side-request"
        )
        assert read_reason(await site.ask(chat_body("### Task: title"), T)) == "off/side-request"
        assert read_reason(await site.ask(chat_body(), T)) == "off/no-messages"
        assert read_reason(await site.ask(b"hi", T)) == "off/unreadable"
        assert read_reason(await site.ask(chat_body("hi"), T, path="/v1/embeddings")) == "off/route"
        got = await site.ask(chat_body("hi"), T)
        assert read_reason(got) == "raw"
        receipt = {
            name[5:].decode(): value for name, value in got.headers if name.startswith(b"x-om-")
        }
        assert set(receipt) == {
            "status", "thread", "tokens-received", "tokens-sent", "pending-tokens", "observation-tokens", "chunks", "generation",
            "overhead-ms",
        }  # fmt: skip
        assert receipt["tokens-received"] == receipt["tokens-sent"] == receipt["pending-tokens"]
        got = await site.ask(chat_body("and now"), T)
        assert read_reason(got) == "applied"
        assert int(got.header(b"x-om-tokens-sent")[0]) > int(got.header(b"x-om-tokens-received")[0])
        assert (
            read_reason(await site.ask(chat_body("and now?"), T, b"X-OM-Mode: write"))
            == "raw/write-only"
        )


async def test_how_long_a_client_sends_is_not_ours(tmp_path: Path) -> None:
    """The overhead counts from the body's end."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("hi"), T)  # the first of all loads what counts tokens
        client, body = await RawClient.connect(site.port), chat_body("hi again")
        client.send_head("POST", "/v1/chat/completions", b"Content-Length: %d" % len(body), T)
        client.writer.write(body[:10])
        await client.writer.drain()
        await asyncio.sleep(1.5)  # an upload that takes its time
        ended_at = time.perf_counter()
        client.writer.write(body[10:])
        got = await client.answer()
        waited_ms = 1_000 * (time.perf_counter() - ended_at)
        client.leave()
        assert read_reason(got) == "applied"
        assert float(got.header(b"x-om-overhead-ms")[0]) <= waited_ms


async def test_side_requests_by_model(tmp_path: Path) -> None:
    """A model used for titles alone has no memory."""
    async with run_with_raw_upstream(tmp_path, "side_requests: {models: [title-model]}") as site:
        assert (
            read_reason(await site.ask(chat_body("hi", model="title-model"), T))
            == "off/side-request"
        )


async def test_disabled(tmp_path: Path) -> None:
    """With memory switched off everything passes."""
    async with run_with_raw_upstream(tmp_path, memory=", enabled: false") as site:
        assert read_reason(await site.ask(chat_body("hi"), T)) == "off/disabled"
        assert site.seen.body == chat_body("hi")


async def test_shadow(tmp_path: Path) -> None:
    """In shadow mode the memory is kept and the prompt goes on unchanged."""
    async with run_with_raw_upstream(tmp_path, memory=", mode: shadow") as site:
        for text in ("one", "two"):
            assert read_reason(await site.ask(chat_body(text), T)) == "raw/write-only"
            assert site.seen.body == chat_body(text)
        assert await live(site) == 4


async def test_no_credential(tmp_path: Path) -> None:
    """On a bind that others can reach, whoever brings no credential has no memory."""
    async with run_with_raw_upstream(
        tmp_path, "server: {host: 0.0.0.0, admin_token: 0123456789abcdef}"
    ) as site:
        assert read_reason(await site.ask(chat_body("hi"), T)) == "off/no-credential"
        assert (
            read_reason(await site.ask(chat_body("hi"), T, b"Authorization: Bearer sk-a")) == "raw"
        )


# ── the observer ──────────────────────────────────────────────────────────────────────────────────


async def test_observer_late_and_failing(tmp_path: Path) -> None:
    """A request that waits in vain is late. So is one that would wait, were its thread not in
    back-off. Of a parked thread the observer fails."""
    async with run_with_scripted_models(tmp_path, memory=TINY) as run:
        chat = run.chat()
        run.models.faults.switch(Fault(kind="hang", model="scripted-observer", times=1))
        first = [(await chat.say(f"My budget is {n} coins, and so it stays."))[1] for n in range(8)]
        assert "observer-late" in {receipt.get("reason") for receipt in first}
    async with run_with_scripted_models(tmp_path / "..", memory=TINY) as run:
        chat = run.chat("other")
        run.models.faults.switch(Fault(kind="refusal", model="scripted-observer"))
        for n in range(4):
            await chat.say(f"My budget is {n} coins, and so it stays.")
            await run.app.background.wait_idle()
        asked = len(run.models.requests_to("scripted-observer"))
        _, receipt = await chat.say("And now?")
        assert (receipt["status"], receipt["reason"]) == ("raw", "observer-late")
        assert len(run.models.requests_to("scripted-observer")) == asked
        for thread in await run.app.store.threads(None):
            memory = await run.app.store.load(thread.key)
            await run.app.store.commit(memory, replace(park(memory), due_at=None))
        _, receipt = await chat.say("And then?")
        assert (receipt["status"], receipt["reason"]) == ("raw", "observer-failing")


async def test_fork_not_waited(tmp_path: Path) -> None:
    """What only a fork would store cannot be observed before its reply is there: it goes raw."""
    with collect_turn_events() as turn_events:
        async with run_with_scripted_models(tmp_path, memory=TINY, models=Model()) as run:
            play = Play(run, turn_events, "t")
            await play.play_turns("u1 a1")
            turn = await play.turn(
                " ".join(f"ux{n} ay{n}" for n in range(12)) + " uz", **{"X-OM-History": "full"}
            )
            assert (turn.case, turn.receipt["status"], turn.receipt.get("reason")) == (
                "edit",
                "raw",
                "fork-not-waited",
            )
            assert turn.exact


async def test_context_overflow(tmp_path: Path) -> None:
    """A prompt beyond the model's window is shortened while the request waits
    (tests/e2e/test_context_overflow.py has the rest)."""
    models = ScriptedServer(window={"scripted-actor": 1_200})
    async with run_with_scripted_models(
        tmp_path, memory="observation: {buffer_tokens: false}", models=models
    ) as run:
        chat = run.chat()
        receipts = [(await chat.say(f"My budget is {n} coins. " * 40))[1] for n in range(6)]
        assert [r["status"] for r in receipts if r.get("reason") == "context-overflow"] == [
            "applied"
        ]


# ── degraded ──────────────────────────────────────────────────────────────────────────────────────


async def test_tail_limit(tmp_path: Path) -> None:
    """What does not fit the limit is left out of the prompt, never of the transcript."""
    async with run_with_raw_upstream(tmp_path, "context: {tail_limit: 40}") as site:
        for n in range(6):
            got = await site.ask(chat_body(f"word {n} " * 5), T)
        assert read_reason(got) == "degraded/tail-limit"
        messages = orjson.loads(site.seen.body)["messages"]
        assert messages[-1]["content"] == "word 5 " * 5
        assert len(messages) < 11
        assert await live(site) == 12


REPLY = orjson.loads(COMPLETION.replace(b"1e400", b"1"))["choices"][0]["message"]


def window_body(text: str) -> bytes:
    """Write a request with the reply before this message."""
    return orjson.dumps({"model": "m", "messages": [REPLY, {"role": "user", "content": text}]})


def refusing(status: bytes, *, times: int = 1) -> Script:
    """Refuse so often, then answer."""
    left = times

    async def script(call: Call) -> None:
        nonlocal left
        left -= 1
        await (
            script_answer(b'{"error":{}}', status=status)
            if left >= 0
            else script_answer(COMPLETION)
        )(call)

    return script


@pytest.mark.parametrize("status", [b"400 Bad Request", b"413 Too Large", b"422 Unprocessable"])
async def test_upstream_refused(tmp_path: Path, status: bytes) -> None:
    """A rewritten prompt that is refused is followed by the original, once, if that holds the
    conversation or a part of it."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(window_body("two"), T, script=refusing(status))
        assert (got.status, got.body, read_reason(got)) == (
            200,
            COMPLETION,
            "degraded/upstream-refused",
        )
        rewritten, *_, original = site.server.seen
        assert b"one" in rewritten.body
        assert original.body == window_body("two")
        assert await live(site) == 4
        got = await site.ask(window_body("three"), T, script=refusing(status, times=9))
        assert (got.status, got.body, read_reason(got)) == (
            int(status[:3]),
            b'{"error":{}}',
            "degraded/upstream-refused",
        )
        assert site.server.seen[-1].body == window_body("three")
        assert await live(site) == 4


@pytest.mark.parametrize("status", [b"400 Bad Request", b"422 Unprocessable"])
async def test_a_newest_message_is_no_fallback(tmp_path: Path, status: bytes) -> None:
    """A client that sends its newest message only gets the refusal, not an answer without its
    conversation."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(chat_body("two"), T, script=refusing(status))
        assert (got.status, got.body, read_reason(got)) == (
            int(status[:3]),
            b'{"error":{}}',
            "degraded/upstream-refused",
        )
        (rewritten,) = site.server.seen
        assert b"one" in rewritten.body
        assert await live(site) == 2
        assert read_reason(await site.ask(chat_body("two"), T)) == "applied"


async def test_a_refused_prompt_is_tried_in_its_plain_form(tmp_path: Path) -> None:
    """Role, text and calls alone, before a client that sends its newest message only gets the
    refusal. What it sent itself keeps its bytes."""
    thinking = COMPLETION.replace(b'"role"', b'"reasoning_content":"hm","role"')
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T, script=script_answer(thinking))
        question = b'{"model":"m","messages":[{"role":"user","content":"two","cache_control":{}}]}'
        got = await site.ask(question, T, script=refusing(b"400 Bad Request"))
        assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, "applied")
        rewritten, plain = site.server.seen
        assert rewritten.body.count(b"reasoning_content") == 1
        assert b"reasoning_content" not in plain.body
        assert b"cache_control" in plain.body
        assert await live(site) == 4
        got = await site.ask(chat_body("three"), T, script=refusing(b"400 Bad Request", times=9))
        assert (got.status, read_reason(got)) == (400, "degraded/upstream-refused")
        [plain] = site.server.seen  # what was refused lately is not tried again so soon
        assert b"reasoning_content" not in plain.body


async def test_tool_pairs(tmp_path: Path) -> None:
    """Notes that part a call from its result, as those of a store that others wrote may: the client
    shows both, so its own request goes out."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(orjson.dumps({"model": "m", "messages": messages}), T)
        memory = await site.app.store.load(Key(LOCAL_TENANT, "t", "t"))
        noted = add_chunk(memory, chunk(memory, 2))
        parted = activate_chunks(noted, [noted.chunks[0].id], site.clock())
        await site.app.store.commit(memory, parted)
        messages += [REPLY, {"role": "user", "content": "two"}]
        body = orjson.dumps({"model": "m", "messages": messages})
        assert read_reason(await site.ask(body, T)) == "degraded/tool-pairs"
        assert site.seen.body == body


@pytest.mark.parametrize(
    "status", [b"401 Unauthorized", b"404 Not Found", b"429 Too Many", b"500 Oh", b"503 Busy"]
)
async def test_other_failures_are_not_repeated(tmp_path: Path, status: bytes) -> None:
    """They say nothing against the prompt."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        got = await site.ask(chat_body("two"), T, script=refusing(status))
        assert (got.status, read_reason(got), len(site.server.seen)) == (
            int(status[:3]),
            "applied",
            1,
        )


async def test_a_refused_original_is_not_repeated(tmp_path: Path) -> None:
    """Where nothing was rewritten, there is nothing to take back."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("one"), T, script=refusing(b"400 Bad Request"))
        assert (got.status, read_reason(got), len(site.server.seen)) == (400, "raw", 1)


async def test_unreadable_message(tmp_path: Path) -> None:
    """What is no message is the upstream's to judge."""
    async with run_with_raw_upstream(tmp_path) as site:
        body = b'{"model":"m","messages":[1,{"role":"user","content":"hi"}]}'
        got = await site.ask(body, T)
        assert (read_reason(got), site.seen.body, got.body) == (
            "degraded/unreadable",
            body,
            COMPLETION,
        )
        assert await live(site) == 0


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        pytest.param(StorageError("the disk is gone"), "storage", id="storage"),
        pytest.param(RuntimeError("a mistake of ours"), "memory-error", id="memory-error"),
        pytest.param(None, "memory-slow", id="memory-slow"),
    ],
)
async def test_memory_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Exception | None,
    word: str,
) -> None:
    """Whatever happens to the store, the client's original bytes are answered. Memory is there
    again after it, with the turn that it missed."""
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_raw_upstream(
        tmp_path, memory=", observation: {block_timeout: 100ms}"
    ) as site:
        await site.ask(chat_body("one"), T)
        (store,) = opened
        store.raising(trouble) if trouble else store.slow()
        with (
            monkeypatch.context() as hurried
        ):  # for this one alone: a busy machine may be slow with the others
            hurried.setattr("om_proxy.edge.chat.MAX_OPEN_S", 0.1)
            got = await site.ask(chat_body("two"), T)
        assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, f"degraded/{word}")
        assert site.seen.body == chat_body("two")
        store.well()
        assert read_reason(await site.ask(chat_body("three"), T)) == "applied"
        assert await live(site) == 6


async def test_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that others write to faster than a change can be committed."""
    opened = wrap_opened_stores(monkeypatch)
    async with run_with_scripted_models(tmp_path, memory=TINY) as run:
        chat = run.chat()
        for _ in range(2):
            await chat.say("My budget is 5 coins.")
            await run.app.background.wait_idle()
        assert (await run.memory()).chunks
        opened[0].raising(Conflict("someone was first"), "commit")
        _, receipt = await chat.say("And now something long: " + "my budget is 6 coins. " * 20)
        assert (receipt["status"], receipt["reason"]) == ("degraded", "conflict")


async def test_the_store_is_closed_while_serving(tmp_path: Path) -> None:
    """Chat still answers."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        await site.app.store.close()
        got = await site.ask(chat_body("two"), T)
        assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, "degraded/storage")
        assert site.seen.body == chat_body("two")


def rename_table(file: Path, table: str, name: str) -> None:
    """Rename it once no commit is under way. In a thread: one of the server needs the loop to end."""
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        db.execute(f"ALTER TABLE {table} RENAME TO {name}")
        db.execute("COMMIT")


async def test_the_database_is_damaged_while_serving(tmp_path: Path) -> None:
    """A table is gone: chat still answers; it is back: memory goes on."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        await asyncio.to_thread(rename_table, tmp_path / "om.db", "thread", "gone")
        got = await site.ask(chat_body("two"), T)
        assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, "degraded/storage")
        await asyncio.to_thread(rename_table, tmp_path / "om.db", "gone", "thread")
        assert read_reason(await site.ask(chat_body("three"), T)) == "applied"


async def test_the_database_is_locked_while_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a reply waits for its commit no longer than the bound; the commit goes on."""
    monkeypatch.setattr("om_proxy.edge.turn_closing.MAX_COMMIT_WAIT_S", 0.2)
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(chat_body("one"), T)
        with sqlite3.connect(
            tmp_path / "om.db", timeout=60, isolation_level=None, check_same_thread=False
        ) as db:
            # In a thread: a transaction of the server that is under way needs the loop to end.
            await asyncio.to_thread(db.execute, "BEGIN IMMEDIATE")
            site.server.seen.clear()
            got = await ask(site.port, chat_body("two"), headers=(T,))
            assert (got.status, got.body, read_reason(got)) == (200, COMPLETION, "applied")
            db.execute("ROLLBACK")
        db.close()
        await site.app.background.wait_idle()
        assert await live(site) == 4


# ── the other APIs ────────────────────────────────────────────────────────────────────────────────

HISTORY = b'[{"type":"message","role":"user","content":"hi"}]'
SAID = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]'
CLAUDE_CODE = b"X-Claude-Code-Session-Id: s"


@pytest.mark.parametrize(
    ("path", "body", "headers", "reason"),
    [
        ("/v1/responses", b'{"input":%b}' % HISTORY, (), "raw"),
        (
            "/v1/responses",
            b'{"previous_response_id":"resp_1","input":"hi"}',
            (),
            "off/server-state",
        ),
        ("/v1/responses", b'{"previous_response_id":7,"input":"hi"}', (), "off/server-state"),
        ("/v1/responses", b'{"conversation":"c","input":"hi"}', (), "off/server-state"),
        (
            "/v1/responses",
            b'{"input":[{"type":"item_reference","id":"msg_1"}]}',
            (),
            "off/server-state",
        ),
        ("/v1/responses", b'{"background":true,"input":"hi"}', (), "off/background"),
        ("/v1/responses", b'{"input":[{"type":"compaction_trigger"}]}', (), "off/compaction"),
        ("/v1/responses", b'{"input":"hi"}', (b"Originator: codex_cli_rs",), "raw/coding-agent"),
        ("/v1/messages", SAID + b"}", (), "raw"),
        ("/v1/messages", SAID + b',"compaction":{}}', (), "off/compaction"),
        ("/v1/messages", SAID + b"}", (CLAUDE_CODE,), "off/side-request"),
        ("/v1/messages", SAID + b',"context_management":{}}', (CLAUDE_CODE,), "raw/coding-agent"),
    ],
)
async def test_other_apis(
    tmp_path: Path, path: str, body: bytes, headers: tuple[bytes, ...], reason: str
) -> None:
    """Whatever the receipt says, the model server gets the client's bytes."""
    async with run_with_raw_upstream(tmp_path) as site:
        assert read_reason(await site.ask(body, T, *headers, path=path)) == reason
        assert site.seen.body == body


async def test_a_chain_whose_instructions_the_server_holds(tmp_path: Path) -> None:
    reply = orjson.dumps(
        {
            "id": "resp_1",
            "status": "completed",
            "output": orjson.loads(HISTORY.replace(b"user", b"assistant")),
        }
    )
    first = b'{"input":[{"role":"developer","content":"Be brief."},{"role":"user","content":"hi"}]}'
    second = b'{"input":"go on","previous_response_id":"resp_1"}'
    async with run_with_raw_upstream(tmp_path) as site:
        script = script_answer(reply, b"Content-Type: application/json")
        for body, reason in ((first, "raw"), (second, "raw/server-state")):
            got = await site.ask(body, T, path="/v1/responses", script=script)
            assert (read_reason(got), site.seen.body) == (reason, body)


async def test_a_subscription_without_a_memory_model(tmp_path: Path) -> None:
    """Its credential is for no call of memory."""
    inherited = 'models: {"*": {model: inherit}}'
    async with run_with_raw_upstream(tmp_path, inherited) as site:
        key = b"x-api-key: sk-ant-oat01-x"
        got = await site.ask(SAID + b"}", T, key, path="/v1/messages")
        assert read_reason(got) == "raw/no-observer"


# ── the list ──────────────────────────────────────────────────────────────────────────────────────


async def test_economy(tmp_path: Path) -> None:
    """Notes that are due and would not pay back wait."""
    economy = ", economy: auto, observation: {message_tokens: 60, buffer_tokens: 15}"
    more = 'models: {"*": {model: openai/gpt-4.1-mini}}'
    async with run_with_raw_upstream(tmp_path, more, memory=economy) as site:
        assert (
            read_reason(await site.ask(chat_body("one" + " and so on" * 6, model="gpt-4o-mini"), T))
            == "raw/economy"
        )


async def test_a_reply_beyond_the_budget(tmp_path: Path) -> None:
    """The receipt has gone out before the reply, so the log alone says that it is not
    remembered."""
    content = "the dock takes no van above 2.85 m; " * 60_000
    reply = orjson.dumps(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
    )
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path, "limits: {body: 1MiB, memory: 4MiB}") as site:
            got = await site.ask(
                chat_body("hi"), T, script=script_answer(reply, b"Content-Type: application/json")
            )
    assert (read_reason(got), got.body) == ("raw", reply)
    assert [line["reason"] for line in out.events("turn")] == ["reply-too-large"]


REASONS = Path(__file__).parents[2] / "docs" / "reference" / "reasons.md"


def test_every_reason_is_caused_here() -> None:
    """No word stands in the table of reasons that no test of this file brings about
    (tests/test_docs.py holds it to the code)."""
    table = REASONS.read_text(encoding="utf-8").partition("| reason |")[2].partition("\n\n")[0]
    listed = {
        word
        for row in table.splitlines()[2:]
        for word in re.findall(r"`([a-z-]+)`", row.split("|")[1])
    }
    assert len(listed) > 10
    caused = set(re.findall(r"[\"/]([a-z-]+)\"", Path(__file__).read_text()))
    assert listed <= caused, sorted(listed - caused)
