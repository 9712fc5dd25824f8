"""Who may read the numbers, and what the page says where there are none."""

from __future__ import annotations

import pytest
from starlette.types import Message

from om_proxy.app.own_pages import MetricsPage, require_metrics_access
from om_proxy.common.errors import BadRequest, OmError, Unauthorized
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.settings.config import parse

LOOPBACK = EdgeConfig.from_settings(parse(""))
LOOPBACK_WITH_TOKENS = EdgeConfig.from_settings(
    parse(
        "server: {admin_token: admin-secret-of-all}\ntelemetry: {metrics_token: metrics-secret-of-all}"
    )
)
PUBLIC = EdgeConfig.from_settings(
    parse(
        "server: {host: 0.0.0.0, admin_token: admin-secret-of-all}\n"
        "telemetry: {metrics_token: metrics-secret-of-all}"
    )
)
PUBLIC_WITHOUT_METRICS_TOKEN = EdgeConfig.from_settings(
    parse("server: {host: 0.0.0.0, admin_token: admin-secret-of-all}")
)
LOCAL_HOST = {"host": "127.0.0.1:8400"}
PUBLIC_HOST = {"host": "om.example.com"}


def build_scope(*headers: dict[str, str] | tuple[str, str]) -> dict[str, object]:
    pairs = [
        pair for part in headers for pair in (part.items() if isinstance(part, dict) else [part])
    ]
    return {"headers": [(name.encode(), value.encode()) for name, value in pairs]}


def ask(config: EdgeConfig, *headers: dict[str, str] | tuple[str, str]) -> str:
    try:
        require_metrics_access(build_scope(*headers), config)
    except (Unauthorized, BadRequest) as exc:
        return type(exc).__name__
    return "open"


@pytest.mark.parametrize(
    ("headers", "loopback", "loopback_with_tokens", "public"),
    [
        ({}, "open", "open", "Unauthorized"),
        ({"authorization": "Bearer metrics-secret-of-all"}, "Unauthorized", "open", "open"),
        ({"authorization": "bearer  metrics-secret-of-all "}, "Unauthorized", "open", "open"),
        ({"authorization": "Bearer admin-secret-of-all"}, "Unauthorized", "open", "open"),
        ({"x-om-admin": "admin-secret-of-all"}, "Unauthorized", "open", "open"),
        ({"x-om-admin": "metrics-secret-of-all"}, *["Unauthorized"] * 3),
        ({"authorization": "Bearer wrong"}, *["Unauthorized"] * 3),
        ({"authorization": "Bearer "}, *["Unauthorized"] * 3),
        ({"authorization": "metrics-secret-of-all"}, *["Unauthorized"] * 3),
        ({"authorization": "Basic bWV0cmljcy1zZWNyZXQ="}, *["Unauthorized"] * 3),
        ({"x-om-admin": "admin-secret-of-all", "authorization": "Bearer x"}, *["BadRequest"] * 3),
        # another machine's request, by way of a server on this one
        ({"x-forwarded-for": "203.0.113.7"}, *["Unauthorized"] * 3),
        (
            {"x-forwarded-for": "203.0.113.7", "authorization": "Bearer metrics-secret-of-all"},
            *("Unauthorized", "open", "open"),
        ),
        # a page of another site, in a browser of this machine
        ({"origin": "https://evil.example"}, *["Unauthorized"] * 3),
        ({"origin": "null"}, *["Unauthorized"] * 3),
        ({"sec-fetch-site": "cross-site"}, *["Unauthorized"] * 3),
        (
            {"origin": "https://evil.example", "authorization": "Bearer metrics-secret-of-all"},
            *["Unauthorized"] * 3,
        ),
    ],
)
def test_access(
    headers: dict[str, str], loopback: str, loopback_with_tokens: str, public: str
) -> None:
    assert ask(LOOPBACK, LOCAL_HOST, headers) == loopback
    assert ask(LOOPBACK_WITH_TOKENS, LOCAL_HOST, headers) == loopback_with_tokens
    assert ask(PUBLIC, PUBLIC_HOST, headers) == public


@pytest.mark.parametrize("token", [{}, {"authorization": "Bearer metrics-secret-of-all"}])
def test_a_host_that_only_resolves_to_loopback(token: dict[str, str]) -> None:
    """DNS rebinding: the browser believes it asks its page's own server."""
    assert ask(LOOPBACK_WITH_TOKENS, {"host": "evil.example:8400"}, token) == "Unauthorized"


def test_two_tokens_are_refused() -> None:
    """A server in front may have checked the other one."""
    token = ("authorization", "Bearer metrics-secret-of-all")
    assert ask(PUBLIC, PUBLIC_HOST, token, token) == "BadRequest"


def test_an_empty_token_opens_nothing() -> None:
    """Where no metrics token is set, none is accepted."""
    assert ask(PUBLIC_WITHOUT_METRICS_TOKEN, PUBLIC_HOST, {"authorization": "Bearer"}) == (
        "Unauthorized"
    )
    assert ask(PUBLIC_WITHOUT_METRICS_TOKEN, PUBLIC_HOST, {"authorization": "Bearer None"}) == (
        "Unauthorized"
    )


async def read_page(page: MetricsPage, config: EdgeConfig) -> tuple[int, bytes, dict[str, str]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await page(build_scope(LOCAL_HOST, {"accept": "text/plain"}), send, config)
    start, body = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], body["body"], headers


async def test_metrics_that_are_off() -> None:
    """The page says how to switch them on. A stranger does not learn even that."""
    status, body, _ = await read_page(MetricsPage(None), LOOPBACK)
    assert status == 404
    assert b"telemetry.metrics" in body
    status, body, _ = await read_page(MetricsPage(None), PUBLIC)
    assert status == 401


async def test_the_page_has_the_type_that_was_asked_for() -> None:
    async def render(accept: str) -> tuple[bytes, str]:
        return accept.encode(), "text/plain; version=0.0.4"

    assert await read_page(MetricsPage(render), LOOPBACK) == (
        200,
        b"text/plain",
        {"content-type": "text/plain; version=0.0.4", "content-length": "10"},
    )


@pytest.mark.parametrize("failure", [OSError("gone"), ValueError("cut")])
async def test_numbers_that_cannot_be_read(failure: Exception) -> None:
    """The client is told, without what the failure says."""

    async def render(_: str) -> tuple[bytes, str]:
        raise failure

    status, body, _ = await read_page(MetricsPage(render), LOOPBACK)
    assert status == 503
    assert str(failure).encode() not in body
    assert issubclass(Unauthorized, OmError)
