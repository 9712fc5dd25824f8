"""Write a chat completion request as a server takes it, and adapt it after a refusal.

Servers agree on the messages and differ in the rest. A call adapts each of these once:

- The limit of output tokens has two names: `max_tokens`, and `max_completion_tokens` for OpenAI's
  newer models. A limit that is refused as unknown is renamed. A limit that is refused as too large,
  or for the second time, is left out.
- A temperature that is refused is left out.
- Images that are refused are left out. Their numbered placeholders stay in the text.

An image's address is sent only to a server that the proxy itself asks; see `addresses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from om_proxy.agents.llm import Image, Prompt

OLD_LIMIT_NAME, NEW_LIMIT_NAME = "max_tokens", "max_completion_tokens"

_LIMIT_REFUSAL = re.compile(
    r"max_(?:completion_|output_)?tokens|maxoutputtokens|in the completion", re.IGNORECASE
)
_LIMIT_TOO_LARGE = re.compile(
    r"large|high|at most|exceed|maximum|less than|greater than|range|in the completion",
    re.IGNORECASE,
)
# possessive: the engine would keep a way back from each parameter, and never needs one
_INLINE_IMAGE = re.compile(r"data:image/[\w.+-]++(?:;(?!base64,)[\w=.+-]++)*+;base64,")
_IMAGE_REFUSAL = re.compile(r"image|vision|multi-?modal", re.IGNORECASE)

IMAGE_NOT_SHOWN = "[not shown: only its address was given]"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form of requests that one model of one server takes, learnt from its refusals.

    `addresses`: whether an image may be sent as an address that the server fetches. It is False if
    a library in between would fetch the image itself: only inline images are shown then, and a note
    replaces the others.
    """

    limit_name: str | None = OLD_LIMIT_NAME  # of the output limit; None: the model takes none
    is_limit_renamed: bool = False
    temperature: bool = True
    images: bool = True
    addresses: bool = True

    @classmethod
    def of(cls, base_url: str) -> Dialect:
        """Return the dialect to begin with: the new limit name for OpenAI, whose models all take it,
        and the old one for its imitators."""
        is_openai = base_url.startswith("https://api.openai.com/")
        return cls(limit_name=NEW_LIMIT_NAME if is_openai else OLD_LIMIT_NAME)

    def write_body(self, model: str, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": self._write_messages(prompt)}
        if self.temperature and prompt.temperature is not None:
            body["temperature"] = prompt.temperature
        if self.limit_name and prompt.max_output_tokens:
            body[self.limit_name] = prompt.max_output_tokens
        return body

    def adapted_to(self, prompt: Prompt, error_text: str) -> Dialect | None:
        """Return the dialect to try after this refusal. Return None if the refusal names nothing
        that can be left out."""
        sends_limit = self.limit_name is not None and bool(prompt.max_output_tokens)
        if sends_limit and _LIMIT_REFUSAL.search(error_text):
            return self._adapt_limit(error_text)
        sends_temperature = self.temperature and prompt.temperature is not None
        if sends_temperature and "temperature" in error_text.lower():
            return replace(self, temperature=False)
        sends_images = self.images and _has_images(prompt)
        if sends_images and _IMAGE_REFUSAL.search(error_text):
            return replace(self, images=False)
        return None

    def _adapt_limit(self, error_text: str) -> Dialect:
        """Leave the limit out if it is too large or was refused before, else rename it."""
        if self.is_limit_renamed or _LIMIT_TOO_LARGE.search(error_text):
            return replace(self, limit_name=None)
        other_name = NEW_LIMIT_NAME if self.limit_name == OLD_LIMIT_NAME else OLD_LIMIT_NAME
        return replace(self, limit_name=other_name, is_limit_renamed=True)

    def _write_messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Write the messages. Text alone is written as a string, which servers without content parts
        take too."""
        user = prompt.user if self.addresses else map(_replace_address, prompt.user)
        parts = [part for part in user if self.images or isinstance(part, str)]
        texts = [part for part in parts if isinstance(part, str)]
        is_text_only = len(texts) == len(parts)
        content = "\n\n".join(texts) if is_text_only else [_write_part(part) for part in parts]
        return [{"role": "system", "content": prompt.system}, {"role": "user", "content": content}]


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


def _has_images(prompt: Prompt) -> bool:
    return any(isinstance(part, Image) for part in prompt.user)
