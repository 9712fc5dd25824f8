"""`om-proxy doctor`, with real servers and a real file."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Failures, Key, Memory
from om_proxy.storage.sqlite.store import SqliteStore
from tests.agents.scripted_llm import bullets
from tests.support.upstream_server import Call, Script, run_upstream_server, script_answer

KEY = Key("tenant", "user-42", "kitchen")
ANSWER_200 = script_answer(b"{}", b"Content-Type: application/json")
Run = Callable[..., Awaitable[tuple[int, str]]]


def answer_status(code: int, *headers: bytes) -> Script:
    return script_answer(b"{}", *headers, status=b"%d X" % code)


async def store_threads(tmp_path: Path, *threads: Memory) -> None:
    store = await SqliteStore.open(tmp_path / "om.db")
    for memory in threads:
        await store.commit(Memory(key=memory.key), memory)
    await store.close()


async def load_failures(tmp_path: Path) -> Failures:
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        return (await store.load(KEY)).failures
    finally:
        await store.close()


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command with these settings, and returns status and
    output."""

    async def run(base: str, more: str = "", *options: str) -> tuple[int, str]:
        config = tmp_path / "om-proxy.yaml"
        upstream = f'upstream: [{{name: models, base_url: "{base}"}}]'
        config.write_text(
            f'storage: {{url: "sqlite:///{tmp_path}/om.db"}}\n{upstream}\n{more}', encoding="utf-8"
        )
        code = await asyncio.to_thread(main, ["doctor", "--config", str(config), *options])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def attention_part(out: str) -> str:
    return out.partition("needs attention:")[2].partition("works:")[0]


async def test_all_is_well(tmp_path: Path, doctor: Run) -> None:
    """The status is 0, and the report lists what works. The server gets one request for its models,
    and no chat request."""
    await store_threads(tmp_path, Memory(key=KEY))
    async with run_upstream_server(ANSWER_200) as server:
        code, out = await doctor(server.base)
    assert code == 0
    assert re.match("examining /.*/om.db\n", out)
    assert "nothing needs attention" in out
    assert "upstream[0] models at" in out
    assert "answers (200)" in out
    assert "no thread has failing memory work" in out
    assert [seen.line for seen in server.seen] == [b"GET /v1/models HTTP/1.1"]


@pytest.mark.parametrize(
    ("bind", "code"),
    [("", 0), ("server: {host: 0.0.0.0, admin_token: 0123456789abcdef0123}\n", 1)],
    ids=["loopback", "network"],
)
async def test_a_key_that_others_can_spend(
    tmp_path: Path, doctor: Run, bind: str, code: int
) -> None:
    """Without `auth.keys` it is named. Off loopback that is a fault."""
    await store_threads(tmp_path)
    async with run_upstream_server(ANSWER_200) as server:
        got, out = await doctor(f'{server.base}", api_key: "own-key', bind)
    assert (got, "CAN SPEND the api_key of upstream models" in attention_part(out)) == (
        code,
        code == 1,
    )
    assert "auth.keys is not set" in out


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            answer_status(302, b"Location: http://127.0.0.1:1/elsewhere"),
            "redirect, which requests do not follow: check upstream[0].base_url",
        ),
        (answer_status(503), "answers (503): it is failing"),
    ],
    ids=["redirect", "failing"],
)
async def test_a_server_that_does_not_work(
    tmp_path: Path, doctor: Run, script: Script, said: str
) -> None:
    """The status is 1, and the report says what to check. A redirect is not followed."""
    await store_threads(tmp_path)
    async with run_upstream_server(script) as server:
        code, out = await doctor(server.base)
    assert code == 1
    assert said in attention_part(out)
    assert len(server.seen) == 1


async def test_a_server_that_wants_a_credential(tmp_path: Path, doctor: Run) -> None:
    """It is the client's."""
    await store_threads(tmp_path)
    async with run_upstream_server(answer_status(401)) as server:
        code, out = await doctor(server.base)
    assert (code, "answers (401)" in out) == (0, True)


async def test_a_key_that_is_refused(tmp_path: Path, doctor: Run) -> None:
    """The report says that the configured key is refused, and does not show the key. The key goes
    to its own server only."""
    await store_threads(tmp_path)
    async with run_upstream_server(answer_status(401)) as server:
        config = f'{server.base}", api_key: "sk-proj-hush1hush2hush3hush4'
        code, out = await doctor(config)
    assert code == 1
    assert "refuses the key: check upstream[0].api_key" in attention_part(out)
    assert "hush" not in out
    assert server.seen[0].header(b"authorization") == [b"Bearer sk-proj-hush1hush2hush3hush4"]


