"""An export comes back over HTTP, and a conversation that was held elsewhere becomes a thread."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from om_proxy.common.errors import StorageError
from om_proxy.engine.turns import message_importer
from om_proxy.engine.turns.committing import Committer
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.api.test_admin_api import ADMIN_TOKEN, CREDENTIALS, FOREIGN, OWN, ask

CRATE_REPORT = "Crate {n} weighs {n} kilos and goes to dock {n} at Quarry Steps. " * 12
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is crate 7?"},
    {"role": "assistant", "content": "At dock 3."},
    {"role": "user", "content": "And crate 8?"},
    {"role": "assistant", "content": "At dock 4."},
]


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        await running.chat("greeting").say("Hello.")
        yield running


async def export(run: Running, query: str = "", headers: dict[str, str] = OWN) -> bytes:
    await run.app.background.wait_idle()
    await run.app._deliveries.write()  # which replies went out whole is part of a thread
    answer = await ask(run, "GET", f"/export{query}", headers)
    assert answer.status_code == 200
    return answer.content


async def send_messages(
    run: Running, messages: list[dict[str, Any]], thread: str = "old", **headers: str
) -> httpx.Response:
    body = {"model": "scripted-actor", "messages": messages}
    return await ask(run, "POST", f"/threads/{thread}/messages", OWN | headers, body)


async def list_texts(run: Running, thread: str = "old") -> list[str]:
    answer = await ask(run, "GET", f"/threads/{thread}/messages")
    return [item["raw"]["content"] for item in answer.json()["items"]]


async def test_an_export_comes_back(run: Running) -> None:
    """Notes included. The client goes on with the same prompt."""
    chat = run.chat("crates")
    for number in range(6):
        _, receipt = await chat.say(CRATE_REPORT.format(n=number))
        await run.app.background.wait_idle()
    assert receipt["status"] == "applied"
    whole, prompt = await export(run), await preview(run, chat.history)
    assert (await ask(run, "DELETE", "/threads/crates")).status_code == 200

    dry = await ask(run, "POST", "/import?dry_run=true", OWN, whole)
    assert dry.status_code == 200, dry.text
    assert (dry.json()["threads"], dry.json()["present_threads"]) == (1, 1)
    assert (await ask(run, "GET", "/threads/crates")).status_code == 404
    answer = await ask(run, "POST", "/import", OWN, whole)
    assert answer.json() == {
        "threads": 1,
        "messages": 12,
        "present_threads": 1,
        "kept_threads": 0,
        "is_rekeyed": False,
        "unknown_fields": [],
        "is_dry_run": False,
    }
    assert await export(run) == whole
    assert await preview(run, chat.history) == prompt
    _, receipt = await chat.say("How heavy is crate 3?")
    assert receipt["status"] == "applied"


async def preview(run: Running, history: list[dict[str, Any]]) -> Any:
    messages = [*history, {"role": "user", "content": "And now?"}]
    body = {"model": "scripted-actor", "messages": messages}
    answer = await ask(run, "POST", "/threads/crates/context", OWN, body)
    return answer.json()["messages"]


async def test_another_state_is_refused_or_kept(run: Running) -> None:
    await run.chat("second").say("Hello.")
    before = await export(run)
    await run.chat("second").say("Where is it?")
    now = await export(run)
    refused = await ask(run, "POST", "/import", OWN, before)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "om_conflict")
    assert await export(run) == now
    kept = await ask(run, "POST", "/import?existing=keep", OWN, before)
    assert (kept.json()["present_threads"], kept.json()["kept_threads"]) == (1, 1)
    assert await export(run) == now


async def test_what_is_imported_is_the_callers(run: Running) -> None:
    """An export of another tenant becomes the caller's own, with fingerprints of its own. The other
    tenant's stays as it is."""
    await run.chat("theirs", key="sk-b").say("Where is crate 9?")
    foreign = await export(run, headers=FOREIGN)
    answer = await ask(run, "POST", "/import", OWN, foreign)
    assert (answer.status_code, answer.json()["is_rekeyed"]) == (200, True)
    texts = await list_texts(run, "theirs")
    assert texts[0] == "Where is crate 9?"
    chat = run.chat("theirs")
    chat.history += [
        {"role": "user", "content": texts[0]},
        {"role": "assistant", "content": texts[1]},
    ]
    await chat.say("And crate 10?")  # its fingerprints are known: it goes on, and does not fork
    assert (await list_texts(run, "theirs"))[:3] == [*texts, "And crate 10?"]
    assert await export(run, headers=FOREIGN) == foreign


