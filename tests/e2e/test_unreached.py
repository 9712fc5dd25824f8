"""Requests that name a thread on a route without memory: told in the receipt and in the log, and
passed on to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from om_proxy.edge import passthrough
from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.raw_upstream import chat_body, read_reason, run_with_raw_upstream
from tests.e2e.written import LogLines, collect_log_lines
from tests.support.upstream_server import Call, script_answer

T = b"X-OM-Thread: secret-thread"
KEYS = "auth: {keys: [{tenant: acme, key: sk-acme}]}"
CANARIES = ("secret", "sk-", "resp_123", "Agent-Words")


def events(out: LogLines, name: str) -> list[dict[str, Any]]:
    return [line for line in map(orjson.loads, out.text.splitlines()) if line["event"] == name]


def said(line: dict[str, Any]) -> tuple[object, ...]:
    return tuple(line[name] for name in ("status", "memory", "reason", "route", "end"))


ADVICE = (
    "this route has no memory; have the client post to /v1/chat/completions or /v1/responses or "
    "/v1/messages (docs/clients)"
)


async def test_a_session_of_a_coding_agent_is_told_too(tmp_path: Path) -> None:
    """It is no thread, and its user would never learn why nothing is remembered."""
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            got = await site.ask(b"{}", b"session-id: secret-1", path="/v1/embeddings")
            assert read_reason(got) == "off/route"
            assert got.header(b"x-om-thread") == []
    assert len(events(out, "memory.unreached")) == len(events(out, "turn")) == 1
    assert "secret" not in out.text


KNOWN_ROUTES = [
    ("GET", "/v1/responses/resp_123", "/v1/responses"),
    ("POST", "/v1/messages/batches", "/v1/messages"),
    ("POST", "/v1/embeddings", "/v1/embeddings"),
    ("GET", "/v1/chat/completions", "/v1/chat"),
    ("POST", "/v1/secret-route", "other"),
]


@pytest.mark.parametrize(("method", "path", "route"), KNOWN_ROUTES)
async def test_every_route_says_that_memory_is_off(
    tmp_path: Path, method: str, path: str, route: str
) -> None:
    """The receipt and one line in the log; one warning that names the route and what to do. The
    bytes are untouched."""
    body = b'{ "model":"m", "input":"hi" }'
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            for _ in range(2):
                got = await site.ask(
                    body,
                    T,
                    method=method,
                    path=path,
                    script=script_answer(b"\x00{", status=b"207 Many"),
                )
                assert (got.status, got.body, site.seen.body) == (207, b"\x00{", body)
                assert read_reason(got) == "off/route"
                assert got.header(b"x-om-thread") == [b"secret-thread"]
            assert await site.threads() == 0
    turns, warned = events(out, "turn"), events(out, "memory.unreached")
    assert [said(line) for line in turns] == [(207, "off", "route", route, "complete")] * 2
    assert [(line["level"], line["route"], line["advice"]) for line in warned] == [
        ("warning", route, ADVICE)
    ]
    assert len(turns[0]["thread"]) == len(warned[0]["client"]) == 16
    assert not [canary for canary in CANARIES if canary in out.text]


@pytest.mark.parametrize(
    "path", ["/v1/responses/compact", "/responses/input_tokens", "/v1/messages/count_tokens"]
)
async def test_what_clients_of_an_api_ask_beside_warns_of_nothing(
    tmp_path: Path, path: str
) -> None:
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            got = await site.ask(b'{ "model":"m" }', T, path=path)
            assert (read_reason(got), site.seen.body) == ("off/route", b'{ "model":"m" }')
    (turn,) = events(out, "turn")
    assert (turn["route"], turn["api"]) == (
        "/v1/" + path.removeprefix("/v1").strip("/"),
        "messages" if "messages" in path else "responses",
    )
    assert not events(out, "memory.unreached")


async def test_an_api_that_is_left_out_is_told_where_memory_is(tmp_path: Path) -> None:
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path, "identity: {apis: [chat]}") as site:
            assert read_reason(await site.ask(b"{}", T, path="/v1/responses")) == "off/route"
    (warned,) = events(out, "memory.unreached")
    assert (warned["route"], "responses" in warned["advice"]) == ("/v1/responses", False)
    assert "/v1/chat/completions" in warned["advice"]


async def test_the_label_is_the_thread_s(tmp_path: Path) -> None:
    """The same that chat's lines have, so that an operator sees both of one client."""
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            await site.ask(chat_body("hi"), T)
            await site.ask(b"{}", T, path="/v1/embeddings")
    assert len(out.threads("turn")["turn"]) == 1


async def test_each_client_is_warned_of_once(tmp_path: Path) -> None:
    """By its credential and its program, told by words of ours; no more of a header reaches the
    log."""
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            for _ in range(2):
                for key in (b"sk-a", b"sk-b"):
                    for agent in (
                        b"codex_exec/0.169 (Agent-Words)",
                        b"OpenAI/Python 3.1",
                        b"Agent-Words/1.0",
                    ):
                        more = (b"Authorization: Bearer " + key, b"User-Agent: " + agent)
                        await site.ask(b"{}", T, *more, path="/v1/embeddings")
    warned = [(line["client"], line["program"]) for line in events(out, "memory.unreached")]
    assert len(warned) == len(set(warned)) == 6
    assert {program for _, program in warned} == {"codex", "openai-python", "other"}
    assert not [canary for canary in CANARIES if canary in out.text]


