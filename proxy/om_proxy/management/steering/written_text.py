"""Take a text that a person wrote as a note."""

from __future__ import annotations

import asyncio

from om_proxy.common.errors import BadRequest
from om_proxy.memory.notes.redaction import redact_secrets
from om_proxy.wire.apis.json_text import replace_halves

MAX_NOTE_CHARS = 20_000


async def read_written_text(text: str, *, redact: bool, how_to_remove: str) -> str:
    """Return the text as it is stored: without blank ends, without lone surrogates, and, if
    `redact`, without secrets. It is escaped where it is rendered. Raise BadRequest if it is empty
    or too long. `how_to_remove`: what the error tells a person who wants the note gone."""
    if not 0 < len(text.strip()) <= MAX_NOTE_CHARS:
        raise BadRequest(
            f"a note has 1 to {MAX_NOTE_CHARS} characters; to take it out, {how_to_remove}",
            "om_bad_text",
            "text",
        )
    whole = replace_halves(text.strip())
    if not redact:
        return whole
    redacted = await asyncio.to_thread(
        redact_secrets, whole
    )  # what stands for a secret may be longer
    if len(redacted) > MAX_NOTE_CHARS:
        raise BadRequest(
            f"without its secrets, the note has more than {MAX_NOTE_CHARS} characters; shorten it",
            "om_bad_text",
            "text",
        )
    return redacted