async def test_the_admin_imports_for_whom_it_names(run: Running) -> None:
    admin = CREDENTIALS["admin"]
    whole = await export(run)
    (own,) = (await ask(run, "GET", "/threads")).json()["items"]
    named = await ask(run, "POST", "/import?tenant=docks", admin, whole)
    assert named.json()["threads"] == 1
    unnamed = await ask(run, "POST", "/import", admin, whole)
    assert unnamed.json()["present_threads"] == 1
    lines = (await ask(run, "GET", "/threads", admin)).json()["items"]
    assert {line["tenant"] for line in lines} == {own["tenant"], "docks"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "this is empty, so it is no export"),
        (b"no JSON\n", "line 1"),
        (b'{"om":"export","format":1,"secret":null}\n', "breaks off"),
        (b'{"om":"export","format":99,"secret":null}\n{"om":"end","threads":0}\n', "format"),
    ],
    ids=["empty", "no JSON", "cut off", "another format"],
)
async def test_what_cannot_be_imported(run: Running, body: bytes, words: str) -> None:
    answer = await ask(run, "POST", "/import", OWN, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_bad_request")
    assert words in answer.json()["error"]["message"]


async def test_an_import_that_the_store_breaks_off_goes_on(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before is whole; the same file takes the rest along. The audit tells of both."""
    for name in ("a", "b", "c"):
        await run.chat(name).say("Hello.")
    whole = await export(run)
    for name in ("a", "b", "c"):
        await ask(run, "DELETE", f"/threads/{name}")
    restore, calls = run.app.store.restore, []

    async def fail_at_second(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise StorageError("disk I/O error")
        return await restore(*arguments)

    monkeypatch.setattr(run.app.store, "restore", fail_at_second)
    assert (await ask(run, "POST", "/import", OWN, whole)).status_code == 503
    again = await ask(run, "POST", "/import", OWN, whole)
    assert (again.json()["threads"], again.json()["present_threads"]) == (2, 2)
    assert await export(run) == whole
    audit = (await ask(run, "GET", "/audit", CREDENTIALS["admin"])).json()["items"]
    told = [item["counts"] for item in audit if item["what"] == "import_export"]
    assert told == [{"threads": 2, "messages": 4}, {"unfinished": 1}]


async def test_messages_that_cannot_be_stored(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not said to be stored. The same request stores them once the store can be written."""

    async def fail(*_: Any, **__: Any) -> Any:
        raise StorageError("disk I/O error")

    monkeypatch.setattr(message_importer, "MAX_STORE_WAIT_S", 0.05)
    with monkeypatch.context() as patched:
        patched.setattr(run.app.store, "commit", fail)
        answer = await send_messages(run, CONVERSATION)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "om_storage")
    again = await send_messages(run, CONVERSATION)
    assert again.status_code == 200
    assert await list_texts(run) == [message["content"] for message in CONVERSATION[1:]]


@pytest.mark.parametrize(
    ("field", "value"), [("tokens", 2**62), ("raw", {"base64": "é"})], ids=["tokens", "base64"]
)
async def test_a_value_that_no_store_would_have_written(
    run: Running, field: str, value: Any
) -> None:
    lines = [json.loads(line) for line in (await export(run)).splitlines()]
    message = next(line for line in lines if line["om"] == "message")
    message[field] = value
    body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    answer = await ask(run, "POST", "/import", OWN, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "om_bad_request")


async def test_a_conversation_becomes_a_thread(run: Running) -> None:
    """Its client goes on as if it had been held here. What is sent again is the same."""
    answer = await send_messages(run, CONVERSATION)
    assert (answer.status_code, answer.json()["created"], answer.json()["same"]) == (200, 4, 0)
    assert await list_texts(run) == [message["content"] for message in CONVERSATION[1:]]
    for sent in (CONVERSATION, CONVERSATION[:3]):
        again = await send_messages(run, sent)
        assert (again.json()["created"], again.json()["same"]) == (0, len(sent) - 1)
    longer = [*CONVERSATION, {"role": "user", "content": "And crate 9?"}]
    more = await send_messages(run, longer)
    assert (more.json()["created"], more.json()["same"]) == (1, 4)
    chat = run.chat("old")
    chat.history = list(longer[:-1])
    _, receipt = await chat.say("And crate 9?")
    assert receipt["status"] == "raw"
    assert len(await list_texts(run)) == 6


async def test_a_long_conversation_gets_its_notes(run: Running) -> None:
    messages = [{"role": "system", "content": "Be brief."}]
    for number in range(12):
        messages.append({"role": "user", "content": CRATE_REPORT.format(n=number)})
        messages.append({"role": "assistant", "content": f"Dock {number} it is."})
    assert (await send_messages(run, messages)).json()["created"] == 24
    await run.app.background.wait_idle()
    chat = run.chat("old")
    chat.history = messages
    _, receipt = await chat.say("How heavy is crate 3?")
    assert receipt["status"] == "applied"


async def test_an_import_takes_nothing_back(run: Running) -> None:
    """A conversation that is another one from its middle on is refused, and nothing is stored."""
    await send_messages(run, CONVERSATION)
    other = [*CONVERSATION[:3], {"role": "user", "content": "Never mind."}]
    answer = await send_messages(run, other)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "om_conflict")
    assert await list_texts(run) == [message["content"] for message in CONVERSATION[1:]]