async def test_a_server_that_is_not_there(tmp_path: Path, doctor: Run) -> None:
    """The report names its address, the cause and the setting."""
    await store_threads(tmp_path)
    async with run_upstream_server(ANSWER_200) as server:
        base = server.base
    code, out = await doctor(base)
    assert code == 1
    assert "nothing listens there" in attention_part(out)
    assert "check upstream[0].base_url" in attention_part(out)


async def test_a_server_that_never_answers(tmp_path: Path, doctor: Run) -> None:
    """The command stops waiting for it."""
    await store_threads(tmp_path)

    async def silent(call: Call) -> None:
        await call.closed.wait()

    async with run_upstream_server(silent) as server:
        code, out = await doctor(server.base, "")
    assert code == 1
    assert "no answer in time" in attention_part(out)


async def test_a_chat_that_is_never_answered(
    tmp_path: Path, doctor: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command stops waiting for it long before `read_timeout`."""
    monkeypatch.setattr("om_proxy.cli.doctor.call.CALL_TIMEOUT_S", 0.2)
    await store_threads(tmp_path)

    async def script(call: Call) -> None:
        if b'"gpt-x"' in call.seen.body:
            await call.closed.wait()
        await answer_chat(completion(NOTES))(call)

    async with run_upstream_server(script) as server:
        memory = f'memory: {{model: openai/m, api_base: "{server.base}", api_key: k}}'
        code, out = await doctor(server.base, memory, "--call", "--model", "gpt-x")
    assert code == 1
    assert "a chat with gpt-x that has notes:" in " ".join(attention_part(out).split())


async def test_failing_threads(tmp_path: Path, doctor: Run) -> None:
    """The report lists each thread with its cause, the parked one first. `--revive` clears their
    failures, and the next run finds nothing."""
    parked = Memory(
        key=KEY, failures=Failures(8, 9e9, True, "observe om_model 401: check memory.api_key")
    )
    waiting = Memory(
        key=Key("tenant", "a", "b"), failures=Failures(1, 9e9, False, "observe om_cut_off")
    )
    growing = Memory(key=Key("tenant", "a", "c"), failures=Failures(cause="reflect om_unusable"))
    await store_threads(tmp_path, waiting, growing, parked)
    async with run_upstream_server(ANSWER_200) as server:
        code, out = await doctor(server.base)
        assert code == 1
        first, second, third, hint = [
            line for line in attention_part(out).splitlines() if line.strip()
        ]
        assert "user-42 / kitchen: 8 failures in a row, parked: observing failed: " in first
        assert "answered 401; check memory.api_key" in first
        assert (
            "a / b: 1 failures in a row, in back-off: observing failed: the memory model's answer was cut off"
            in second
        )
        assert "a / c: condensing notes failed" in third
        assert "1 parked: remove the cause, then run om-proxy doctor --revive" in hint
        assert (await load_failures(tmp_path)).suspended
        code, out = await doctor(server.base, "", "--revive")
        assert "parked, revived" in out
        assert await load_failures(tmp_path) == Failures()
        code, out = await doctor(server.base)
        assert "kitchen" not in out


async def test_a_missing_credential(
    tmp_path: Path, doctor: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the variable. Once it is set, nothing is missing, and its value is not
    shown."""
    await store_threads(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with run_upstream_server(ANSWER_200) as server:
        code, out = await doctor(server.base, "memory: {model: openai/of-tomorrow}")
        assert code == 1
        assert "OPENAI_API_KEY" in attention_part(out)
        monkeypatch.setenv("OPENAI_API_KEY", "hush")
        code, out = await doctor(server.base, "memory: {model: openai/of-tomorrow}")
    assert code == 0
    assert "no credential is missing" in out
    assert "hush" not in out


def completion(text: str, finish: str = "stop") -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    return orjson.dumps(
        {
            "model": "m-1",
            "choices": [choice],
            "usage": {"prompt_tokens": 700, "completion_tokens": 20},
        }
    )


def answer_chat(body: bytes, *, code: int = 200) -> Script:
    async def script(call: Call) -> None:
        is_chat = b"/chat/completions" in call.seen.line
        await script_answer(
            body if is_chat else b"{}", status=b"%d X" % (code if is_chat else 200)
        )(call)

    return script


NOTES = bullets("User drives to Lisbon\x1b[31m on May 3")


@pytest.mark.parametrize(
    ("script", "works", "said"),
    [
        (
            answer_chat(completion(NOTES)),
            True,
            [
                "returned notes (700 tokens in, 20 out",
                "takes all that",
                "User drives to Lisbon[31m on May 3",
            ],
        ),
        (
            answer_chat(completion(NOTES, "length")),
            False,
            ["cut off", "it returned", "User drives"],
        ),
        (
            answer_chat(completion("I cannot help with that.")),
            False,
            ["refusal", "I cannot help with that."],
        ),
        (answer_chat(b"{}", code=401), False, ["answered 401", "check memory.api_key"]),
        (answer_chat(b"{}", code=429), False, ["answered 429", "try again later"]),
    ],
    ids=["notes", "cut off", "refusal", "401", "429"],
)
async def test_one_tiny_call(
    tmp_path: Path, doctor: Run, script: Script, works: bool, said: list[str]
) -> None:
    """`--call` calls the observer model once, and prints its answer without control characters."""
    await store_threads(tmp_path)
    async with run_upstream_server(script) as server:
        memory = f'memory: {{model: openai/m, api_base: "{server.base}", api_key: k}}'
        code, out = await doctor(server.base, memory, "--call")
    chats = [seen for seen in server.seen if b"chat" in seen.line]
    assert len(chats) == 1
    assert len(chats[0].body) < 20_000
    assert (code == 0) is works
    assert all(
        text in (out.partition("works:")[2] if works else attention_part(out)) for text in said
    )
    assert "\x1b" not in out


async def test_what_a_server_does_not_take(tmp_path: Path, doctor: Run) -> None:
    """A sentence says what works, and what had to be left out."""
    await store_threads(tmp_path)

    async def script(call: Call) -> None:
        is_refused = b'"max_tokens"' in call.seen.body
        answer = answer_chat(b"{}", code=400) if is_refused else answer_chat(completion(NOTES))
        await answer(call)

    async with run_upstream_server(script) as server:
        memory = f'memory: {{model: openai/m, api_base: "{server.base}", api_key: k}}'
        code, out = await doctor(server.base, memory, "--call")
    assert code == 0
    assert "left out: the usual name of the output limit." in " ".join(out.split())


@pytest.mark.parametrize(
    ("models", "small", "code", "works", "fails"),
    [
        # the small model of `auto` is guessed: the actor's model taking its place is as it should be
        (
            "auto",
            "gpt-small",
            0,
            "guess of gpt-small failed (the memory model's server answered 404: check memory.model and"
            " memory.api_base), and the next was asked",
            "",
        ),
        # one that the configuration names needs attention
        ("[openai/gone, openai/m]", None, 1, "call to m-1 returned", "call to gone failed"),
        (
            "[openai/empty, openai/m]",
            None,
            1,
            "call to m-1 returned",
            "call to empty returned no usable",
        ),
        ("[openai/gone, openai/gone2]", None, 1, "", "call to gone2 failed"),
    ],
    ids=["guess", "404", "unusable", "none"],
)
async def test_the_models_are_asked_in_order(
    tmp_path: Path,
    doctor: Run,
    monkeypatch: pytest.MonkeyPatch,
    models: str,
    small: str | None,
    code: int,
    works: str,
    fails: str,
) -> None:
    """The next one is asked where a memory call would ask it. The report says which one made notes,
    and what became of the others."""
    await store_threads(tmp_path)
    monkeypatch.setattr("om_proxy.cli.doctor.call.find_small_model", lambda *_: small)

    async def script(call: Call) -> None:
        name = orjson.loads(call.seen.body)["model"] if call.seen.body else ""
        if name.startswith("gone") or name == "gpt-small":
            await answer_chat(b"{}", code=404)(call)
        else:
            await answer_chat(completion("" if name == "empty" else NOTES))(call)

    async with run_upstream_server(script) as server:
        memory = f"memory: {{model: {models}"
        if models != "auto":
            memory += f', api_base: "{server.base}", api_key: k'
        got, out = await doctor(server.base, memory + "}", "--call", "--model", "gpt-x")
    broken, _, working = " ".join(out.split()).partition(" works:")
    assert got == code
    assert works in working
    assert fails in broken


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            b'{"error": {"code": 400, "message": "no tools"}}',
            "a chat with gpt-x takes notes; left out: the tool for look-ups",
        ),
        (
            b'data: {"error": {"message": "no tools"}}\n\n',
            "a chat with gpt-x takes notes; left out: the tool for look-ups",
        ),
        (
            b'{"error": {"code": 429, "message": "no tools"}}',
            "a chat with gpt-x that has notes is refused (429)",
        ),
        (
            b"<html>sign in</html>",
            "a chat with gpt-x that has notes gets no reply that can be read",
        ),
    ],
    ids=["whole", "stream", "busy", "page"],
)
async def test_a_chat_that_is_refused_inside_a_200(
    tmp_path: Path, doctor: Run, error: bytes, said: str
) -> None:
    """Some routers wrap errors so."""
    await store_threads(tmp_path)

    async def script(call: Call) -> None:
        has_tool = b'"tools"' in call.seen.body
        await answer_chat(error if has_tool else completion(NOTES))(call)

    async with run_upstream_server(script) as server:
        memory = f'memory: {{model: openai/m, api_base: "{server.base}", api_key: k}}'
        _, out = await doctor(server.base, memory, "--call", "--model", "gpt-x")
    assert said in " ".join(out.split())


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (b"nothing", "a chat with gpt-x takes notes, and the tool for look-ups"),
        (b'"tools"', "a chat with gpt-x takes notes; left out: the tool for look-ups"),
        (b'"system"', "a chat with gpt-x takes notes; left out: a system message of their own"),
        (b"drives to Lisbon on", "a chat with gpt-x that has notes is refused (400)"),
    ],
    ids=["nothing", "tool", "system", "notes"],
)
async def test_what_a_chat_takes(tmp_path: Path, doctor: Run, refused: bytes, said: str) -> None:
    """With `--model`, a sentence says what a chat takes of what memory adds."""
    await store_threads(tmp_path)

    async def script(call: Call) -> None:
        is_refused = b'"gpt-x"' in call.seen.body and refused in call.seen.body
        answer = answer_chat(b"{}", code=400) if is_refused else answer_chat(completion(NOTES))
        await answer(call)

    async with run_upstream_server(script) as server:
        memory = f'memory: {{model: openai/m, api_base: "{server.base}", api_key: k}}'
        code, out = await doctor(server.base, memory, "--call", "--model", "gpt-x")
    assert said in " ".join(out.split())
    assert code == (1 if "that has notes" in said else 0)