async def test_what_is_remembered_of_clients_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that came longest ago is forgotten, and warned of again."""
    monkeypatch.setattr(passthrough, "MAX_WARNED_CLIENTS", 2)
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            for key in (b"a", b"b", b"a", b"c", b"a", b"b"):
                await site.ask(b"{}", T, b"x-api-key: " + key, path="/v1/embeddings")
            assert len(site.app.unreached._warned) == 2
    assert len(events(out, "memory.unreached")) == 4  # a, b, c, and b again


@pytest.mark.parametrize(
    "named",
    [
        b"X-OM-Thread: a b",  # a name that chat would refuse refuses nothing here
        b"x-openwebui-chat-id: chat",
        b"helicone-session-id: run-1",
        b"x-session-id: ses_1\r\nx-session-affinity: ses_1",
        b"X-OM-Thread: t\r\nX-OM-Mode: off",
        b"X-OM-Thread: t\r\nX-OM-Mode: nonsense",
        b"X-OM-Thread: t\r\nAuthorization: Bearer a\r\nx-api-key: b",
    ],
)
async def test_however_the_thread_is_named(tmp_path: Path, named: bytes) -> None:
    """Told all the same, and passed on."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(b"{}", named, path="/v1/embeddings")
        assert (got.status, read_reason(got)) == (200, "off/route")


@pytest.mark.parametrize(
    "named",
    [
        b"X: y",
        b"X-OM-Thread: {{CHAT_ID}}",
        b"X-OM-Resource: ada",
        b"x-session-id: ses_1",
        b"X-OM-Mode: off",
    ],
)
async def test_without_a_thread_nothing_is_told(tmp_path: Path, named: bytes) -> None:
    """No receipt, no line."""
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            got = await site.ask(b"{}", named, path="/v1/embeddings")
            assert read_reason(got) == ""
    assert not events(out, "turn")


async def test_refusals_are_told_too(tmp_path: Path) -> None:
    """Of ours: a missing key, a path that cannot be relayed, a WebSocket, a model server that is
    not there."""
    websocket = (b"Upgrade: websocket", b"Connection: Upgrade")
    bearer = b"Authorization: Bearer sk-acme"
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path, KEYS, base_url="http://127.0.0.1:9/v1") as site:
            refused = [
                await site.ask(b"{}", T, path="/v1/embeddings"),
                await site.ask(b"{}", T, bearer, path="/v1//embeddings"),
                await site.ask(b"", T, bearer, *websocket, method="GET", path="/v1/responses"),
                await site.ask(b"{}", T, bearer, path="/v1/embeddings"),
            ]
    assert [(got.status, read_reason(got)) for got in refused] == [
        (code, "off/route") for code in (401, 400, 426, 502)
    ]
    ends = [line["end"] for line in events(out, "turn")]
    # who is told to post comes again with memory
    assert {line["route"] for line in events(out, "memory.unreached")} == {"/v1/embeddings"}
    assert ends == ["om_unauthorized", "om_bad_path", "om_unsupported", "om_upstream_unreachable"]
    assert not [canary for canary in CANARIES if canary in out.text]


async def test_an_answer_that_breaks_off(tmp_path: Path) -> None:
    """The line says so."""

    async def script(call: Call) -> None:
        call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        call.close()

    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            got = await site.ask(b"{}", T, path="/v1/embeddings", script=script)
            assert (got.body, got.whole) == (b"half", False)
    assert [said(line)[-1] for line in events(out, "turn")] == ["truncated"]


async def test_the_client_s_unreadable_chat_is_no_error_of_ours(tmp_path: Path) -> None:
    """It is passed on and told without alarm."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"},17]}'
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            assert read_reason(await site.ask(body, T)) == "degraded/unreadable"
            assert (
                await site.app.store.load(Key(LOCAL_TENANT, "secret-thread", "secret-thread"))
            ).count == 0
    (bypassed,) = events(out, "memory.bypassed")
    assert (bypassed["level"], bypassed["reason"]) == ("info", "unreadable")


async def test_another_s_receipt_does_not_reach_the_client(tmp_path: Path) -> None:
    """On no route (docs/contributing/http.md#replies)."""
    script = script_answer(b"{}", b"X-OM-Status: applied", b"x-om-thread: theirs", b"X-OM-New: 1")
    async with run_with_raw_upstream(tmp_path) as site:
        for path, status in (("/v1/chat/completions", b"raw"), ("/v1/embeddings", b"off")):
            got = await site.ask(chat_body("hi"), T, path=path, script=script)
            assert (got.header(b"x-om-status"), got.header(b"x-om-new")) == ([status], [])
            assert got.header(b"x-om-thread") == [b"secret-thread"]
        got = await site.ask(b"", method="GET", path="/v1/models", script=script)
        assert not [name for name, _ in got.headers if name.startswith(b"x-om-")]


async def test_a_stranger_who_invents_credentials(tmp_path: Path) -> None:
    """A minute has room for so many warnings. The next one says how many were left out, and who was
    left out is warned then."""

    async def ask(client: int) -> None:
        await site.ask(b"{}", T, b"Authorization: Bearer sk-%d" % client, path="/v1/embeddings")

    now, most = 0.0, passthrough.MAX_WARNINGS_A_MINUTE
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            await site.ask(b"", method="GET", path="/v1/models")  # it has started then
            site.app.unreached._clock = lambda: now
            for client in range(most + 7):
                await ask(client)
            warned = events(out, "memory.unreached")
            assert (len(warned), [line for line in warned if "left_out" in line]) == (most, [])
            now = 60.0
            for _ in range(2):
                await ask(most + 6)
    *_, last = warned = events(out, "memory.unreached")
    assert (len(warned), last["left_out"]) == (most + 1, 7)
    assert len({line["client"] for line in warned}) == most + 1
    assert len(events(out, "turn")) == most + 9
