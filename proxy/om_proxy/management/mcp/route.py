"""Serve `POST /om/mcp` (docs/contributing/recall.md#mcp): one JSON object in, one JSON object
out."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from om_proxy import __version__
from om_proxy.common.errors import BadMethod, BadRequest, NotFound, OmError, TooLarge
from om_proxy.edge.edge_config import EdgeConfig
from om_proxy.management.api.access import (
    Reader,
    identify_reader,
    require_open_api,
    require_same_site,
)
from om_proxy.management.api.admin_call import AdminServices
from om_proxy.management.api.requests import read_tenant
from om_proxy.management.mcp.memory_tools import MemoryTools
from om_proxy.management.mcp.protocol import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SERVER_INFO_KEY,
    VERSIONS,
    RpcError,
    RpcRequest,
    choose_legacy_version,
    fail_request,
    read_request,
    write_error,
    write_result,
)
from om_proxy.management.mcp.tools import INSTRUCTIONS, TOOLS, ToolCall, find_tool, read_call
from om_proxy.memory.recall.arguments import LookUpFault
from om_proxy.wire.server import responses
from om_proxy.wire.server.capacity.work_queues import PAGE, SEARCH, WorkQueues
from om_proxy.wire.server.disconnect import ClientDisconnected, read_body
from om_proxy.wire.server.headers import find_header

MCP_PATH = b"/om/mcp"
MAX_MCP_BODY_BYTES = 2**20
_LIST_TTL_MS = 3_600_000  # of what changes with the program alone
_CACHING = {"ttlMs": _LIST_TTL_MS, "cacheScope": "private"}
_CAPABILITIES: dict[str, object] = {"tools": {}}


class McpRoute:
    """The route. It keeps nothing between two requests. A call of a tool waits for a slot, as the
    admin API's requests do."""

    def __init__(self, services: AdminServices, queues: WorkQueues) -> None:
        self._services = services
        self._queues = queues
        self._tools = MemoryTools(services)

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, config: EdgeConfig
    ) -> None:
        try:
            require_open_api(config)
            if not config.settings.mcp.enabled:
                raise NotFound("MCP is switched off (mcp.enabled)")
            require_same_site(scope, config)
            if scope["method"] != "POST":
                await responses.send_error(send, BadMethod(), [(b"allow", b"POST")])
                return
            services = self._services
            named = read_tenant(scope["query_string"])
            reader = identify_reader(scope, config, named, services.secret, services.clock())
            body = await _read_json(scope, receive)
            status, content = await self._answer(body, scope, reader, config)
        except OmError as exc:
            self._services.facts.emit_refusal(exc)
            await responses.send_error(send, exc)
        except ClientDisconnected:
            return
        else:
            await responses.send_content(send, status, content)

    async def _answer(
        self, body: bytes, scope: Scope, reader: Reader, config: EdgeConfig
    ) -> tuple[int, bytes]:
        try:
            request = read_request(body, scope["headers"])
            if request.rpc_id is None:
                return 202, b""
            if request.method != "tools/call":
                return 200, write_result(request, _describe_server(request))
            call = _read_tool_call(request)
        except RpcError as error:
            return error.status, write_error(error)
        except LookUpFault as fault:
            return 200, write_result(request, _write_content(fault.text, is_error=True))
        share = await self._services.known_tenants.find_share(
            reader.tenant, config, is_admin=reader.is_admin
        )
        work = SEARCH if call.tool == "search_memory" else PAGE
        with await self._queues.take(work, share, scope):
            answer = await self._tools.call(call, reader)
        return 200, write_result(request, _write_content(answer.text, is_error=answer.is_error))


def _describe_server(request: RpcRequest) -> dict[str, object]:
    """Answer what the program alone says. Raise RpcError for an unknown method."""
    match request.method, request.era:
        case "tools/list", "modern":
            return {"tools": TOOLS, **_CACHING}
        case "tools/list", "legacy":
            return {"tools": TOOLS}
        case "server/discover", "modern":
            introduced = {**_introduce(), "supportedVersions": VERSIONS, **_CACHING}
            return {**introduced, "_meta": {SERVER_INFO_KEY: introduced["serverInfo"]}}
        case "initialize", "legacy":
            return {**_introduce(), "protocolVersion": choose_legacy_version(request.params)}
        case "ping", "legacy":
            return {}
    raise fail_request(request, METHOD_NOT_FOUND, "there is no such method here")


def _read_tool_call(request: RpcRequest) -> ToolCall:
    """Raise RpcError for what is no call of a tool, and LookUpFault for wrong arguments."""
    tool = find_tool(request.params.get("name"))
    if tool is None:
        raise fail_request(request, INVALID_PARAMS, "there is no such tool; see tools/list")
    arguments = request.params.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise fail_request(request, INVALID_PARAMS, "arguments must be an object")
    return read_call(tool, arguments or {})


def _write_content(text: str, *, is_error: bool) -> dict[str, object]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _introduce() -> dict[str, object]:
    return {
        "capabilities": _CAPABILITIES,
        "serverInfo": {"name": "om-proxy", "version": __version__},
        "instructions": INSTRUCTIONS,
    }


async def _read_json(scope: Scope, receive: Receive) -> bytes:
    # a browser sends a preflight before it posts JSON from another site
    content_type = find_header(scope["headers"], b"content-type") or b""
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise BadRequest(
            "send a JSON object with Content-Type: application/json", param="Content-Type"
        )
    try:
        return await read_body(receive, MAX_MCP_BODY_BYTES)
    except TooLarge as exc:
        raise TooLarge(f"a body has at most {MAX_MCP_BODY_BYTES} bytes here; send less") from exc