async def test_the_call_needs_a_model_to_inherit(tmp_path: Path, doctor: Run) -> None:
    """`inherit` names no model; with `--model`, the call uses the upstream's key."""
    await store_threads(tmp_path)
    async with run_upstream_server(answer_chat(completion(NOTES))) as server:
        code, out = await doctor(server.base, "", "--call")
        assert (code, "doctor --call --model" in attention_part(out)) == (1, True)
        code, out = await doctor(
            f'{server.base}", api_key: "own-key', "", "--call", "--model", "gpt-x"
        )
        assert (code, "returned notes" in out) == (0, True)
    chat = next(seen for seen in server.seen if b"chat" in seen.line)
    assert chat.header(b"authorization") == [b"Bearer own-key"]
    assert orjson.loads(chat.body)["model"] == "gpt-x"


MESSAGE = {"role": "assistant", "content": [{"type": "text", "text": NOTES}]}
RESPONSE = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": NOTES}],
}


@pytest.mark.parametrize(
    ("api", "reply", "header"),
    [
        ("messages", {**MESSAGE, "type": "message", "stop_reason": "end_turn"}, b"x-api-key"),
        ("responses", {"status": "completed", "output": [RESPONSE]}, b"authorization"),
    ],
)
async def test_a_server_of_one_api_is_called_by_it(
    tmp_path: Path, doctor: Run, api: str, reply: dict[str, Any], header: bytes
) -> None:
    """No other route of it is asked for notes, and the key stands in the header of that API."""
    await store_threads(tmp_path)

    async def script(call: Call) -> None:
        is_asked = f"/{api} ".encode() in call.seen.line
        await script_answer(orjson.dumps(reply if is_asked else {}))(call)

    async with run_upstream_server(script) as server:
        url = f'{server.base}", apis: [{api}], api_key: "own-key'
        _, out = await doctor(url, "", "--call", "--model", "m")
    assert "returned notes" in out
    asked = [seen for seen in server.seen if seen.line.startswith(b"POST")]
    assert all(f"/{api} ".encode() in seen.line for seen in asked)
    assert [value.removeprefix(b"Bearer ") for value in asked[0].header(header)] == [b"own-key"]


