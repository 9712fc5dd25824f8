"""What the doctor says of model servers and of webhooks: who fails and why, without a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.cli.doctor.upstreams import (
    advise,
    count_waiting,
    describe_webhook,
    examine_upstreams,
    examine_webhooks,
)
from om_proxy.engine.event_feed.envelope import name_hook
from om_proxy.memory.model import Memory
from om_proxy.settings.config import parse
from om_proxy.storage.sqlite.store import SqliteStore
from om_proxy.storage.values.records import WebhookState
from tests.storage.event_contract import activation
from tests.storage.memory_builder import KEY, MemoryBuilder
from tests.support.upstream_server import Call, Script, run_upstream_server, script_answer

URL = "https://hooks.example/in?key=canary"
OTHER_URL = "https://hooks.example:8443/canary"


PATH = "telemetry.webhooks[1]"
RECEIVER = "hooks.example:443"


def test_a_hook_that_fails_needs_attention() -> None:
    failing = describe_webhook(PATH, RECEIVER, WebhookState(3, 5, "status 500", 1.0), 7)
    assert not failing.works
    assert "5 failures in a row, the last one status 500; up to 7 events" in failing.text
    assert describe_webhook(PATH, RECEIVER, WebhookState(10, 0, "", 1.0), 0).works
    assert describe_webhook(PATH, RECEIVER, None, 0).works


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("ConnectError", "check that the receiver runs, and telemetry.webhooks[1].url"),
        ("ConnectTimeout", "check that the receiver runs, and telemetry.webhooks[1].url"),
        ("timeout", "no answer came within 10 s"),
        ("ReadTimeout", "no answer came within 10 s"),
        ("status 401", "check that it knows the secret of telemetry.webhooks[1]"),
        ("status 302", "a redirect is not followed"),
        ("status 404", "no such address: check telemetry.webhooks[1].url"),
        ("status 500", "must answer 2xx"),
    ],
)
def test_the_advice_is_that_for_the_cause(cause: str, advice: str) -> None:
    assert advice in advise(PATH, cause)


async def test_each_hook_of_the_settings(tmp_path: Path) -> None:
    """Two on one host are told apart. The address stays out of the report: it may hold a key."""
    hooks = ", ".join(
        f"{{url: '{url}', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}"
        for url in (OTHER_URL, URL)
    )
    settings = parse(f"telemetry: {{webhooks: [{hooks}]}}")
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        await store.set_webhook_state(name_hook(URL), WebhookState(0, 2, "timeout", 1.0))
        other, finding = await examine_webhooks(store, settings)
    finally:
        await store.close()
    assert (other.works, finding.works) == (True, False)
    assert "telemetry.webhooks[0] (hooks.example:8443): " in other.text
    assert "telemetry.webhooks[1] (hooks.example:443): 2 failures" in finding.text
    assert "canary" not in other.text + finding.text


async def test_events_that_wait_are_counted(tmp_path: Path) -> None:
    """Not their ids, which may have gaps."""
    store = await SqliteStore.open(tmp_path / "om.db")
    try:
        await store.commit(Memory(key=KEY), MemoryBuilder().chat(1).memory())
        await store.add_events(KEY, [activation(str(number)) for number in range(5)])
        assert await count_waiting(store, await store.event_position()) == 0
        assert await count_waiting(store, await store.event_position(3)) == 3
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("apis", "header"),
    [
        ("chat, messages", (b"authorization", b"Bearer sk-hush")),
        ("messages", (b"x-api-key", b"sk-hush")),
    ],
)
async def test_a_server_is_asked_by_its_first_api(apis: str, header: tuple[bytes, bytes]) -> None:
    """Its key stands in the header of that API, and the finding names all of its APIs."""
    async with run_upstream_server(script_answer(b"{}")) as server:
        text = f"upstream: [{{base_url: '{server.base}', apis: [{apis}], api_key: sk-hush}}]"
        (finding,) = await examine_upstreams(parse(text))
    assert finding.works
    assert f"({apis}) answers (200)" in finding.text
    (seen,) = server.seen
    assert [one for one in seen.headers if one[1].endswith(b"sk-hush")] == [header]
    assert bool(seen.header(b"anthropic-version")) == (apis == "messages")


def answer_by_path(**answers: tuple[str, bytes]) -> Script:
    """Return the script of a server that knows these paths, and answers 404 to all others.
    `answers`: by `GET /v1/models`, with underscores: a status and a body."""

    async def script(call: Call) -> None:
        method, path, _ = call.seen.line.decode().split()
        name = f"{method}{path}".replace("/", "_")
        status, body = answers.get(name, ("404 Not Found", b"{}"))
        await script_answer(body, status=status.encode())(call)

    return script


MODELS = ("200 OK", b'{"data":[]}')


@pytest.mark.parametrize(
    ("path", "answers", "works", "said"),
    [
        ("", {"GET_v1_models": MODELS}, False, "(200) at {base}/v1: set upstream[0].base_url"),
        ("/v1", {"GET_api_v1_models": ("401 No", b"")}, False, "(401) at {base}/api/v1: set"),
        ("/v1", {"POST_v1_chat_completions": ("400 Bad", b"{}")}, True, "answers (400)"),
        ("/v1", {}, False, "answers (404) to /chat/completions too: no API is there; check"),
        (
            "",
            {"GET_models": ("200 OK", b'{"error":"Unexpected endpoint"}'), "GET_v1_models": MODELS},
            False,
            "(200) at {base}/v1: set",
        ),
    ],
    ids=["without /v1", "a router", "no list of models", "no API", "LM Studio"],
)
async def test_an_address_without_an_api(
    path: str, answers: dict[str, tuple[str, bytes]], works: bool, said: str
) -> None:
    """A 404 is no server that works: other paths are tried, and the right one is named."""
    async with run_upstream_server(answer_by_path(**answers)) as server:
        base = server.base.removesuffix("/v1")
        (finding,) = await examine_upstreams(parse(f"upstream: [{{base_url: '{base}{path}'}}]"))
    assert finding.works == works
    assert said.format(base=base) in finding.text
    assert all(seen.body in (b"", b"{}") for seen in server.seen)


async def test_a_web_page_is_no_api() -> None:
    page = script_answer(b"<html>", b"Content-Type: text/html; charset=utf-8")
    async with run_upstream_server(page) as server:
        (finding,) = await examine_upstreams(parse(f"upstream: [{{base_url: '{server.base}'}}]"))
    assert not finding.works
    assert "no API is there" in finding.text
