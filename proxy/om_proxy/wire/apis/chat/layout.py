"""Put memory's texts among the client's messages: as messages of their own, or inside the client's
system message, or its first user message.

- `blocks`: after the client's instructions a system message with the block, then a user message
  with the hint. The prefix up to the end of the client's instructions stays the client's, byte for
  byte.
- `merged`: both at the end of the client's last leading system message. Many chat templates take
  one system message only, and demand that user and assistant alternate (Qwen, Mistral and Gemma
  under vLLM, llama.cpp, LM Studio).

- `user`: both at the beginning of the first message, if that is the user's, else in a user message.
  Some templates refuse every system message (Gemma).

In the first two, the hint is a user message if the tail begins with an assistant message: templates
demand a user message first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from om_proxy.common.bounded_cache import BoundedCache
from om_proxy.memory.prompt.context import Layout
from om_proxy.wire.apis.chat.chat_message import speaker_decoder

JSON_EMPTY_LINE = b"\\n\\n"  # an empty line, inside a JSON string
# Of cached texts and their JSON. A full block has 0.3 MB, and 0.8 MB with one 🔴 in it.
MAX_WRITTEN_BYTES = 8 * 2**20

# Writing a block of 100 kB takes 0.3 ms, and the same block comes with every request between two
# activations.
_json_by_text: BoundedCache[str, bytes] = BoundedCache(max_bytes=MAX_WRITTEN_BYTES)
drop_block_texts = _json_by_text.clear


def assemble(
    instructions: Sequence[bytes],
    roles: Sequence[str],
    block: str,
    hint: str,
    tail: Sequence[bytes],
    layout: Layout,
) -> tuple[bytes, ...]:
    """Return the prompt's messages in order. `roles` are the roles of the instructions. Empty texts
    leave no trace."""
    role = roles[-1] if roles else "system"
    first_role = speaker_decoder.decode(tail[0]).role if tail else ""
    starts_midway = first_role == "assistant"
    block_json = write_json_text(block)
    hint_json = write_json_text(hint)
    if layout == "user" and block_json:
        text_json = JSON_EMPTY_LINE.join(filter(None, (block_json, hint_json)))
        first = add_text(tail[0], text_json, at_end=False) if first_role == "user" else None
        if first:
            return (*instructions, first, *tail[1:])
        return (*instructions, write_message("user", text_json), *tail)
    if layout == "merged" and not starts_midway:
        block_json = JSON_EMPTY_LINE.join(filter(None, (block_json, hint_json)))
        hint_json = b""
    hints = [write_message("user", hint_json)] if hint_json else []
    if not block_json:
        return (*instructions, *hints, *tail)
    if layout == "merged" and instructions:
        last_instruction = add_text(instructions[-1], block_json, at_end=True)
        if last_instruction:
            return (*instructions[:-1], last_instruction, *hints, *tail)
    return (*instructions, write_message(role, block_json), *hints, *tail)


def add_text(
    message: bytes, text_json: bytes, *, at_end: bool, part_type: bytes = b"text"
) -> bytes | None:
    """Add a text to a message's content, at its end or beginning. Each value of the client's keeps
    its bytes. `part_type`: of a text in a list of parts.

    Return None if the content is neither a string nor a list of parts.
    """
    fields = msgspec.json.decode(message, type=dict[str, Raw])
    content = bytes(fields.get("content", b"")).strip()
    if content.startswith(b'"'):
        texts, separator, ends = [content[1:-1], text_json], JSON_EMPTY_LINE, (b'"', b'"')
    elif content.startswith(b"["):
        part = b'{"type":"%s","text":"%s"}' % (part_type, text_json)
        texts, separator, ends = [content[1:-1].strip(), part], b",", (b"[", b"]")
    else:
        return None
    joined = separator.join(filter(None, texts if at_end else reversed(texts)))
    fields["content"] = Raw(ends[0] + joined + ends[1])
    return msgspec.json.encode(fields)


def write_message(role: str, text_json: bytes) -> bytes:
    return b'{"role":"' + write_json_text(role) + b'","content":"' + text_json + b'"}'


def write_json_text(text: str) -> bytes:
    """Write a text as in a JSON string, without quotes. A lone surrogate becomes its JSON escape,
    because UTF-8 cannot hold it."""
    if cached := _json_by_text.get(text):
        return cached
    text_json = json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace")[1:-1]
    _json_by_text.put(text, text_json, sys.getsizeof(text) + sys.getsizeof(text_json))
    return text_json