@pytest.mark.parametrize(
    ("storage", "works", "said"),
    [
        ("", True, "om-proxy.db is made at the first start"),
        ('storage: {url: "sqlite:///new/deep/om.db"}', True, "om.db is made at the first start"),
        ('storage: {url: "sqlite:///x.yaml/om.db"}', False, "x.yaml is no folder"),
        ('storage: {url: "sqlite:///shut/new/om.db"}', False, "shut is no folder"),
        ('storage: {url: "sqlite:///:memory:"}', False, "no file"),
        ('storage: {url: "sqlite:///folder"}', False, "folder"),
        ('storage: {encryption_key: "file:nowhere.key"}', False, "encryption_key"),
    ],
    ids=["default", "new folder", "below a file", "shut", "in memory", "a folder", "no key"],
)
async def test_a_store_that_is_not_there_yet(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    storage: str,
    works: bool,
    said: str,
) -> None:
    """Before the first start, a file that can be made is no fault, and is not made here; one that
    cannot be is one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "shut").mkdir(mode=0o500)
    if "shut" in storage and os.access("shut", os.W_OK):
        pytest.skip("root may write into every folder")
    async with run_upstream_server(ANSWER_200) as server:
        upstream = f'upstream: [{{name: models, base_url: "{server.base}"}}]'
        (tmp_path / "x.yaml").write_text(f"{storage}\n{upstream}\n")
        assert await asyncio.to_thread(main, ["doctor", "--config", "x.yaml"]) == (not works)
    out = capsys.readouterr().out
    part = out.partition("works:")[2] if works else attention_part(out)
    assert "storage" in part
    assert said in part
    assert set(os.listdir()) == {"x.yaml", "folder", "shut"}


async def test_the_findings_as_json(tmp_path: Path, doctor: Run) -> None:
    """A program gets each finding, and nothing else is printed."""
    failing = Memory(key=KEY, failures=Failures(1, 9e9, False, "observe om_cut_off"))
    await store_threads(tmp_path, failing)
    async with run_upstream_server(ANSWER_200) as server:
        code, out = await doctor(server.base, "", "--json")
        items = orjson.loads(out)["items"]
        assert (code, {item["works"] for item in items}) == (1, {True, False})
        assert any("kitchen" in item["text"] for item in items if not item["works"])
        code, out = await doctor(server.base, "", "--json", "--tenant", "another")
    assert (code, "kitchen" in out) == (0, False)


@pytest.mark.parametrize(
    ("path", "more", "code"),
    [
        ("", "", 0),
        ('/v1", api_key: "own-key', "", 0),
        ("/v1", "memory: {enabled: false}", 1),
        ("/v1", "memory: {model: [{model: inherit, max_retries: 9}]}", 1),
        ("/v1", "memory: {model: openai/of-tomorrow}", 1),
        (
            "/v1",
            "memory: {retrieval: {vector: true, embedding_model: 'local:/no/model.onnx'}}",
            1,
        ),
    ],
    ids=["no /v1", "open key", "off", "retries", "no credential", "no vectors"],
)
async def test_what_check_warns_of(
    tmp_path: Path,
    doctor: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    more: str,
    code: int,
) -> None:
    """The report has every warning of `om-proxy check`. The address of a server that answers, and a
    key that only this machine can spend, are no faults."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    await store_threads(tmp_path)
    async with run_upstream_server(ANSWER_200) as server:
        got, out = await doctor(server.base.removesuffix("/v1") + path, more, "--json")
    config = str(tmp_path / "om-proxy.yaml")
    assert await asyncio.to_thread(main, ["check", "--config", config, "--json"]) == 0
    warnings = orjson.loads(capsys.readouterr().out)["warnings"]
    texts = [item["text"] for item in orjson.loads(out)["items"]]
    assert warnings
    assert [text for text in texts if text in warnings] == warnings
    assert "nothing to warn of" not in out
    assert got == code


async def test_an_address_without_a_path_where_nothing_answers(doctor: Run) -> None:
    """The guess of `om-proxy check` stands beside what the server said."""
    async with run_upstream_server(answer_status(404)) as server:
        _, out = await doctor(server.base.removesuffix("/v1"))
    assert "has no path" in attention_part(out)


async def test_a_name_that_a_terminal_would_obey(tmp_path: Path, doctor: Run) -> None:
    key = Key("tenant", "user\x1b[2J", "kitchen")
    await store_threads(tmp_path, Memory(key=key, failures=Failures(1, 9e9, False, "")))
    async with run_upstream_server(ANSWER_200) as server:
        _, out = await doctor(server.base)
    assert "user\\u001b[2J / kitchen" in out
    assert "\x1b" not in out
