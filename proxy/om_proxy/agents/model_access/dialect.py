"""Write a chat completion request as a server takes it.

Servers agree on the messages and differ in the rest: the name of the output limit (`max_tokens`, and
`max_completion_tokens` for OpenAI's newer models), temperature, images, answers in one piece, a
system message. Each of them is an addition that a refusal takes back (wire/apis/additions.py).

- Without its usual name, the limit has the other one.
- Without images, their numbered placeholders stay in the text.
- Without a system message, its text begins the user's.

An image's address is sent only to a server that the proxy itself asks; see `sends_addresses`.
"""

from __future__ import annotations

import re
from typing import Any

from om_proxy.agents.model_access.llm import Image, Prompt
from om_proxy.wire.apis.additions import Addition

LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
EVERY_ADDITION = ~Addition(0)

# possessive: the engine would keep a way back from each parameter, and never needs one
_INLINE_IMAGE = re.compile(r"data:image/[\w.+-]++(?:;(?!base64,)[\w=.+-]++)*+;base64,")

IMAGE_NOT_SHOWN = "[not shown: only its address was given]"


def list_additions(prompt: Prompt) -> Addition:
    """Return what a server may refuse of this prompt, beside its words."""
    additions = Addition.SYSTEM | Addition.UNSTREAMED
    if any(isinstance(part, Image) for part in prompt.user):
        additions |= Addition.PICTURES
    if prompt.max_output_tokens:
        additions |= Addition.LIMIT | Addition.LIMIT_NAME
    if prompt.temperature is not None:
        additions |= Addition.TEMPERATURE
    if prompt.reasoning_effort is not None:
        additions |= Addition.OPTIONS
    return additions


def write_body(
    model: str,
    prompt: Prompt,
    additions: Addition = EVERY_ADDITION,
    *,
    base_url: str = "",
    sends_addresses: bool = True,
) -> dict[str, Any]:
    """Write the request with these additions.

    `sends_addresses`: whether an image may be sent as an address that the server fetches. It is
    False if a library in between would fetch the image itself: only inline images are shown then,
    and a note replaces the others.
    """
    user = prompt.user if sends_addresses else tuple(map(_replace_address, prompt.user))
    if Addition.PICTURES not in additions:
        user = tuple(part for part in user if isinstance(part, str))
    messages = [{"role": "system", "content": prompt.system}]
    if Addition.SYSTEM not in additions:
        messages, user = [], (prompt.system, *user)
    body: dict[str, Any] = {
        "model": model,
        "messages": [*messages, {"role": "user", "content": _write_content(user)}],
    }
    if Addition.TEMPERATURE in additions and prompt.temperature is not None:
        body["temperature"] = prompt.temperature
    if Addition.LIMIT in additions and prompt.max_output_tokens:
        name = _choose_limit_name(base_url, is_usual=Addition.LIMIT_NAME in additions)
        body[name] = prompt.max_output_tokens
    if Addition.OPTIONS in additions and prompt.reasoning_effort is not None:
        body["reasoning_effort"] = prompt.reasoning_effort
    if Addition.UNSTREAMED not in additions:
        body["stream"] = True
    # never left out: they may say where the words must not go
    return body | dict(prompt.extra_body)


def _choose_limit_name(base_url: str, *, is_usual: bool) -> str:
    """Return the name of the limit: usually the new one for OpenAI, whose models all take it, and
    the old one for its imitators."""
    is_openai = base_url.startswith("https://api.openai.com/")
    return LIMIT_NAMES[is_openai is is_usual]


def _write_content(parts: tuple[str | Image, ...]) -> str | list[dict[str, Any]]:
    """Write the parts. Text alone is written as a string, which servers without content parts take
    too."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n\n".join(texts)
    return [_write_part(part) for part in parts]


def _write_part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": part.url}}


def _replace_address(part: str | Image) -> str | Image:
    return part if isinstance(part, str) or _is_inline(part.url) else IMAGE_NOT_SHOWN


def _is_inline(url: str) -> bool:
    """Return whether an image is inline. Base64 has no colon, and every address has one. Searching
    for a colon costs a fraction of checking every character of a large picture."""
    head = _INLINE_IMAGE.match(url)
    return head is not None and url.find(":", head.end()) < 0
