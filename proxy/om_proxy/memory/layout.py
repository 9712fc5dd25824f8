"""Put memory's texts among the client's messages: as messages of their own, or inside the client's system message.

- `blocks`: after the client's instructions a system message with the block, then a user message with the hint. The prefix up to
  the end of the client's instructions stays the client's, byte for byte.
- `merged`: both at the end of the client's last leading system message. Many chat templates take one system message only, and
  demand that user and assistant alternate (Qwen, Mistral and Gemma under vLLM, llama.cpp, LM Studio).

In either layout the hint is a user message when the tail begins with an assistant message: templates want a user first.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw

Layout = Literal["blocks", "merged"]

JSON_EMPTY_LINE = b"\\n\\n"  # an empty line, inside a JSON string
MAX_WRITTEN_BYTES = 8 * 2**20  # bytes of texts kept with their JSON; a full block is 0.3 MB, and 0.8 with one 🔴 in it

SEPARATE_BLOCKS = (  # hosts, each with its subdomains, whose services take several system messages
    "api.openai.com",
    "openai.azure.com",
    "openrouter.ai",
    "api.groq.com",
    "api.deepseek.com",
    "api.mistral.ai",
    "api.x.ai",
)


class _Speaker(msgspec.Struct):
    role: str = ""


def layout_for(host: str, configured: str) -> Layout:
    """`auto`: separate blocks for hosts known to take them, merged for all others. `host` may carry a port."""
    if configured == "blocks":
        return "blocks"
    name = host.lower().partition(":")[0].rstrip(".")
    known = any(name == one or name.endswith(f".{one}") for one in SEPARATE_BLOCKS)
    return "blocks" if configured == "auto" and known else "merged"


def assemble(
    instructions: Sequence[bytes],
    roles: Sequence[str],
    block: str,
    hint: str,
    tail: Sequence[bytes],
    layout: Layout,
) -> tuple[bytes, ...]:
    """The prompt's messages, raw JSON in order; `roles` are those of the instructions. Empty texts leave no trace."""
    role = roles[-1] if roles else "system"
    starts_midway = bool(tail) and msgspec.json.decode(tail[0], type=_Speaker).role == "assistant"
    notes, hints = (_written(text) for text in (block, hint))
    if layout == "merged" and not starts_midway:
        notes, hints = JSON_EMPTY_LINE.join(filter(None, (notes, hints))), b""
    ours = [_message("user", hints)] if hints else []
    if not notes:
        return (*instructions, *ours, *tail)
    if layout == "merged" and instructions and (grown := _appended(instructions[-1], notes)):
        return (*instructions[:-1], grown, *ours, *tail)
    return (*instructions, _message(role, notes), *ours, *tail)


def _appended(message: bytes, written: bytes) -> bytes | None:
    """The message with a text at the end of its content; each value of the client's keeps its bytes.

    None if its content is neither a string nor a list of parts.
    """
    fields = msgspec.json.decode(message, type=dict[str, Raw])
    content = bytes(fields.get("content", b"")).strip()
    if content.startswith(b'"'):
        fields["content"] = Raw(content[:-1] + (JSON_EMPTY_LINE if len(content) > 2 else b"") + written + b'"')
    elif content.startswith(b"["):
        parts = content[:-1].rstrip()
        comma = b"," if len(parts) > 1 else b""
        fields["content"] = Raw(parts + comma + b'{"type":"text","text":"' + written + b'"}]')
    else:
        return None
    return msgspec.json.encode(fields)


def _message(role: str, written: bytes) -> bytes:
    return b'{"role":"' + _written(role) + b'","content":"' + written + b'"}'


class _Written:
    """Texts as JSON: a block of 100 kB takes 0.3 ms, and the same one comes with every request between two activations."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[bytes, int]] = OrderedDict()  # with the bytes that both take
        self._held = 0

    def __call__(self, text: str) -> bytes:
        """As in a JSON string, without its quotes. A lone surrogate, which UTF-8 cannot hold, becomes the escape JSON has for it."""
        if found := self._kept.get(text):
            self._kept.move_to_end(text)
            return found[0]
        written = json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace")[1:-1]
        self._keep(text, written)
        return written

    def _keep(self, text: str, written: bytes) -> None:
        size = sys.getsizeof(text) + sys.getsizeof(written)
        self._kept[text] = written, size
        self._held += size
        while self._held > MAX_WRITTEN_BYTES:
            _, (_, gone) = self._kept.popitem(last=False)
            self._held -= gone


_written = _Written()
