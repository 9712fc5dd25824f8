"""Another agent reads memory at `/om/mcp`: its own tenant's, by four tools, and nobody else's."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.management.mcp.memory_tools import MAX_SEARCHED_RESOURCES
from om_proxy.management.mcp.route import MAX_MCP_BODY_BYTES
from om_proxy.management.mcp.tools import TOOL_NAMES
from om_proxy.memory.model import Key, Memory
from om_proxy.memory.recall.arguments import ONLY_THIS_CONVERSATION
from om_proxy.settings.identity.user_token import Claims, sign_claims
from tests.e2e.running import Chat, Running, run_with_scripted_models
from tests.settings.identity.test_thread_names_sessions import OPENCODE, SUB_AGENT
from tests.storage.memory_builder import MemoryBuilder
from tests.support.hostile_texts import encode_json, list_utf8_texts
from tests.support.long_forms import IS_LONG, long_form

ADMIN_TOKEN = "admin-token-of-this-test"
TOKEN_SECRET = "0123456789abcdef0123456789abcdef"
OWN = {"authorization": "Bearer sk-a"}
FOREIGN_CREDENTIAL = {"authorization": "Bearer sk-b"}
ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}
ALICE = {"resource": "alice"}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    """A proxy with two tenants whose threads and resources have the same names."""
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}\n            auth: {{token_secret: {TOKEN_SECRET}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        for key in ("sk-a", "sk-b"):
            for resource in ("alice", "bob"):
                chat = running.chat("trip", key=key, **{"x-om-resource": resource})
                await chat.say(f"CANARY-{key} of {resource}: a violin in crate 7")
        yield running


async def post(run: Running, body: Any, headers: dict[str, str], path: str = "/om/mcp") -> Any:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return await run.http.post(
        run.base + path, content=content, headers={"content-type": "application/json", **headers}
    )


async def ask(run: Running, method: str, params: Any = None, **headers: str) -> Any:
    message = {"jsonrpc": "2.0", "id": "q", "method": method, "params": params or {}}
    answer = await post(run, message, headers or OWN)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    return answer.json()


async def use(
    run: Running,
    tool: str,
    arguments: dict[str, Any],
    headers: dict[str, str] = OWN,
    path: str = "/om/mcp",
) -> tuple[str, bool]:
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    answer = await post(run, message, headers, path)
    assert answer.status_code == 200
    result = answer.json()["result"]
    [content] = result["content"]
    assert content["type"] == "text"
    return content["text"], result["isError"]


async def test_a_client_lists_and_calls_all_tools(run: Running) -> None:
    for n in range(12):
        await run.chat("long", **{"x-om-resource": "alice"}).say(f"Crate {n} " + "is full. " * 60)
    await run.app.background.wait_idle()
    begun = await ask(run, "initialize", {"protocolVersion": "2025-06-18"})
    assert begun["result"]["protocolVersion"] == "2025-06-18"
    notified = await post(run, {"jsonrpc": "2.0", "method": "notifications/initialized"}, OWN)
    assert (notified.status_code, notified.content) == (202, b"")
    assert (await ask(run, "ping"))["result"] == {}
    tools = (await ask(run, "tools/list"))["result"]["tools"]
    assert [tool["name"] for tool in tools] == list(TOOL_NAMES)
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)

    found, _ = await use(run, "search_memory", {"query": "violin", **ALICE})
    assert "CANARY-sk-a of alice" in found
    assert 'mode "' not in found
    listed, _ = await use(run, "list_threads", ALICE)
    labels = [line.partition("[")[2].partition("]")[0] for line in listed.splitlines()[1:]]
    assert len(labels) == 2
    by_label, _ = await use(run, "read_messages", {"thread": labels[1], **ALICE})
    by_name, is_error = await use(
        run, "read_messages", {"thread": "trip"}, OWN | {"x-om-resource": "alice"}
    )
    assert by_label == by_name
    assert not is_error
    assert by_name.startswith("m1 to m2 of m1 to m2\n[m1] user, ")
    notes, is_error = await use(run, "get_notes", {"thread": "long", **ALICE})
    assert not is_error
    assert notes.startswith("notes of an untitled conversation [")
    assert "\n<observations>\n[m1-m" in notes
    assert "The notes below" not in notes


async def test_a_whole_tenant_is_listed_and_searched_by_resource(run: Running) -> None:
    listed, _ = await use(run, "list_threads", {})
    assert listed.count('resource "alice"') == listed.count('resource "bob"') == 1
    found, _ = await use(run, "search_memory", {"query": "violin", "limit": 4})
    assert found.startswith("the best of 2 resources\n")
    assert found.count('resource "') == 2
    for tool, arguments in (("read_messages", {"thread": "trip"}), ("get_notes", {})):
        text, is_error = await use(run, tool, arguments)
        assert is_error
        assert text.startswith("recall: say whose conversation: resource")


@pytest.mark.parametrize("resource", [None, "bob"])
async def test_conversations_of_one_moment_are_listed_once(
    run: Running, resource: str | None
) -> None:
    """Also more than an answer has room for: names of resources are long."""
    await run.chat("t", **{"x-om-resource": "carol"}).say("one")
    infos = await run.app.store.threads(None)
    [tenant] = (info.key.tenant for info in infos if info.key.resource == "carol")
    shared, long = 1_900_000_000.0, "bob" if resource else "\\" * 200
    for number in range(23):
        key = Key(tenant, long, f"imported {number}")
        memory = replace(MemoryBuilder(key).chat(1).memory(), turn_at=shared, title="好" * 60)
        await run.app.store.commit(Memory(key=key), memory)
    all_shown: list[str] = []
    fields: dict[str, str] = {"resource": resource} if resource else {}
    way_on = "; more: page 1"
    while "; more: " in way_on:
        assert len(all_shown) < 50
        text, is_error = await use(run, "list_threads", fields)
        assert not is_error
        way_on, *lines = text.splitlines()
        all_shown += (line.partition("[")[2][:8] for line in lines)
        if "; more: " in way_on:
            name, _, value = way_on.partition("; more: ")[2].partition(" ")
            fields = fields | {name: value}
            if name == "before":
                fields.pop("page", None)
    assert len(all_shown) == len(set(all_shown)) == 23 + (1 if resource else 3)


async def test_nobody_sees_another_tenant(run: Running) -> None:
    """Whatever is asked, with the same names on both sides, and by the other's own ids."""
    listed, _ = await use(run, "list_threads", {}, FOREIGN_CREDENTIAL)
    labels = [line.partition("[")[2].partition("]")[0] for line in listed.splitlines()[1:]]
    for tool in TOOL_NAMES:
        for resource in ({}, ALICE, {"resource": "bob"}):
            for thread in ({}, {"thread": "trip"}, *({"thread": label} for label in labels)):
                text, _ = await use(run, tool, {"query": "CANARY violin", **resource, **thread})
                assert "sk-b" not in text
                if "thread" not in thread:
                    assert not any(label in text for label in labels)
                elif thread["thread"] != "trip" and resource and tool != "list_threads":
                    unknown, _ = await use(
                        run, tool, {"query": "x", **resource, "thread": "abcdef12"}
                    )
                    assert text.replace(thread["thread"], "abcdef12") == unknown


