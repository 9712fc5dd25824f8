"""Put memory's texts among the client's messages: as messages of their own, or inside the client's
system message.

- `blocks`: after the client's instructions a system message with the block, then a user message
  with the hint. The prefix up to the end of the client's instructions stays the client's, byte for
  byte.
- `merged`: both at the end of the client's last leading system message. Many chat templates take
  one system message only, and demand that user and assistant alternate (Qwen, Mistral and Gemma
  under vLLM, llama.cpp, LM Studio).

In either layout the hint is a user message when the tail begins with an assistant message:
templates want a user first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.bounded_cache import BoundedCache
from om_proxy.memory.prompt.layout import Layout

JSON_EMPTY_LINE = b"\\n\\n"  # an empty line, inside a JSON string
# of texts kept with their JSON; a full block has 0.3 MB, and 0.8 with one 🔴 in it
MAX_WRITTEN_BYTES = 8 * 2**20


class _Speaker(msgspec.Struct):
    role: str = ""


def assemble(
    instructions: Sequence[bytes],
    roles: Sequence[str],
    block: str,
    hint: str,
    tail: Sequence[bytes],
    layout: Layout,
) -> tuple[bytes, ...]:
    """Return the prompt's messages in order; `roles` are those of the instructions. Empty texts
    leave no trace."""
    role = roles[-1] if roles else "system"
    starts_midway = bool(tail) and msgspec.json.decode(tail[0], type=_Speaker).role == "assistant"
    notes, hints = (_write_json_text(text) for text in (block, hint))
    if layout == "merged" and not starts_midway:
        notes, hints = JSON_EMPTY_LINE.join(filter(None, (notes, hints))), b""
    ours = [_write_message("user", hints)] if hints else []
    if not notes:
        return (*instructions, *ours, *tail)
    if (
        layout == "merged"
        and instructions
        and (instruction := _append_text(instructions[-1], notes))
    ):
        return (*instructions[:-1], instruction, *ours, *tail)
    return (*instructions, _write_message(role, notes), *ours, *tail)


def _append_text(message: bytes, written: bytes) -> bytes | None:
    """Append a text to a message's content; each value of the client's keeps its bytes.

    None: the content is neither a string nor a list of parts.
    """
    fields = msgspec.json.decode(message, type=dict[str, Raw])
    content = bytes(fields.get("content", b"")).strip()
    if content.startswith(b'"'):
        fields["content"] = Raw(
            content[:-1] + (JSON_EMPTY_LINE if len(content) > 2 else b"") + written + b'"'
        )
    elif content.startswith(b"["):
        parts = content[:-1].rstrip()
        comma = b"," if len(parts) > 1 else b""
        fields["content"] = Raw(parts + comma + b'{"type":"text","text":"' + written + b'"}]')
    else:
        return None
    return msgspec.json.encode(fields)


def _write_message(role: str, written: bytes) -> bytes:
    return b'{"role":"' + _write_json_text(role) + b'","content":"' + written + b'"}'


class _JsonTexts:
    """Writes texts as JSON and keeps them: a block of 100 kB takes 0.3 ms, and the same block comes
    with every request between two activations."""

    def __init__(self) -> None:
        self._kept: BoundedCache[str, bytes] = BoundedCache(max_bytes=MAX_WRITTEN_BYTES)

    def __call__(self, text: str) -> bytes:
        """Write a text as in a JSON string, without quotes. A lone surrogate, which UTF-8 cannot
        hold, becomes its JSON escape."""
        if found := self._kept.get(text):
            return found
        written = json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace")[1:-1]
        self._kept.put(text, written, sys.getsizeof(text) + sys.getsizeof(written))
        return written


_write_json_text = _JsonTexts()
