"""The admin API over HTTP: who may ask which route, versions, and what is refused. The permissions
are read from the table of routes, so that a new route has them too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.common.errors import BadRequest, Conflict, StorageError
from om_proxy.management.api.admin_api import (
    is_known_to_client,
    parse_expected_version,
    write_entity_tag,
)
from om_proxy.management.api.openapi import build_openapi
from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES
from om_proxy.settings.config import parse
from om_proxy.settings.identity.naming import encode_name
from tests.e2e.running import Running, run_with_scripted_models

ADMIN_TOKEN = "a-long-admin-token"
OWN, FOREIGN = {"authorization": "Bearer sk-a"}, {"authorization": "Bearer sk-b"}
CREDENTIALS: dict[str, dict[str, str]] = {
    "none": {},
    "wrong": {"x-om-admin": "not-the-admin-token"},
    "foreign": FOREIGN,
    "own": OWN,
    "admin": {"x-om-admin": ADMIN_TOKEN},
}
# of each route: a body that changes something, or may be refused for what is stored
BODIES: dict[tuple[str, str], Any] = {
    ("PATCH", "/threads/{thread}"): {"title": "Crates"},
    ("PATCH", "/threads/{thread}/settings"): {"observation": {"message_tokens": 9000}},
    ("POST", "/threads/{thread}/undo"): {},
    ("POST", "/threads/{thread}/observe"): {"wait": 5},
    ("POST", "/threads/{thread}/reflect"): {"wait": 5},
    ("POST", "/threads/{thread}/activate"): {},
    ("POST", "/threads/{thread}/park"): {},
    ("POST", "/threads/{thread}/revive"): {},
    ("POST", "/resources/{resource}/pins"): {"text": "Crate 7 is fragile"},
    ("PATCH", "/resources/{resource}/pins/{id}"): {"text": "Crate 7 is fragile"},
    ("POST", "/threads/{thread}/pins"): {"text": "Crate 7 is fragile"},
    ("PATCH", "/threads/{thread}/pins/{id}"): {"text": "Crate 7 is fragile"},
    ("PATCH", "/threads/{thread}/observations/{id}"): {"text": "* Crate 7 is at dock 9"},
    ("PATCH", "/threads/{thread}/chunks/{id}"): {"text": "* Crate 7 is at dock 9"},
    ("POST", "/threads/{thread}/context"): {
        "model": "scripted-actor",
        "messages": [{"role": "user", "content": "Where is crate 8?"}],
    },
    # a retry of the thread's first message
    ("POST", "/threads/{thread}/messages"): {
        "model": "scripted-actor",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where is crate 7?"},
        ],
    },
    ("POST", "/threads/{thread}/recall"): {"mode": "search", "query": "crate"},
    ("POST", "/import"): b'{"om":"export","format":1,"secret":null}\n{"om":"end","threads":0}\n',
}
QUERIES = {
    ("GET", "/threads/{thread}/context"): "text=Where?",
    ("GET", "/search"): "q=crate&resource=crates",
}
# settings and the like are every tenant's
ABOUT_NO_THREAD = {"/config"}
# its answer is lines, and begins with the same one for everybody
EXPORT = "/export"
# a thread that has no memory yet has a first request all the same
FOR_NEW_THREADS = {("POST", "/threads/{thread}/context")}
# a program of this machine may import, and a key that was accepted once
IMPORTS = {("POST", "/import"), ("POST", "/threads/{thread}/messages")}


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as running:
        await running.chat("crates").say("Where is crate 7?")
        yield running


async def ask(
    run: Running, method: str, path: str, headers: dict[str, str] = OWN, body: Any = None
) -> httpx.Response:
    url = f"{run.base}/om/v1{path}"
    if isinstance(body, bytes):
        headers = {**headers, "content-type": "application/x-ndjson"}
        return await run.http.request(method, url, headers=headers, content=body)
    return await run.http.request(method, url, headers=headers, json=body)


def list_allowed_statuses(route: AdminRoute) -> set[int]:
    """The thread has no notes yet. A route with codes of its own may refuse the change."""
    if "{id}" in route.path or "{receipt}" in route.path:
        return {404}
    if route.path == "/resources/{resource}/pins":
        return {404}  # its threads share no log
    if route.may_go_on:
        return {200, 400, 422}
    return {200, 400} if route.codes else {200}


def needs_tenant(route: AdminRoute) -> bool:
    """Return whether the admin token has to name a tenant."""
    return (
        route.names_thread
        or "{resource}" in route.path
        or route.path
        in (
            EXPORT,
            "/resources",
            "/search",
        )
    )


async def fill_path(run: Running, route: AdminRoute) -> str:
    """Return the path with what the thread of `run` is and has."""
    names = {
        "{thread}": "crates",
        "{resource}": "crates",
        "{id}": "1",
        "{seq}": "1",
        "{receipt}": "no-receipt",
    }
    if "{tenant}" in route.path:
        stored = await run.app.store.threads(None, limit=1)
        names["{tenant}"] = stored[0].key.tenant if stored else "forgotten"
    path = route.path
    for name, value in names.items():
        path = path.replace(name, value)
    return path


async def ask_route(
    run: Running, route: AdminRoute, headers: dict[str, str], query: str = ""
) -> httpx.Response:
    parts = [part for part in (QUERIES.get((route.method, route.path)), query) if part]
    named = await fill_path(run, route)
    path = named + (f"?{'&'.join(parts)}" if parts else "")
    body = BODIES[route.method, route.path] if route.body is not None else None
    return await ask(run, route.method, path, headers, body)


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=lambda r: f"{r.method} {r.path}")
async def test_who_may_ask(run: Running, route: AdminRoute) -> None:
    """Foreign and unknown look the same. A refused request changes nothing. On a loopback bind, a
    caller without a credential is a tenant of its own."""
    tenant = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    version = (await ask(run, "GET", "/threads/crates")).headers["etag"]
    assert (await ask_route(run, route, CREDENTIALS["wrong"])).status_code == 401
    for name in ("none", "foreign"):
        answer = await ask_route(run, route, CREDENTIALS[name])
        if (route.method, route.path) in IMPORTS:
            assert answer.status_code == (200 if name == "none" else 404)
        elif (route.method, route.path) in FOR_NEW_THREADS:
            assert answer.json()["case"] == "first"
        elif "{" in route.path:
            assert answer.status_code == 404
        elif route.path == EXPORT:
            assert [json.loads(line)["om"] for line in answer.text.splitlines()] == [
                "export",
                "end",
            ]
        elif route.path not in ABOUT_NO_THREAD:
            assert answer.json()["items"] == []
    if needs_tenant(route):
        nameless = await ask_route(run, route, CREDENTIALS["admin"])
        assert (nameless.status_code, nameless.json()["error"]["param"]) == (400, "tenant")
    assert (await ask(run, "GET", "/threads/crates")).headers["etag"] == version
    allowed = list_allowed_statuses(route)
    admin = await ask_route(run, route, CREDENTIALS["admin"], f"tenant={tenant}")
    assert admin.status_code in allowed
    if admin.status_code == 400:
        assert admin.json()["error"]["code"] in route.codes


async def test_the_own_credential_needs_no_tenant(run: Running) -> None:
    """It may name its own one."""
    own = (await ask(run, "GET", "/threads")).json()["items"][0]["tenant"]
    for query in ("", f"?tenant={own}"):
        assert (await ask(run, "GET", f"/threads/crates{query}")).status_code == 200


async def test_a_known_path_names_its_methods(run: Running) -> None:
    answer = await ask(run, "PUT", "/threads/crates")
    assert (answer.status_code, answer.json()["error"]["code"]) == (405, "om_bad_method")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "PATCH", "DELETE"}


@pytest.mark.parametrize(
    "path", ["", "/", "/thread", "/threads/", "/threads/a/b", "/threads//undo"]
)
async def test_there_is_no_other_page(run: Running, path: str) -> None:
    answer = await ask(run, "GET", path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "om_not_found")


async def test_a_name_is_decoded_once(run: Running) -> None:
    """A slash or a percent sign in a name is part of the name."""
    for name in ("a/b", "a%2Fb", "ä ö", "..", "undo"):
        encoded = "".join(f"%{byte:02X}" for byte in name.encode())
        talk = run.chat(encoded)
        await talk.say("Hello.")
        answer = await ask(run, "GET", f"/threads/{encoded}")
        assert (answer.status_code, answer.json()["thread"]) == (200, name)


async def test_an_unchanged_thread_is_not_sent_again(run: Running) -> None:
    answer = await ask(run, "GET", "/threads/crates")
    etag = answer.headers["etag"]
    assert etag.startswith(f'"{answer.json()["version"]}-')
    for sent in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await ask(run, "GET", "/threads/crates", OWN | {"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    await run.chat("crates").say("And crate 8?")
    newer = await ask(run, "GET", "/threads/crates", OWN | {"if-none-match": etag})
    assert (newer.status_code, newer.headers["etag"] != etag) == (200, True)


async def test_other_settings_are_another_answer(tmp_path: Path) -> None:
    """The thread has its version still, and another threshold in force."""
    async with run_with_scripted_models(tmp_path) as run:
        await run.chat("crates").say("Where is crate 7?")
        paths = ("/threads/crates", "/threads/crates/settings")
        before = {path: await ask(run, "GET", path) for path in paths}
        known = {path: OWN | {"if-none-match": before[path].headers["etag"]} for path in paths}
        for path in paths:
            assert (await ask(run, "GET", path, known[path])).status_code == 304
        watched = run.app._watched
        watched.current = parse(
            f'upstream: [{{base_url: "{watched.current.upstream[0].base_url}"}}]\n'
            "memory: {observation: {message_tokens: 9000}}"
        )
        for path in paths:
            after = await ask(run, "GET", path, known[path])
            assert after.status_code == 200
            assert after.json()["version"] == before[path].json()["version"]


async def test_an_answer_without_texts_is_another_one(tmp_path: Path) -> None:
    more = f"server: {{admin_token: {ADMIN_TOKEN}, admin_reads: false}}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await run.chat("crates").say("Where is crate 7?")
        await ask(run, "PATCH", "/threads/crates", OWN, {"title": "Crates"})
        own = await ask(run, "GET", "/threads/crates")
        path = f"/threads/crates?tenant={own.json()['tenant']}"
        known = CREDENTIALS["admin"] | {"if-none-match": own.headers["etag"]}
        answer = await ask(run, "GET", path, known)
        assert (answer.status_code, answer.json()["title"]) == (200, None)


CHANGES = [route for route in ADMIN_ROUTES if route.changes_memory]
CHANGES_OF_THREADS = [route for route in CHANGES if route.names_thread]
CHANGES_OF_MORE = [route for route in CHANGES if not route.names_thread]


@pytest.mark.parametrize("route", CHANGES_OF_MORE, ids=lambda r: f"{r.method} {r.path}")
async def test_what_has_no_version_is_not_compared(run: Running, route: AdminRoute) -> None:
    """A version that nothing is compared with guards nothing: it is refused."""
    refused = await ask_route(run, route, OWN | {"if-match": '"7"'})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "if-match")
    assert (await ask(run, "GET", "/threads/crates")).status_code == 200


@pytest.mark.parametrize("route", CHANGES_OF_THREADS, ids=lambda r: f"{r.method} {r.path}")
async def test_an_old_version_is_not_changed(run: Running, route: AdminRoute) -> None:
    old = (await ask(run, "GET", "/threads/crates")).headers["etag"]
    changed = await ask(run, "PATCH", "/threads/crates", OWN | {"if-match": old}, {"title": "One"})
    assert changed.status_code == 200
    refused = await ask_route(run, route, OWN | {"if-match": old})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "om_conflict")
    now = await ask(run, "GET", "/threads/crates")
    assert (now.json()["title"], now.headers["etag"]) == ("One", changed.headers["etag"])
    fitting = await ask_route(run, route, OWN | {"if-match": now.headers["etag"]})
    assert fitting.status_code in list_allowed_statuses(route)


async def test_of_two_changes_at_once_one_is_refused(run: Running) -> None:
    etag = (await ask(run, "GET", "/threads/crates")).headers["etag"]
    answers = await asyncio.gather(
        *(
            ask(run, "PATCH", "/threads/crates", OWN | {"if-match": etag}, {"title": str(number)})
            for number in range(8)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]


async def test_lists_say_more_than_they_hold(run: Running) -> None:
    for name in ("b", "c"):
        await run.chat(name).say("Hello.")
    names, cursor = [], ""
    while cursor is not None:
        query = f"?limit=1&cursor={cursor}"
        page = (await ask(run, "GET", f"/threads{query}")).json()
        assert page["items"] == page["threads"]
        names += [line["thread"] for line in page["items"]]
        cursor = page["cursor"]
    assert names == ["b", "c", "crates"]


async def test_the_document_is_served(run: Running) -> None:
    answer = await ask(run, "GET", "/openapi.json", {})
    assert (answer.status_code, answer.json()) == (200, build_openapi())


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(StorageError("gone"), 503, "om_storage"), (Conflict("busy"), 409, "om_conflict")],
)
async def test_a_store_that_fails(
    run: Running, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, code: str
) -> None:
    """The answer says that a retry may help."""

    async def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(run.app.store, "find_threads", fail)
    answer = await ask(run, "GET", "/threads")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("route", CHANGES, ids=lambda r: f"{r.method} {r.path}")
async def test_a_page_of_another_site_changes_nothing(run: Running, route: AdminRoute) -> None:
    etag = (await ask(run, "GET", "/threads/crates")).headers["etag"]
    refused = await ask_route(run, route, OWN | {"origin": "https://elsewhere.example"})
    assert refused.status_code == 401
    if route.body is not None:
        url = f"{run.base}/om/v1{await fill_path(run, route)}"
        simple = OWN | {"content-type": "text/plain"}
        plain = await run.http.request(route.method, url, headers=simple, content=b"{}")
        assert plain.status_code == 400
    assert (await ask(run, "GET", "/threads/crates")).headers["etag"] == etag


async def test_a_body_is_bounded(run: Running) -> None:
    answer = await ask(run, "PATCH", "/threads/crates", OWN, {"title": "x" * 70_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "om_too_large")
    assert "limits.body" not in answer.json()["error"]["message"]


async def test_a_slow_body_is_refused(tmp_path: Path) -> None:
    """With the status that the document names."""
    async with run_with_scripted_models(tmp_path, more="limits: {body_timeout: 1s}") as run:
        port = int(run.base.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            "PATCH /om/v1/threads/t HTTP/1.1",
            f"host: 127.0.0.1:{port}",
            "content-type: application/json",
            "content-length: 20",
        )
        writer.write("\r\n".join((*head, "", "{")).encode())
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"om_too_slow" in answer


@pytest.mark.parametrize("name", [".", "..", "-", "a/../b", "%2e"])
async def test_a_name_that_a_path_cannot_carry(run: Running, name: str) -> None:
    """The query carries it, of a thread and of a resource; the path has a hyphen in its place."""
    chat = run.chat(encode_name(name), **{"x-om-resource": encode_name(name)})
    await chat.say("Where is crate 8?")
    query = urlencode({"name": name, "resource": name})
    found = (await ask(run, "GET", f"/threads/-?{query}")).json()
    assert (found["thread"], found["resource"]) == (name, name)
    resource = (await ask(run, "GET", f"/resources/-?{urlencode({'name': name})}")).json()
    assert resource["resource"] == name
    twice = await ask(run, "GET", f"/threads/crates?{query}")
    assert (twice.status_code, twice.json()["error"]["param"]) == (400, "name")
    foreign = await ask(run, "GET", f"/threads/-?{query}", FOREIGN)
    assert foreign.status_code == 404
    forgotten = await ask(run, "DELETE", f"/threads/-?{query}")
    assert forgotten.json()["forgotten"]["threads"] == 1
    assert (await ask(run, "GET", "/threads/crates")).status_code == 200


TAG = write_entity_tag(7, b"the answer")


def test_a_tag_tells_answers_of_one_version_apart() -> None:
    assert TAG.startswith(b'"7-')
    assert write_entity_tag(7, b"the answer") == TAG
    assert len({TAG, write_entity_tag(7, b"another"), write_entity_tag(8, b"the answer")}) == 3


@pytest.mark.parametrize(
    ("values", "is_known"),
    [
        ([], False),
        ([TAG], True),
        ([b" " + TAG + b"\t"], True),
        ([b"W/" + TAG], True),
        ([b"*"], True),
        ([b'"other", ' + TAG], True),
        ([b'"a,b",W/' + TAG + b', "c"'], True),
        ([b'"other"', TAG], True),
        ([b'"7"'], False),
        ([b'"other", W/"more"'], False),
        ([b'"*"'], False),
        ([TAG.strip(b'"')], False),
        ([b""], False),
        ([b'"'], False),
    ],
)
def test_what_a_client_has_already(values: list[bytes], is_known: bool) -> None:
    """A list, a weak tag and `*` count; what is no tag matches nothing (RFC 9110, section 13.1.2)."""
    headers = [(b"if-none-match", value) for value in values]
    assert is_known_to_client(headers, TAG) == is_known


@given(st.binary(max_size=60))
def test_any_header_is_compared(value: bytes) -> None:
    if is_known_to_client([(b"if-none-match", value)], TAG):
        assert value.strip() == b"*" or TAG in value


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (b'"7"', 7),
        (b'W/"7"', 7),
        (b' "-3" ', -3),
        (TAG, 7),
        (b"W/" + TAG, 7),
        (b'"-3-0123456789abcdef"', -3),
        (b"*", None),
        (None, None),
    ],
)
def test_a_change_expects_a_version(value: bytes | None, version: int | None) -> None:
    headers = [] if value is None else [(b"if-match", value)]
    assert parse_expected_version(headers) == version


@pytest.mark.parametrize(
    "value", [b"7", b'"x"', b'"7", "8"', b'""', b'"' + b"9" * 30 + b'"', b'"7-x"', b'"7-"']
)
def test_another_tag_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_expected_version([(b"if-match", value)])
    assert caught.value.param == "if-match"
