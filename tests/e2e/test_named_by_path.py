"""Clients that can set a base URL and nothing else, and names that are more than plain letters:
over the wire, both ways."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import httpx
import orjson
import pytest

from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.raw_upstream import ProxyUnderTest, chat_body, read_reason, run_with_raw_upstream
from tests.e2e.running import run_with_scripted_models

NAME = "Küche & Bad 100% / 対話 👩\u200d🚀"
SPELLED = quote(NAME, safe="")


async def said(site: ProxyUnderTest, thread: str, resource: str | None = None) -> int:
    return (await site.app.store.load(Key(LOCAL_TENANT, resource or thread, thread))).count


PREFIXES = [
    ("/t/kitchen", "kitchen", None),
    ("/r/ada/t/kitchen", "kitchen", "ada"),
    ("/t/a%20b", "a b", None),
    (f"/r/{SPELLED}/t/{SPELLED}", NAME, NAME),
    ("/t/t", "t", None),
]


@pytest.mark.parametrize(
    "route", ["/v1/chat/completions", "/chat/completions", "/v1/chat/completions?x=%2F"]
)
@pytest.mark.parametrize(("prefix", "thread", "resource"), PREFIXES)
async def test_the_base_url_names_the_thread(
    tmp_path: Path, prefix: str, thread: str, resource: str | None, route: str
) -> None:
    """Chat has its memory; the model server sees the route and neither prefix nor names."""
    async with run_with_raw_upstream(tmp_path) as site:
        for text, status in (("one", "raw"), ("two", "applied")):
            got = await site.ask(chat_body(text), path=prefix + route)
            assert read_reason(got) == status
            assert site.seen.line == f"POST /v1{route.removeprefix('/v1')} HTTP/1.1".encode()
            assert not [name for name, _ in site.seen.headers if b"om-" in name]
        assert await said(site, thread, resource) == 4


async def test_the_receipt_spells_the_name(tmp_path: Path) -> None:
    """As a header can carry it, and as the client may send it back: the same thread."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("one"), path=f"/t/{SPELLED}/v1/chat/completions")
        (spelled,) = got.header(b"x-om-thread")
        got = await site.ask(chat_body("two"), b"X-OM-Thread: " + spelled)
        assert (read_reason(got), got.header(b"x-om-thread")) == ("applied", [spelled])
        assert await said(site, NAME) == 4


async def test_headers_win_over_the_path(tmp_path: Path) -> None:
    """Each of the two names by itself."""
    async with run_with_raw_upstream(tmp_path) as site:
        await site.ask(
            chat_body("hi"), b"X-OM-Thread: hall", path="/r/ada/t/kitchen/v1/chat/completions"
        )
        assert await said(site, "hall", "ada") == 2
        assert await site.threads() == 1


OTHERS = [
    ("GET", "/v1/models", b"", "/v1/models"),
    ("GET", "/models?limit=2", b"", "/v1/models?limit=2"),
    ("DELETE", "/v1/files/a%20b", b"", "/v1/files/a%20b"),
    ("POST", "/v1/embeddings", b'{"input" : "hi"}', "/v1/embeddings"),
    ("POST", "/v1/t/x/r", b"{}", "/v1/t/x/r"),
]


@pytest.mark.parametrize(("method", "path", "body", "seen"), OTHERS)
async def test_every_route_stands_below_it(
    tmp_path: Path, method: str, path: str, body: bytes, seen: str
) -> None:
    """Passed on without the prefix; the receipt says that memory does not reach it."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(body, method=method, path=f"/r/ada/t/kitchen{path}")
        assert (site.seen.line, site.seen.body) == (f"{method} {seen} HTTP/1.1".encode(), body)
        assert (read_reason(got), got.header(b"x-om-thread")) == ("off/route", [b"kitchen"])


@pytest.mark.parametrize(
    "path",
    [
        "/t/k/v1/chat%2fcompletions",
        "/t/k/v1/chat%2Fcompletions",
        "/t/k/v1/../v1/chat/completions",
        "/t/k/%2e%2e/v1/chat/completions",
        "/t/../v1/chat/completions",
        "/t/%2e%2e/v1/chat/completions",
        "/t/k//v1/chat/completions",
        "/t//v1/chat/completions",
        "/t/%2F..%2F/../v1/chat/completions",
        "/t/a%zz/v1/chat/completions",
        "/t/%ff/v1/chat/completions",
        "/t/a%0d%0ab/v1/chat/completions",
        "/r/ada/v1/chat/completions",
        "/t/a/t/b/v1/chat/completions",
    ],
)
async def test_a_path_in_disguise_is_refused(tmp_path: Path, path: str) -> None:
    """With what to do; nothing goes upstream, and no thread comes of it."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("hi"), path=path)
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (400, "om_bad_path")
        assert site.server.seen == []
        assert await site.threads() == 0


