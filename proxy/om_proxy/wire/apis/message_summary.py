"""Summarise a message: its speaker, and its parts as texts."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from om_proxy.memory.message_view import MessageView
from om_proxy.wire.apis.registry import view_message

MAX_SPEAKER_CHARS = 40


def summarize_message(raw: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the speaker and the texts. A part that is no text is named by its type. An unreadable
    message has no parts."""
    message = view_message(raw)
    if message is None:
        return "Unknown", ()
    role = "" if message.role is None else str(message.role)
    speaker = role.capitalize()[:MAX_SPEAKER_CHARS]
    return speaker, tuple(part for part in _list_parts(message) if part.strip())


def _list_parts(message: MessageView) -> Iterator[str]:
    for part in message.parts():
        if isinstance(part, str):
            yield part
        else:
            yield f"[{part.type_name}]" if part.text is None else part.text
    for call in message.calls():
        if call.kind in ("function", "empty"):
            yield f"[calls {'a tool' if call.name is UNSET else call.name}]"