async def test_other_tenants_take_no_place_in_a_search(run: Running) -> None:
    """However many resources they have used since."""
    for n in range(MAX_SEARCHED_RESOURCES + 1):
        await run.chat("t", key="sk-b", **{"x-om-resource": f"r{n}"}).say("violin")
    found, _ = await use(run, "search_memory", {"query": "violin"})
    assert found.startswith("the best of 2 resources\n")
    found, _ = await use(run, "search_memory", {"query": "violin"}, FOREIGN_CREDENTIAL)
    searched = f"; only the {MAX_SEARCHED_RESOURCES} used last were searched"
    assert found.startswith(f"the best of 4 resources{searched}\n")


async def test_credentials(run: Running) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    refused = await post(run, ping, {"x-om-admin": "wrong"})
    assert refused.status_code == 401
    assert "www-authenticate" not in refused.headers
    evil = await post(run, ping, {**OWN, "origin": "https://evil.example"})
    rebound = await post(run, ping, {**OWN, "host": "evil.example"})
    assert (evil.status_code, rebound.status_code) == (401, 401)
    text, is_error = await use(run, "list_threads", {}, ADMIN)
    assert is_error
    assert "?tenant=NAME" in text
    tenant = (await run.memories())[0].key.tenant
    text, _ = await use(run, "list_threads", {}, ADMIN, f"/om/mcp?tenant={tenant}")
    assert text.startswith("conversations 1 to 2")
    foreign = await post(run, ping, OWN, "/om/mcp?tenant=other")
    assert foreign.status_code == 404


