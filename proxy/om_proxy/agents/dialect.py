"""What a server takes of an OpenAI request, and how to mend one it refused.

Servers agree on the messages and differ in the rest. What can be mended, each once a call:

- the limit of output tokens has two names (`max_tokens`, and `max_completion_tokens` for OpenAI's newer models): refused as
  unknown it is renamed, refused as too large, or again, it is left out;
- a temperature that is refused is left out;
- images that are refused are left out: their numbered places stay in the text.

An image that is an address is handed on as one only to a server that is asked by us; see `addresses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from om_proxy.agents.llm import Image, Prompt

OLD, NEW = "max_tokens", "max_completion_tokens"

_LIMIT = re.compile(r"max_(?:completion_|output_)?tokens|maxoutputtokens|in the completion", re.IGNORECASE)
_TOO_LARGE = re.compile(
    r"large|high|at most|exceed|maximum|less than|greater than|range|in the completion", re.IGNORECASE
)
# possessive: a way back from each parameter would be kept, and none of them leads anywhere
_INLINE = re.compile(r"data:image/[\w.+-]++(?:;(?!base64,)[\w=.+-]++)*+;base64,")
_IMAGE = re.compile(r"image|vision|multi-?modal", re.IGNORECASE)

NOT_SHOWN = "[not shown: only its address was given]"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one model of one server is spoken to; learnt from its refusals.

    `addresses`: whether an image may go out as an address, for the server to fetch. Where what stands between us and the
    server would fetch it in our place, it may not: only images that are their own bytes are shown, the others are told.
    """

    limit: str | None = OLD  # the name of the output limit; None: it takes none of ours
    renamed: bool = False
    temperature: bool = True
    images: bool = True
    addresses: bool = True

    @classmethod
    def of(cls, base_url: str) -> Dialect:
        """OpenAI itself knows the new name for all of its models; what imitates it knows the old one at least."""
        return cls(limit=NEW if base_url.startswith("https://api.openai.com/") else OLD)

    def body(self, model: str, prompt: Prompt) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": self._messages(prompt)}
        if self.temperature and prompt.temperature is not None:
            body["temperature"] = prompt.temperature
        if self.limit and prompt.max_output_tokens:
            body[self.limit] = prompt.max_output_tokens
        return body

    def mended(self, prompt: Prompt, complaint: str) -> Dialect | None:
        """What to try after this refusal; None if it is about nothing that can be left out."""
        if self.limit and prompt.max_output_tokens and _LIMIT.search(complaint):
            return self._without_limit(complaint)
        if self.temperature and prompt.temperature is not None and "temperature" in complaint.lower():
            return replace(self, temperature=False)
        if self.images and _has_images(prompt) and _IMAGE.search(complaint):
            return replace(self, images=False)
        return None

    def _without_limit(self, complaint: str) -> Dialect:
        if self.renamed or _TOO_LARGE.search(complaint):
            return replace(self, limit=None)
        return replace(self, limit=NEW if self.limit == OLD else OLD, renamed=True)

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """Text alone is a string: servers that know no content parts take that as well."""
        user = prompt.user if self.addresses else map(_shown_or_told, prompt.user)
        parts = [part for part in user if self.images or isinstance(part, str)]
        texts = [part for part in parts if isinstance(part, str)]
        content = "\n\n".join(texts) if len(texts) == len(parts) else [_part(part) for part in parts]
        return [{"role": "system", "content": prompt.system}, {"role": "user", "content": content}]


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": part.url}}


def _shown_or_told(part: str | Image) -> str | Image:
    return part if isinstance(part, str) or _is_inline(part.url) else NOT_SHOWN


def _is_inline(url: str) -> bool:
    """Whether an image is its own bytes. Base64 knows no colon, and no address goes without one; to look for it takes a large
    picture a fraction of what a look at every character would."""
    head = _INLINE.match(url)
    return head is not None and url.find(":", head.end()) < 0


def _has_images(prompt: Prompt) -> bool:
    return any(isinstance(part, Image) for part in prompt.user)
