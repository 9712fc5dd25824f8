"""The error for a model server's failure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.agents.model_access.completion import build_model_error, read_retry_after
from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


def failed(
    status: int, code: object = None, message: str = "", headers: Mapping[str, str] | None = None
) -> ModelError:
    return build_model_error(status, code=code, message=message, headers=headers or {}, now=NOW)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_worth_another_try(status: int) -> None:
    """Time-outs, conflicts, rate limits and the server's own faults may be retried."""
    assert type(failed(status)) is ModelBusy


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 422, 451])
def test_not_worth_another_try(status: int) -> None:
    """A faulty request is not retried."""
    assert type(failed(status)) is ModelError


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_an_unpaid_bill(code: str) -> None:
    """An exhausted quota is no rate limit, although it has the same status."""
    assert type(failed(429, code)) is ModelError


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (413, None, ""),
        (400, "context_length_exceeded", ""),
        (400, None, "This model's maximum context length is 8192 tokens."),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
        (
            400,
            400,
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        ),
        (400, None, "the request exceeds the available context size, try increasing it"),
        (400, None, "Please reduce the length of the messages or completion."),
        (422, None, "Input is too long for requested model."),
        (400, "string_above_max_length", "Invalid 'messages[1].content': string too long."),
        (400, None, "Too many input tokens"),
    ],
)
def test_too_long(status: int, code: object, message: str) -> None:
    """A too long prompt is recognised in every server's words."""
    assert type(failed(status, code, message)) is PromptTooLong


def test_only_the_beginning_is_read() -> None:
    """Only the beginning of an error is read: a server may repeat megabytes of prompt, and
    searching them would block other requests."""
    said = "this model's maximum context length is 8192 tokens"
    assert type(failed(400, None, said + " x" * 10_000)) is PromptTooLong
    assert type(failed(400, None, "x " * 1_000 + said)) is ModelError


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Request too large for gpt-4o: tokens per min (TPM) limit 30000; too many tokens"),
        (500, "context window"),
        (400, "image exceeds 5 MB maximum"),
        (400, "max_tokens is too large"),
    ],
)
def test_not_too_long(status: int, message: str) -> None:
    """A rate limit, a fault and a large image are no too long prompt: a shorter transcript would
    not help."""
    assert type(failed(status, None, message)) is not PromptTooLong


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:13:50 -0000"}, 30.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    """A wait comes as seconds, milliseconds or a date; an invalid value gives none."""
    assert read_retry_after(headers, NOW) == seconds
    busy = failed(503, headers=headers)
    assert isinstance(busy, ModelBusy)
    assert busy.retry_after_s == seconds


@given(st.text())
def test_odd_dates(value: str) -> None:
    """No header raises an exception, and none gives a negative wait."""
    seconds = read_retry_after({"retry-after": value}, NOW)
    assert seconds is None or seconds >= 0


def test_the_server_s_words_are_not_passed_on() -> None:
    """The error holds only status and code: the server's message may quote the prompt."""
    for status in (400, 401, 404, 413, 429, 500):
        text = str(failed(status, "some_code", "the user's secret"))
        assert str(status) in text
        assert "some_code" in text
        assert "secret" not in text
    assert "secret" not in str(failed(400, "a secret of many words"))
