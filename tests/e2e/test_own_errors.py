"""What the program refuses or cannot do, in OpenAI's error shape, over raw sockets."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from om_proxy.memory.model import Key
from om_proxy.settings.identity.tenants import LOCAL_TENANT
from tests.e2e.raw_upstream import ProxyUnderTest, chat_body, read_reason, run_with_raw_upstream
from tests.support.raw_client import RawResponse
from tests.support.upstream_server import Call

T = b"X-OM-Thread: t"


async def live(site: ProxyUnderTest) -> int:
    return (await site.app.store.load(Key(LOCAL_TENANT, "t", "t"))).count


KEYS = "auth: {keys: [{tenant: acme, key: sk-acme}]}"
BEARER = b"Authorization: Bearer sk-a"

ERRORS = [
    # configuration, headers, body, status, code, param
    ("two credentials", "", (BEARER, b"x-api-key: sk-b"), b"{}", 400, "om_two_credentials", None),
    ("two credentials, in api-key", "", (b"x-api-key: sk-a", b"Api-Key: sk-b"), b"{}", 400, "om_two_credentials", None),
    ("a thread that is none", "", (b"X-OM-Thread: a b",), b"{}", 400, "om_bad_header", "x-om-thread"),
    ("a thread that is too long", "", (b"X-OM-Thread: " + b"x" * 257,), b"{}", 400, "om_bad_header", "x-om-thread"),
    ("a thread twice", "", (T, T), b"{}", 400, "om_bad_header", "x-om-thread"),
    ("an alias that is none", "", (T, b"x-thread-id: \xff"), b"{}", 400, "om_bad_header", "x-thread-id"),
    ("a resource that is none", "", (T, b"X-OM-Resource: a,b"), b"{}", 400, "om_bad_header", "x-om-resource"),
    ("a mode that is none", "", (T, b"X-OM-Mode: fast"), b"{}", 400, "om_bad_header", "x-om-mode"),
    ("a time zone that is none", "", (T, b"X-OM-Timezone: Mars/Olympus"), b"{}", 400, "om_bad_header", "x-om-timezone"),
    ("a history that is none", "", (T, b"X-OM-History: all"), b"{}", 400, "om_bad_header", "x-om-history"),
    ("no key", KEYS, (T,), b"{}", 401, "om_unauthorized", None),
    ("an unknown key", KEYS, (T, BEARER), b"{}", 401, "om_unauthorized", None),
    ("no key, no thread", KEYS, (), b"{}", 401, "om_unauthorized", None),
    ("a body above limits.body", "limits: {body: 1KiB}", (T,), b"x" * 1025, 413, "om_too_large", None),
    ("a body above limits.body, no thread", "limits: {body: 1KiB}", (), b"x" * 1025, 413, "om_too_large", None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "headers", "body", "status", "code", "param"),
    [pytest.param(*row[1:], id=row[0]) for row in ERRORS],
)
async def test_refused(
    tmp_path: Path,
    more: str,
    headers: tuple[bytes, ...],
    body: bytes,
    status: int,
    code: str,
    param: str | None,
) -> None:
    """What cannot be meant is refused in OpenAI's shape, with what to do, and nothing goes
    upstream."""
    async with run_with_raw_upstream(tmp_path, more) as site:
        got = await site.ask(body, *headers)
        check_error(got, status, code, param, retry=b"false")
        assert site.server.seen == []
        assert await site.threads() == 0


@pytest.mark.parametrize("headers", [(), (T,)], ids=["without a thread", "with a thread"])
async def test_unreachable(tmp_path: Path, headers: tuple[bytes, ...]) -> None:
    """An upstream that is not there is a 502 that may be tried again; what the client said is
    kept."""
    async with run_with_raw_upstream(tmp_path, base_url="http://127.0.0.1:9/v1") as site:
        got = await site.ask(chat_body("hi"), *headers)
        check_error(got, 502, "om_upstream_unreachable", None, retry=b"true")
        assert read_reason(got) == ("raw" if headers else "off/no-thread")
        assert await live(site) == len(headers)


@pytest.mark.parametrize("headers", [(), (T,)], ids=["without a thread", "with a thread"])
async def test_unreadable_answer(tmp_path: Path, headers: tuple[bytes, ...]) -> None:
    """So is one that does not speak HTTP; its words are not passed on."""

    async def script(call: Call) -> None:
        call.send(b"secret nonsense\r\n\r\n")
        call.close()

    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("hi"), *headers, script=script)
        check_error(got, 502, "om_upstream_unreachable", None, retry=b"true")
        assert b"secret" not in got.raw


@pytest.mark.parametrize("headers", [(), (T,)], ids=["without a thread", "with a thread"])
async def test_timeout(tmp_path: Path, headers: tuple[bytes, ...]) -> None:
    """One that does not answer in time is a 504."""

    async def script(call: Call) -> None:
        await call.closed.wait()

    async with run_with_raw_upstream(tmp_path, upstream=", read_timeout: 100ms") as site:
        got = await site.ask(chat_body("hi"), *headers, script=script)
        check_error(got, 504, "om_upstream_timeout", None, retry=b"true")
        assert await live(site) == len(headers)


def check_error(
    got: RawResponse, status: int, code: str, param: str | None, *, retry: bytes
) -> None:
    assert (got.status, got.header(b"content-type"), got.whole) == (
        status,
        [b"application/json"],
        True,
    )
    body = orjson.loads(got.body)
    assert list(body) == ["error"]
    message = body["error"].pop("message")
    assert body["error"] == {"type": "om_error", "param": param, "code": code}
    assert isinstance(message, str)
    assert len(message) > 20
    assert "sk-" not in message
    assert got.header(b"x-should-retry") == [retry]


async def test_a_split_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only saves time costs no turn when it fails."""

    def broken(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("om_proxy.wire.apis.chat.chat_api.ChatApi.build_split", broken)
    async with run_with_raw_upstream(tmp_path) as site:
        got = await site.ask(chat_body("hello"), T)
        assert (got.header(b"x-om-status"), got.header(b"x-om-reason")) == ([b"raw"], [])
        assert await live(site) == 2
