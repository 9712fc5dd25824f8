"""Messages are read as the revisions of MCP say: 2024-11-05 to 2025-11-25 and 2026-07-28."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.management.mcp.protocol import (
    LEGACY_VERSIONS,
    RpcError,
    choose_legacy_version,
    read_request,
    write_error,
    write_result,
)

VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
MODERN = {VERSION: "2026-07-28", CAPABILITIES: {}}
NEWER = {**MODERN, VERSION: "2027-01-01"}
PLAIN = {"jsonrpc": "2.0", "id": 1}


def call(method: str, meta: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    return {**PLAIN, "method": method, "params": {**params, **({"_meta": meta} if meta else {})}}


def name_headers(method: str, version: str = "2026-07-28", *names: str) -> dict[str, str]:
    headers = {"mcp-protocol-version": version, "mcp-method": method}
    return {**headers, **({"mcp-name": names[0]} if names else {})}


def read(message: Any, headers: dict[str, str] | None = None) -> Any:
    """Return what was read, or the code, the status and the id of the error."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    try:
        request = read_request(body, pairs)
    except RpcError as error:
        return error.code, error.status, json.loads(write_error(error))["id"]
    return request.era if request.rpc_id is not None else "not answered"


@pytest.mark.parametrize(
    ("message", "headers", "expected"),
    [
        (b"", {}, (-32700, 400, None)),
        (b"{", {}, (-32700, 400, None)),
        (b"\xff", {}, (-32700, 400, None)),
        (b"[" * 100_000, {}, (-32700, 400, None)),
        ([call("ping")], {}, (-32600, 400, None)),
        ([], {}, (-32600, 400, None)),
        ("ping", {}, (-32600, 400, None)),
        (None, {}, (-32600, 400, None)),
        ({"id": 1, "method": "ping"}, {}, (-32600, 400, 1)),
        ({**PLAIN, "jsonrpc": 2.0, "method": "ping"}, {}, (-32600, 400, 1)),
        (PLAIN, {}, (-32600, 400, 1)),
        ({**PLAIN, "method": 7}, {}, (-32600, 400, 1)),
        ({**PLAIN, "method": "ping", "id": None}, {}, (-32600, 400, None)),
        ({**PLAIN, "method": "ping", "id": True}, {}, (-32600, 400, None)),
        ({**PLAIN, "method": "ping", "id": 1.5}, {}, (-32600, 400, None)),
        ({**PLAIN, "method": "ping", "params": []}, {}, (-32602, 400, 1)),
        ({**PLAIN, "method": "ping", "params": None}, {}, "legacy"),
        ({**PLAIN, "method": "ping", "id": "\ud83d"}, {}, "legacy"),
        ({"jsonrpc": "2.0", "method": "notifications/initialized"}, {}, "not answered"),
        ({"jsonrpc": "2.0", "id": 7, "result": {}}, {}, "not answered"),
        ({"jsonrpc": "2.0", "id": 7, "error": {}}, {}, "not answered"),
        (call("tools/list"), {}, "legacy"),
        (call("tools/list"), {"mcp-protocol-version": "2025-03-26"}, "legacy"),
        (call("tools/list"), {"mcp-protocol-version": "1999-01-01"}, (-32600, 400, 1)),
        # a client that has not agreed on a version yet
        (call("initialize"), {"mcp-protocol-version": "1999-01-01"}, "legacy"),
        (call("tools/list", {"progressToken": 1}), {}, "legacy"),
        # the newest revision: header and body must agree
        (call("tools/list", MODERN), name_headers("tools/list"), "modern"),
        (call("tools/list", MODERN), {}, (-32020, 400, 1)),
        (call("tools/list"), name_headers("tools/list"), (-32020, 400, 1)),
        (call("tools/list", MODERN), name_headers("tools/list", "2025-11-25"), (-32020, 400, 1)),
        (call("tools/list", MODERN), name_headers("tools/call"), (-32020, 400, 1)),
        (call("tools/list", {VERSION: "2026-07-28"}), name_headers("tools/list"), (-32602, 400, 1)),
        (call("tools/list", {**MODERN, VERSION: 7}), name_headers("tools/list"), (-32602, 400, 1)),
        (call("tools/list", NEWER), name_headers("tools/list", "2027-01-01"), (-32022, 400, 1)),
        (
            call("tools/call", MODERN, name="a"),
            name_headers("tools/call", "2026-07-28", "a"),
            "modern",
        ),
        (
            call("tools/call", MODERN, name="é"),
            name_headers("tools/call", "2026-07-28", "=?base64?w6k=?="),
            "modern",
        ),
        (
            call("tools/call", MODERN, name="a"),
            name_headers("tools/call", "2026-07-28", "=?base64?*?="),
            (-32020, 400, 1),
        ),
        (call("tools/call", MODERN, name="a"), name_headers("tools/call"), (-32020, 400, 1)),
    ],
)
def test_messages(message: Any, headers: dict[str, str], expected: Any) -> None:
    assert read(message, headers) == expected


def test_an_unknown_version_is_told_the_known_ones() -> None:
    body = json.dumps(call("tools/list", NEWER)).encode()
    headers = [
        (n.encode(), v.encode()) for n, v in name_headers("tools/list", "2027-01-01").items()
    ]
    with pytest.raises(RpcError) as caught:
        read_request(body, headers)
    assert json.loads(write_error(caught.value))["error"]["data"] == {
        "supported": ["2026-07-28", *LEGACY_VERSIONS],
        "requested": "2027-01-01",
    }


def test_initialize_agrees_on_a_version() -> None:
    assert choose_legacy_version({"protocolVersion": "2024-11-05"}) == "2024-11-05"
    for unknown in ("2026-07-28", "1999-01-01", 7, None):
        assert choose_legacy_version({"protocolVersion": unknown}) == "2025-11-25"


def test_only_a_modern_result_has_a_type() -> None:
    modern = read_request(
        json.dumps(call("tools/list", MODERN)).encode(),
        [(n.encode(), v.encode()) for n, v in name_headers("tools/list").items()],
    )
    legacy = read_request(json.dumps(call("tools/list")).encode(), [])
    assert json.loads(write_result(modern, {}))["result"] == {"resultType": "complete"}
    assert json.loads(write_result(legacy, {}))["result"] == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("jsonrpc", "id", "method", "params", "_meta", "name", VERSION)), inner
        )
    ),
    max_leaves=12,
)
MESSAGES = JSON | st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": JSON},
    optional={"method": st.sampled_from(("ping", "tools/call")) | JSON, "params": JSON},
)


@given(MESSAGES, st.sampled_from(({}, name_headers("ping"), {"mcp-protocol-version": "\xff"})))
def test_any_json_is_read_or_refused(message: Any, headers: dict[str, str]) -> None:
    assert read(message, headers) in ("legacy", "modern", "not answered") or isinstance(
        read(message, headers), tuple
    )
