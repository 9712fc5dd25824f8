"""Items and requests in the words of OpenAI's responses."""

from __future__ import annotations

import json
from typing import Any

from om_proxy.common.apis import ApiName
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.api import Request
from om_proxy.wire.apis.responses.responses_api import RESPONSES

KEY = b"k" * 32
Item = dict[str, Any]


def said(text: str, role: str = "user") -> Item:
    return {"role": role, "content": text}


def reasoned(number: int = 1, **members: Any) -> Item:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], **members}


def called(call_id: str, kind: str = "function_call", **members: Any) -> Item:
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}", **members}


def answered(call_id: str, kind: str = "function_call_output", **members: Any) -> Item:
    return {"type": kind, "call_id": call_id, "output": "sunny", **members}


def write_unit(*items: Item) -> bytes:
    return json.dumps(items, separators=(",", ":")).encode()


def read(items: Any, **members: Any) -> Request:
    body = {"model": "m", "input": items, **members}
    return RESPONSES.parse_request(json.dumps(body, separators=(",", ":")).encode())


def list_pieces(request: Request, start: int = 0) -> list[Piece]:
    """List the units from `start` on as a tail that the client sent itself."""
    pieces = []
    for index in range(start, len(request.messages)):
        item = RESPONSES.read_item(request.messages[index], KEY)
        pieces.append(Piece(item.raw, item.role, item.calls, item.answers, None, 0, index))
    return pieces


def store(*units: bytes, api: ApiName = "responses") -> list[Piece]:
    """List stored units as a tail that the client did not send."""
    return [Piece(raw, "", (), None, 1, seq, -1, api=api) for seq, raw in enumerate(units, 1)]


def read_input(body: bytes) -> Any:
    return json.loads(body)["input"]