async def test_messages_for_another_version_are_refused(
    run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the thread changes after its version was looked at: nothing is stored."""
    await send_messages(run, CONVERSATION)
    tag = (await ask(run, "GET", "/threads/old")).headers["etag"]
    commit = Committer.commit

    async def commit_behind_another(self: Committer, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Committer, "commit", commit)
        changed = await ask(run, "PATCH", "/threads/old", OWN, {"title": "Crates"})
        assert changed.status_code == 200
        return await commit(self, *args, **options)

    monkeypatch.setattr(Committer, "commit", commit_behind_another)
    longer = [*CONVERSATION, {"role": "user", "content": "And crate 9?"}]
    refused = await send_messages(run, longer, **{"If-Match": tag})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "om_conflict")
    assert len(await list_texts(run)) == 4
    tag = (await ask(run, "GET", "/threads/old")).headers["etag"]
    stored = await send_messages(run, longer, **{"If-Match": tag})
    assert (stored.status_code, stored.json()["created"]) == (200, 1)


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"messages": "none"}, {"messages": CONVERSATION[:1]}],
    ids=["nothing", "no messages", "no list", "instructions alone"],
)
async def test_what_is_no_conversation(run: Running, body: dict[str, Any]) -> None:
    answer = await ask(run, "POST", "/threads/old/messages", OWN, body)
    assert answer.status_code == 400
    assert (await ask(run, "GET", "/threads/old")).status_code == 404


async def test_a_key_that_nobody_has_accepted_stores_nothing(run: Running) -> None:
    """Else anybody could fill the store."""
    unknown = {"authorization": "Bearer sk-never-used"}
    body = {"model": "scripted-actor", "messages": CONVERSATION}
    messages = await ask(run, "POST", "/threads/old/messages", unknown, body)
    whole = await ask(run, "POST", "/import", unknown, await export(run))
    for answer in (messages, whole):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")
        assert "accepted this key" in answer.json()["error"]["message"]
    stored = await run.app.store.threads(None)
    assert [info.key.thread for info in stored] == ["greeting"]


async def test_an_export_has_a_type_of_its_own(run: Running) -> None:
    """A page of another site cannot send it without a preflight."""
    url, content = f"{run.base}/om/v1/import", await export(run)
    for type_ in ("text/plain", "application/json"):
        answer = await run.http.post(url, content=content, headers=OWN | {"content-type": type_})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Type")


async def test_a_long_body_is_refused(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, more="limits: {body: 64KiB}") as run:
        await run.chat("greeting").say("Hello.")
        answer = await ask(run, "POST", "/import", OWN, b" " * 70_000)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "om_too_large")


async def test_the_secret_of_an_export_is_not_taken_over(run: Running) -> None:
    """Whoever may import could else read what every tenant's credential is hashed to."""
    whole = await export(run)
    header = orjson.loads(whole.split(b"\n")[0]) | {"secret": "0f" * 32}
    before = await run.app.store.secret()
    await ask(run, "DELETE", "/threads/greeting")
    stored = await run.app.store.threads(None)
    assert stored == ()
    body = json.dumps(header).encode() + whole[whole.index(b"\n") :]
    answer = await ask(run, "POST", "/import", CREDENTIALS["admin"], body)
    assert answer.status_code == 200
    assert await run.app.store.secret() == before


SAID, ANSWERED = "Where is crate 7?", "At dock 3."
BY_API: dict[str, dict[str, Any]] = {
    "chat": {"messages": CONVERSATION[1:3]},
    "responses": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": SAID},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWERED}]},
        ],
    },
    "messages": {
        "system": "Be brief.",
        "max_tokens": 99,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": SAID}]},
            {"role": "assistant", "content": ANSWERED},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize("api", BY_API)
async def test_a_conversation_of_each_api(run: Running, api: str) -> None:
    """It is stored in that API's words, shows in a preview of the same API, and is no request of
    another one."""
    body = {"model": "scripted-actor", **BY_API[api]}
    created = await ask(run, "POST", f"/threads/old/messages?api={api}", OWN, body)
    assert (created.status_code, created.json()["created"]) == (200, 2), created.text
    stored = (await ask(run, "GET", "/threads/old/messages")).json()["items"]
    assert [item.get("api") or "chat" for item in stored] == [api] * 2

    asked = await ask(run, "POST", f"/threads/old/context?api={api}", OWN, body)
    assert (asked.status_code, asked.json()["status"]) == (200, "raw"), asked.text
    assert (asked.json()["dropped"], asked.json()["added"]) == ([], [])
    newest = await ask(run, "GET", "/threads/old/context?text=And+crate+8%3F")
    assert newest.status_code == 200, newest.text
    assert "crate 8" in orjson.dumps(newest.json()["messages"][-1]).decode()

    if api != "chat":
        other = "messages" if api == "responses" else "responses"
        refused = await ask(run, "POST", f"/threads/new/messages?api={other}", OWN, body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "om_bad_request")
