"""A message in a few words: who speaks, and the parts of what is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_message = msgspec.json.Decoder(dict[str, Any])


def excerpt(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Speaker and texts; what is no text is named. No parts for a message that says nothing we can read."""
    try:
        message = _message.decode(raw)
    except (ValueError, RecursionError):
        return "Unknown", ()
    return str(message.get("role", "")).capitalize()[:40], tuple(part for part in _parts(message) if part.strip())


def _parts(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Mapping):
            text = part.get("text")
            yield text if isinstance(text, str) else f"[{part.get('type', 'attachment')}]"
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield f"[calls {function.get('name', 'a tool')}]"
