"""Fingerprint a message: 16 bytes, equal for every spelling of the same message, different for each
tenant.

Counted: role, text (a string and text parts alike, outer whitespace aside), other content parts,
refusal, audio id, tool calls (id, name, arguments as JSON), `tool_call_id`, `name`. Ignored:
`reasoning_content`, annotations, cache marks, nulls, unknown keys. Clients drop and add those
between one call and the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from om_proxy.memory.message_view import MessageView


def fingerprint(message: MessageView, key: bytes, write_json: Callable[[object], bytes]) -> bytes:
    """16 bytes; `key` (at most 64 bytes) is the tenant's. Never raises on JSON values, however odd.

    `write_json`: writes equal values as equal bytes, wire/apis/json_text.py.
    """
    text, others = message.compared_content()
    what = [message.role, text, others, message.compared_calls(), message.answers, message.name]
    return hashlib.blake2b(write_json(what), key=key, digest_size=16).digest()
