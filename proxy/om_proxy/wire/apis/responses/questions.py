"""Write a memory model's question as a request for a response, and read its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.responses.reply import read_usage
from om_proxy.wire.apis.responses.writing import write_content


class Answer(NamedTuple):
    """The answer of a memory model."""

    text: str
    is_cut_off: bool
    usage: Usage | None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None


class _Response(msgspec.Struct):
    output: list[_Item] = []
    output_text: str | None = None
    status: str | None = None
    usage: Raw = Raw(b"null")


_response = msgspec.json.Decoder(_Response)


def write_question(
    model: str, instructions: str, content: Sequence[Any], max_output_tokens: int | None
) -> dict[str, Any]:
    """Write a request that the server does not keep. `content`: the parts of a chat message;
    `max_output_tokens`: None for no limit."""
    written = write_content(list(content))
    body: dict[str, Any] = {
        "model": model,
        "instructions": instructions,
        "input": written if isinstance(written, str) else [{"role": "user", "content": written}],
        "store": False,
    }
    return {**body, "max_output_tokens": max_output_tokens} if max_output_tokens else body


def read_answer(body: bytes) -> Answer:
    """Read a response. Raise ValueError for any other JSON."""
    response = _response.decode(body)
    parts = (part for item in response.output for part in item.content or ())
    said = "".join(part.text or "" for part in parts if part.type == "output_text")
    text = said or response.output_text or ""
    return Answer(text, response.status == "incomplete", read_usage(response.usage))