@pytest.mark.parametrize(("mode", "status"), [("read", 200), ("write", 403), ("off", 403)])
async def test_a_caller_that_may_not_read(run: Running, mode: str, status: int) -> None:
    """A caller in mode `read` may look up, one in mode `write` may not, as in a reply."""
    call = {"name": "search_memory", "arguments": {"query": "violin"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = await post(run, message, {**OWN, "x-om-mode": mode})
    assert answer.status_code == status
    assert ("CANARY" in answer.text) is (status == 200)


async def test_a_users_token_reads_its_resource_alone(run: Running) -> None:
    """A token that names a thread reads that thread alone."""
    now = run.clock.now
    secret = TOKEN_SECRET.encode()
    token = sign_claims(Claims(resource="alice", exp=now + 60), secret)
    headers = {**OWN, "x-om-token": token}
    own, _ = await use(run, "search_memory", {"query": "violin"}, headers)
    assert "of alice" in own
    assert "of bob" not in own
    text, is_error = await use(
        run, "search_memory", {"query": "violin", "resource": "bob"}, headers
    )
    assert is_error
    assert "violin" not in text
    await run.chat("second", **{"x-om-resource": "alice"}).say("SECOND violin")
    narrow = sign_claims(Claims(resource="alice", exp=now + 60, thread="trip"), secret)
    headers = {**OWN, "x-om-token": narrow}
    listed, _ = await use(run, "list_threads", ALICE)
    second = listed.partition("[")[2].partition("]")[0]  # the newest
    for tool in TOOL_NAMES:
        for thread in ({}, {"thread": "second"}, {"thread": second}):
            text, is_error = await use(run, tool, {"query": "violin", **thread}, headers)
            assert "SECOND" not in text
            assert is_error or not thread
    arguments = {"thread": "trip", "cursor": f"{second}.m1"}
    assert await use(run, "read_messages", arguments, headers) == (ONLY_THIS_CONVERSATION, True)
    assert (
        "CANARY-sk-a of alice" in (await use(run, "read_messages", {"thread": "trip"}, headers))[0]
    )
    expired = sign_claims(Claims(resource="alice", exp=now - 60), secret)
    refused = await post(run, {}, {**OWN, "x-om-token": expired})
    assert refused.status_code == 401


@pytest.mark.parametrize("claimed", ["trip", None])
async def test_the_claim_alone_says_what_a_token_reads(run: Running, claimed: str | None) -> None:
    """A header that names a conversation neither opens another thread nor closes one."""
    await run.chat("second", **{"x-om-resource": "alice"}).say("SECOND violin")
    claims = Claims(resource="alice", exp=run.clock.now + 60, thread=claimed)
    token = {**OWN, "x-om-token": sign_claims(claims, TOKEN_SECRET.encode())}
    for sent in (SUB_AGENT, OPENCODE, {"x-om-thread": "trip"}):
        found, _ = await use(run, "search_memory", {"query": "SECOND"}, {**token, **sent})
        read, is_error = await use(run, "read_messages", {"thread": "second"}, {**token, **sent})
        for text in (found, read):
            assert ("SECOND violin" in text) is (claimed is None), (sent, text)
        assert is_error is (claimed is not None)


async def test_the_route_itself(run: Running) -> None:
    for method in ("GET", "DELETE"):
        answer = await run.http.request(method, run.base + "/om/mcp", headers=OWN)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    large = await post(run, b" " * (MAX_MCP_BODY_BYTES + 1), OWN)
    assert large.status_code == 413
    plain = await run.http.post(run.base + "/om/mcp", content=b"{}", headers=OWN)
    assert plain.status_code == 400
    unknown = await ask(run, "tools/call", {"name": "forget_all"})
    assert unknown["error"]["code"] == -32602
    assert (await ask(run, "resources/list"))["error"]["code"] == -32601
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "server/discover"}
    discovered = (await post(run, message, {**OWN, **headers})).json()["result"]
    assert discovered["resultType"] == "complete"
    assert discovered["cacheScope"] == "private"
    assert discovered["supportedVersions"][0] == "2026-07-28"
    gone = await post(run, {**message, "method": "ping"}, {**OWN, **headers, "mcp-method": "ping"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, -32601)


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with run_with_scripted_models(tmp_path, more="mcp: {enabled: false}") as run:
        answer = await post(run, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, OWN)
        assert answer.status_code == 404


async def test_a_caller_on_this_machine_needs_no_key(tmp_path: Path) -> None:
    """It reads the tenant `local`, and nothing of those who have a key."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("trip", **{"x-om-resource": "alice"}).say("a violin with a key")
        await Chat(run, {"x-om-thread": "trip", "x-om-resource": "alice"}).say("a local violin")
        found, _ = await use(run, "search_memory", {"query": "violin"}, {})
        assert "a local violin" in found
        assert "with a key" not in found


async def test_the_admin_token_may_see_no_text(tmp_path: Path) -> None:
    more = f"server: {{admin_token: {ADMIN_TOKEN}, admin_reads: false}}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert (await post(run, ping, ADMIN)).status_code == 403
        assert (await post(run, ping, OWN)).status_code == 200


def make_body(random: Random) -> Any:
    """Return a call with arguments of any kind, or a message that is broken somewhere."""
    values: list[Any] = [
        None, True, -1, 10**30, 1.5, "", " ", "m1", "m0", "m1-m2", "trip", "alice", "\ud83d", "x" * 500,
        [], {}, ["m1"], {"a": 1}, "2023-05-08", "9999-12-31", "violin", 'NEAR(" *', "\x00",
    ]  # fmt: skip
    names = (
        "query", "thread", "resource", "cursor", "page", "limit", "partIndex", "charOffset", "before", "after",
    )  # fmt: skip
    arguments = {name: random.choice(values) for name in random.sample(names, random.randint(0, 6))}
    arguments.setdefault("resource", "alice")
    params = {"name": random.choice(TOOL_NAMES), "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    if random.random() < 0.2:
        target = random.choice((message, params))
        target[random.choice(sorted(target))] = random.choice(values)
    body = json.dumps(message).encode()
    if random.random() < 0.05:
        body = body[: random.randrange(len(body))]
    return body


async def test_random_bodies_are_answered(run: Running) -> None:
    """Nothing that is sent makes the server fail: no 5xx, and no fault of ours in an answer."""
    random = Random(0)
    for _ in range(10_000 if IS_LONG else 300):
        body = make_body(random)
        answer = await post(run, body, OWN)
        assert answer.status_code in (200, 202, 400), body
        assert b"cannot be read now" not in answer.content, body


async def test_hostile_texts_stay_quotes(run: Running) -> None:
    """No line of a message stands at the left edge, where the lines of ours are."""
    texts = Random(1).sample(list_utf8_texts(), 400 if IS_LONG else 60)
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": f"hostile {text}"}
        for n, text in enumerate(texts)
    ]
    chat = run.chat("hostile", **{"x-om-resource": "mallory"})
    sent = {"model": "scripted-actor", "messages": [*messages, {"role": "user", "content": "end"}]}
    answer = await run.http.post(
        f"{run.base}/v1/chat/completions", content=encode_json(sent), headers=chat.headers
    )
    assert answer.status_code == 200
    cursor, seen = 1, 0
    while cursor <= len(texts):
        arguments = {"thread": "hostile", "resource": "mallory", "cursor": f"m{cursor}"}
        text, is_error = await use(run, "read_messages", arguments)
        assert not is_error
        first, *lines = text.split("\n")
        assert first.startswith(f"m{cursor} to m")
        ours = [line for line in lines if not line.startswith("  ")]
        headers = [line for line in ours if line != "[p0] (cut; partIndex=0 for all)"]
        for header in headers:
            assert header.startswith(f"[m{cursor}] {('user', 'assistant')[(cursor - 1) % 2]}, ")
            cursor, seen = cursor + 1, seen + 1
        assert "\x1b" not in text
        assert "</observations>" not in text
    assert seen >= len(texts)


@long_form
async def test_a_search_is_fast(run: Running) -> None:
    times = []
    for _ in range(50):
        started = time.perf_counter()
        await use(run, "search_memory", {"query": "violin", **ALICE})
        times.append(time.perf_counter() - started)
    assert sorted(times)[25] < 0.02
