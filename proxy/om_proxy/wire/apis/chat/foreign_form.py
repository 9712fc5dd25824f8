"""Write what came by another API as a chat message.

What servers of this API refuse, or cannot know, becomes words: a picture in a tool's result, a file
that another server keeps, a part of another kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from om_proxy.wire.apis.chat.chat_message import ChatPart, Remark
from om_proxy.wire.apis.chat.plain_form import LEFT_OUT, show_part, write_plain_message
from om_proxy.wire.apis.json_text import replace_lone_surrogates, write_ascii

DETAILS = frozenset({"auto", "low", "high"})


def write_message(message: Mapping[str, Any]) -> bytes:
    """Write a chat message that says the same as one of another API, without what only readers see."""
    content = message.get("content")
    if isinstance(content, list):
        said = [part for part in content if not isinstance(part, Remark)]
        message = {**message, "content": said or None}
    raw = write_ascii(message).encode()
    return replace_lone_surrogates(raw) or raw


def fit_message(message: Mapping[str, Any]) -> bytes:
    """Write the same as every server of this API takes it. LEFT_OUT: nothing remains of it."""
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, list):
        return write_plain_message(write_message(message))
    parts = list(_list_fitting(content))
    return write_message({**message, "content": parts}) if parts else LEFT_OUT


def _list_fitting(parts: list[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Remark) or not isinstance(part, dict):
            continue
        kind = part.get("type")
        value = part.get(kind) if isinstance(kind, str) else None
        if kind == "image_url" and isinstance(value, dict) and value.get("url"):
            detail = {"detail": value["detail"]} if value.get("detail") in DETAILS else {}
            yield {"type": kind, kind: {"url": value["url"], **detail}}
        elif kind == "file" and isinstance(value, dict) and value.get("file_data"):
            yield {"type": kind, kind: {k: v for k, v in value.items() if k != "file_id"}}
        elif text := show_part(ChatPart(part)):
            yield {"type": "text", "text": text}
