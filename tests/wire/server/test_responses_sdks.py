"""The official SDKs before our errors: each raises its own exception, and tries again where it is
told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import anyio
import openai
import pytest
from starlette.types import Receive, Scope, Send

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import (
    BadRequest,
    Forbidden,
    HeadTooLarge,
    MemoryAway,
    OmError,
    Overloaded,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unsupported,
    UpstreamError,
    UpstreamTimeout,
)
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.wire.server import responses

TEXT = "what to do next"

ERRORS: list[tuple[OmError, type[Exception], type[Exception], str]] = [
    # the error, the exceptions of anthropic and of openai, and the type in the shape of `messages`
    (BadRequest(TEXT), anthropic.BadRequestError, openai.BadRequestError, "invalid_request_error"),
    (
        Unauthorized(TEXT),
        anthropic.AuthenticationError,
        openai.AuthenticationError,
        "authentication_error",
    ),
    (
        Forbidden(TEXT),
        anthropic.PermissionDeniedError,
        openai.PermissionDeniedError,
        "permission_error",
    ),
    (TooSlow(TEXT), anthropic.APIStatusError, openai.APIStatusError, "timeout_error"),
    (TooLarge(TEXT), anthropic.APIStatusError, openai.APIStatusError, "request_too_large"),
    (HeadTooLarge(TEXT), anthropic.APIStatusError, openai.APIStatusError, "invalid_request_error"),
    (
        Unsupported(TEXT),
        anthropic.InternalServerError,
        openai.InternalServerError,
        "invalid_request_error",
    ),
    (UpstreamError(TEXT), anthropic.InternalServerError, openai.InternalServerError, "api_error"),
    (Overloaded(TEXT), anthropic.APIStatusError, openai.InternalServerError, "overloaded_error"),
    (MemoryAway(TEXT), anthropic.APIStatusError, openai.InternalServerError, "overloaded_error"),
    (UpstreamTimeout(TEXT), anthropic.APIStatusError, openai.InternalServerError, "timeout_error"),
]


async def ask_anthropic(base: str) -> object:
    client = anthropic.AsyncAnthropic(base_url=base, api_key="sk-own", max_retries=1)
    async with client:
        return await client.messages.create(
            model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]
        )


async def ask_openai(base: str) -> object:
    client = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="sk-own", max_retries=1)
    async with client:
        return await client.responses.create(model="m", input="hi")


async def fail_with(
    exc: OmError, api: ApiName, ask: Callable[[str], Awaitable[object]]
) -> tuple[Any, int]:
    """Return the exception that the SDK raises for this error, and the number of its tries."""
    tries = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal tries
        tries += 1
        await responses.send_error(send, exc, api=api)

    async with serve_on_loopback(app, lifespan="off") as base:
        with pytest.raises(Exception, match=TEXT) as caught:
            await ask(base)
    return caught.value, tries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of an SDK before it tries again. They take no time here."""
    taken: list[float] = []

    async def skip(delay: float) -> None:
        taken.append(delay)

    monkeypatch.setattr(anyio, "sleep", skip)
    return taken


@pytest.mark.parametrize(
    ("exc", "its_own", "kind"), [(row[0], row[1], row[3]) for row in ERRORS], ids=lambda value: ""
)
async def test_anthropic(
    pauses: list[float], exc: OmError, its_own: type[Exception], kind: str
) -> None:
    """It reads the type and our code in the shape of `messages`."""
    raised, tries = await fail_with(exc, "messages", ask_anthropic)
    assert isinstance(raised, its_own)
    assert raised.status_code == exc.status
    assert raised.body == {
        "type": "error",
        "error": {"type": kind, "message": f"{TEXT} [{exc.code}]"},
    }
    assert raised.type == kind
    assert tries == (2 if exc.retryable else 1)
    if isinstance(exc, Overloaded | MemoryAway):
        assert pauses == [1.0]  # as `Retry-After` says


@pytest.mark.parametrize(
    ("exc", "its_own"), [(row[0], row[2]) for row in ERRORS], ids=lambda value: ""
)
async def test_openai(pauses: list[float], exc: OmError, its_own: type[Exception]) -> None:
    """It reads our code in OpenAI's shape, on the Responses API too."""
    raised, tries = await fail_with(exc, "responses", ask_openai)
    assert isinstance(raised, its_own)
    assert (raised.status_code, raised.code, raised.type) == (exc.status, exc.code, "om_error")
    assert tries == (2 if exc.retryable else 1)
    if isinstance(exc, Overloaded | MemoryAway):
        assert pauses == [1.0]
