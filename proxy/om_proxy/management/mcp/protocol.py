"""Read and write messages of the Model Context Protocol: JSON-RPC 2.0, one message in each body.

Two eras share the route. A request whose `_meta` names a version is of the revision 2026-07-28; any
other one is of an older revision, which begins with `initialize`. What a request says decides, and
nothing is kept from one request to the next.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import orjson

from om_proxy.wire.apis.json_text import replace_lone_surrogates
from om_proxy.wire.server.headers import Header

MODERN_VERSION = "2026-07-28"
# of those that begin with `initialize`; the first is offered to a client that names another one
LEGACY_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
VERSIONS = (MODERN_VERSION, *LEGACY_VERSIONS)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022

_META_PREFIX = "io.modelcontextprotocol/"
_VERSION_KEY = f"{_META_PREFIX}protocolVersion"
_CAPABILITIES_KEY = f"{_META_PREFIX}clientCapabilities"
SERVER_INFO_KEY = f"{_META_PREFIX}serverInfo"
_VERSION_HEADER = b"mcp-protocol-version"
_METHOD_HEADER = b"mcp-method"
_NAME_HEADER = b"mcp-name"
_BASE64_MARKS = (b"=?base64?", b"?=")
# of the modern era; an older client reads errors in a response of status 200 only
_STATUS_BY_ERROR = {METHOD_NOT_FOUND: 404}

RpcId = str | int
Era = Literal["modern", "legacy"]


class RpcError(Exception):
    """A message that is answered with an error. `text`: ours, without a word of the caller."""

    def __init__(
        self,
        code: int,
        text: str,
        *,
        status: int = 200,
        data: Mapping[str, object] | None = None,
        rpc_id: RpcId | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.status = status
        self.data = data
        self.rpc_id = rpc_id


class RpcRequest(NamedTuple):
    """A request. `rpc_id` None: a notification or a response, which is not answered."""

    rpc_id: RpcId | None
    method: str
    params: Mapping[str, object]
    era: Era


def read_request(body: bytes, headers: Sequence[Header]) -> RpcRequest:
    """Read the message of a body. Raise RpcError."""
    message = _read_object(body)
    rpc_id = _read_id(message)
    if message.get("jsonrpc") != "2.0":
        raise RpcError(
            INVALID_REQUEST, 'jsonrpc must be "2.0"', status=400, rpc_id=_as_answered(rpc_id)
        )
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return RpcRequest(None, "", {}, "legacy")  # an answer to what was never asked
    if not isinstance(method, str):
        raise RpcError(
            INVALID_REQUEST, "method must be a text", status=400, rpc_id=_as_answered(rpc_id)
        )
    if rpc_id is _ABSENT:
        return RpcRequest(None, method, {}, "legacy")
    answered = _as_answered(rpc_id)
    if answered is None:
        raise RpcError(INVALID_REQUEST, "id must be a text or a whole number", status=400)
    params = message.get("params")
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be an object", status=400, rpc_id=answered)
    try:
        era = _find_era(method, params or {}, headers)
    except RpcError as error:
        error.rpc_id = answered
        raise
    return RpcRequest(answered, method, params or {}, era)


def write_result(request: RpcRequest, result: Mapping[str, object]) -> bytes:
    """Write the answer to a request."""
    whole = {**result, "resultType": "complete"} if request.era == "modern" else result
    return orjson.dumps({"jsonrpc": "2.0", "id": request.rpc_id, "result": whole})


def write_error(error: RpcError) -> bytes:
    fields = {"code": error.code, "message": error.text}
    whole = fields if error.data is None else {**fields, "data": error.data}
    return orjson.dumps({"jsonrpc": "2.0", "id": error.rpc_id, "error": whole})


def fail_request(request: RpcRequest, code: int, text: str) -> RpcError:
    """Return the error of a request that was read."""
    status = _STATUS_BY_ERROR.get(code, 400) if request.era == "modern" else 200
    return RpcError(code, text, status=status, rpc_id=request.rpc_id)


def choose_legacy_version(params: Mapping[str, object]) -> str:
    """Return the revision that `initialize` agrees on."""
    asked = params.get("protocolVersion")
    return next((version for version in LEGACY_VERSIONS if version == asked), LEGACY_VERSIONS[0])


_ABSENT = object()


def _read_object(body: bytes) -> Mapping[str, object]:
    try:
        message = orjson.loads(replace_lone_surrogates(body) or body)
    except orjson.JSONDecodeError as exc:
        raise RpcError(PARSE_ERROR, "the body is not JSON", status=400) from exc
    if isinstance(message, list):
        raise RpcError(INVALID_REQUEST, "send one message in each request, no batch", status=400)
    if not isinstance(message, dict):
        raise RpcError(INVALID_REQUEST, "the body is not a JSON object", status=400)
    return message


def _read_id(message: Mapping[str, object]) -> object:
    return message.get("id", _ABSENT)


def _as_answered(rpc_id: object) -> RpcId | None:
    """Return the id, if an answer can name it."""
    return rpc_id if isinstance(rpc_id, str) or type(rpc_id) is int else None


def _find_era(method: str, params: Mapping[str, object], headers: Sequence[Header]) -> Era:
    """Return the era. Raise RpcError where header and body do not agree, or for an unknown
    version."""
    meta = params.get("_meta")
    named = [value.decode("latin-1") for name, value in headers if name == _VERSION_HEADER]
    if not isinstance(meta, dict) or _VERSION_KEY not in meta:
        if MODERN_VERSION in named:
            raise _mismatch(f"{MODERN_VERSION} needs {_VERSION_KEY} in params._meta")
        if method != "initialize" and not set(named).issubset(LEGACY_VERSIONS):
            raise RpcError(
                INVALID_REQUEST,
                f"MCP-Protocol-Version must be one of {', '.join(VERSIONS)}",
                status=400,
            )
        return "legacy"
    version = meta[_VERSION_KEY]
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, f"{_VERSION_KEY} must be a text", status=400)
    if _CAPABILITIES_KEY not in meta:
        raise RpcError(INVALID_PARAMS, f"params._meta must have {_CAPABILITIES_KEY}", status=400)
    if named != [version]:
        raise _mismatch("MCP-Protocol-Version is not the version in params._meta")
    if _read_headers(headers, _METHOD_HEADER) != [method]:
        raise _mismatch("Mcp-Method is not the method of the body")
    if method == "tools/call" and _read_headers(headers, _NAME_HEADER) != [params.get("name")]:
        raise _mismatch("Mcp-Name is not the tool that the body names")
    if version != MODERN_VERSION:
        data = {"supported": list(VERSIONS), "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "this version is not supported", status=400, data=data)
    return "modern"


def _mismatch(text: str) -> RpcError:
    return RpcError(HEADER_MISMATCH, text, status=400)


def _read_headers(headers: Sequence[Header], wanted: bytes) -> list[str | None]:
    """Return each value of a header; None for one that cannot be decoded."""
    return [_decode(value) for name, value in headers if name == wanted]


def _decode(value: bytes) -> str | None:
    first, last = _BASE64_MARKS
    if not (value.startswith(first) and value.endswith(last)):
        return value.decode("latin-1")
    try:
        return b64decode(value[len(first) : -len(last)], validate=True).decode()
    except ValueError:
        return None