@pytest.mark.parametrize(
    "value", [b"a%", b"a%zz", b"%ff", b"a%00", b"a%0d%0ab", b"%C3%BC" * 129, b"a b%20c", b"a,b%20"]
)
async def test_a_header_that_is_no_name_is_refused(tmp_path: Path, value: bytes) -> None:
    """As ever."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("hi"), b"X-OM-Thread: " + value)
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (400, "om_bad_header")
        assert site.server.seen == []


async def test_no_client_can_send_what_the_path_says(tmp_path: Path) -> None:
    """A header that begins with a colon is no HTTP."""
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("hi"), b":om-thread: t")
        assert (got.status, orjson.loads(got.body)["error"]["code"]) == (400, "om_bad_http")
        assert site.server.seen == []


async def test_the_path_names_a_thread_of_the_caller_s_alone(tmp_path: Path) -> None:
    """The tenant comes from the credential: another's thread of the same name is another."""
    async with run_with_raw_upstream(tmp_path) as site:
        for key in (b"sk-a", b"sk-b"):
            got = await site.ask(
                chat_body("my " + key.decode()),
                b"Authorization: Bearer " + key,
                path="/t/k/v1/chat/completions",
            )
            assert read_reason(got) == "raw"
        assert await site.threads() == 2


async def test_the_sdk_with_nothing_but_a_base_url(tmp_path: Path) -> None:
    """OpenAI's own client, whole and streamed."""
    from openai import AsyncOpenAI

    async with run_with_scripted_models(tmp_path) as run:
        async with AsyncOpenAI(
            base_url=f"{run.base}/r/ada/t/kitchen%20plans/v1", api_key="sk-a"
        ) as client:
            for stream in (False, True):
                with_raw = client.chat.completions.with_raw_response
                answer = await with_raw.create(
                    model="scripted-actor",
                    messages=[{"role": "user", "content": "The dock is 2.85 m high."}],
                    stream=stream,
                )
                if stream:
                    async for _ in answer.parse():
                        pass
                assert answer.headers["x-om-thread"] == "kitchen%20plans"
        memory = await run.memory()
        assert (memory.key.resource, memory.key.thread) == ("ada", "kitchen plans")


async def test_the_admin_api_finds_such_names(tmp_path: Path) -> None:
    """Listed as they are, asked for percent-encoded, in either spelling of their letters."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat(SPELLED, **{"x-om-resource": quote("Ada Müller")}).say("Hello.")
        key = {"authorization": "Bearer sk-a"}

        async def shown(path: str) -> httpx.Response:
            return await run.http.get(f"{run.base}/om/v1/threads{path}", headers=key)

        (line,) = (await shown("")).json()["threads"]
        assert (line["resource"], line["thread"]) == ("Ada Müller", NAME)
        assert len((await shown(f"?resource={quote('Ada Müller')}")).json()["threads"]) == 1
        found = await shown(f"/{SPELLED}?resource=Ada%20Mu%CC%88ller")
        assert (found.status_code, found.json()["thread"]) == (200, NAME)
        pinned = await run.http.patch(
            f"{run.base}/om/v1/threads/{SPELLED}?resource=Ada+M%C3%BCller",
            json={"title": "Baths"},
            headers=key,
        )
        assert pinned.json()["title"] == "Baths"
        assert (
            await shown(f"/{SPELLED}%20?resource=Ada%20M%C3%BCller")
        ).status_code == 200  # blanks around it are none
        gone = await run.http.delete(
            f"{run.base}/om/v1/threads/{SPELLED}?resource=Ada%20M%C3%BCller", headers=key
        )
        assert gone.status_code == 200
        assert (await shown("")).json()["threads"] == []
        for wrong in ("%00", "%ff", quote(SPELLED, safe="")):
            assert (await shown(f"/{wrong}?resource=Ada%20M%C3%BCller")).status_code == 404


async def test_opencode_without_a_line_of_code(tmp_path: Path) -> None:
    """Its session is the thread, its sub-agent's another one; its headers travel on to the
    provider."""
    session = (b"x-session-id: ses_1", b"x-session-affinity: ses_1")
    child = (b"x-session-id: ses_2", b"x-session-affinity: ses_2", b"x-parent-session-id: ses_1")
    async with run_with_raw_upstream(tmp_path) as site:
        for headers in (session, child):
            got = await site.ask(chat_body("hi"), *headers)
            assert read_reason(got) == "raw"
            sent = dict(site.seen.headers)
            assert (
                sent[b"x-session-id"]
                == sent[b"x-session-affinity"]
                == got.header(b"x-om-thread")[0]
            )
        assert read_reason(await site.ask(chat_body("hi"), session[0])) == "off/no-thread"
        assert (await said(site, "ses_1"), await said(site, "ses_2")) == (2, 2)
    async with run_with_raw_upstream(tmp_path, "identity: {sessions: []}") as site:
        assert read_reason(await site.ask(chat_body("hi"), *session)) == "off/no-thread"
