"""Taking `created_at` out of the messages of a request."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from om_proxy.common.apis import ApiName
from om_proxy.common.errors import BadRequest
from om_proxy.wire.apis.message_times import list_unit_times, read_instant, take_times
from om_proxy.wire.apis.registry import get_api

NEW_YEAR = 1767225600.0  # 2026-01-01T00:00:00Z


def test_all_but_the_times_keeps_its_bytes() -> None:
    body = rb'{"model": "m", "messages": [{"role":"user","content":"\u00e9", "created_at": 1.5, "n": 1.50}], "t": 1e0}'
    taken, times = take_times(body, "chat")
    assert taken == (
        rb'{"model":"m","messages":[{"role":"user","content":"\u00e9","n":1.50}],"t":1e0}'
    )
    assert times == (1.5,)


def test_half_characters_are_replaced() -> None:
    """No UTF-8 text can hold them; a fingerprint is of what stands in their place anyway."""
    body = rb'{"messages": [{"role":"user","content":"\ud800!", "created_at": 1.5}]}'
    taken, times = take_times(body, "chat")
    assert (orjson.loads(taken)["messages"], times) == (
        [{"role": "user", "content": "\ufffd!"}],
        (1.5,),
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": "user", "content": "created_at"}]}',
        b'{"created_at": 5, "messages": [ {"role": "user"} ]}',
        b'{"messages": [{"role": "user", "content": "Hi", "created_at": null}]}',
        b'{"messages": "created_at"}',
        b'{"created_at": 5}',
        b"created_at",
    ],
)
def test_a_body_without_times_is_left_alone(body: bytes) -> None:
    assert take_times(body, "chat") == (body, ())


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (1767225600, NEW_YEAR),
        (1767225600.25, NEW_YEAR + 0.25),
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("2026-01-01T00:00:00.250000Z", NEW_YEAR + 0.25),
        (0, 0.0),
        ("2026-01-01T00:00:00", None),
        ("2026-01-01", None),
        ("yesterday", None),
        ("1767225600", None),
        (True, None),
        (-1, None),
        (1e300, None),
        ([], None),
    ],
)
def test_an_instant(value: Any, at: float | None) -> None:
    assert read_instant(value) == at


@pytest.mark.parametrize("written", [b"1e999", b"-1e999", rb'"\ud800"', b"{}"])
def test_no_number_is_beyond_reading(written: bytes) -> None:
    body = b'{"messages": [{"role": "user", "created_at": ' + written + b"}]}"
    with pytest.raises(BadRequest, match="created_at is no time"):
        take_times(body, "chat")


def test_a_time_that_cannot_be_read() -> None:
    body = orjson.dumps({"messages": [{"role": "user"}, {"role": "user", "created_at": "noon"}]})
    with pytest.raises(BadRequest, match=r"messages\[1\]: created_at is no time") as raised:
        take_times(body, "chat")
    assert raised.value.param == "created_at"


RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
BODIES: dict[ApiName, tuple[dict[str, Any], tuple[float | None, ...]]] = {
    "chat": (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi", "created_at": 1},
                {"role": "assistant", "content": "Hello", "created_at": 2},
            ]
        },
        (1.0, 2.0),
    ),
    "responses": (
        {
            "input": [
                {"role": "developer", "content": "Be brief.", "created_at": 0},
                {"role": "user", "content": "Hi", "created_at": 1},
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}", "created_at": 2},
                {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}", "created_at": 2},
                {"type": "function_call_output", "call_id": "a", "output": "x", "created_at": 3},
            ]
        },
        (1.0, 2.0, 3.0),
    ),
    "messages": (
        {
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "Hi", "created_at": 1},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}], "created_at": 2},
                {"role": "user", "content": [RESULT, {"type": "text", "text": "?"}], "created_at": 3},
            ],
        },
        (1.0, 2.0, 3.0, 3.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", BODIES)
def test_each_unit_has_the_time_of_its_message(api: ApiName) -> None:
    body, expected = BODIES[api]
    taken, times = take_times(orjson.dumps({"model": "m", **body}), api)
    assert b"created_at" not in taken
    request = get_api(api).parse_request(taken)
    assert list_unit_times(request, times) == expected
    assert list_unit_times(request, ()) == ()
