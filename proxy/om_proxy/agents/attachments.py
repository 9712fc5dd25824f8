"""What stands in a transcript for a message's parts: text as it is, images and files as numbered placeholders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from om_proxy.agents.llm import Image

NAME = 80  # characters of an attachment's name that are shown
# in text; tools return screenshots so. Possessive: a way back from each parameter would be kept, and none of them leads anywhere
_INLINE = re.compile(r"data:([\w.+-]++/[\w.+-]++)(?:;(?!base64,)[\w=.+-]++)*+;base64,[A-Za-z0-9+/=_-]{256,}+")
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)[;,]")


class Attachments:
    """Numbers images and files through one transcript, and keeps the images that can be shown, each with its number."""

    def __init__(self) -> None:
        self.images: list[tuple[int, Image]] = []
        self._images = 0
        self._files = 0

    def text_of(self, part: Any) -> str:
        """A content part as text; empty for what holds nothing. Parts of unknown kinds are files: something was there."""
        if part is None or isinstance(part, str):
            return _without_bytes(part or "")
        if not isinstance(part, Mapping):
            return ""
        text = part.get("text", part.get("refusal"))
        if isinstance(text, str):
            return _without_bytes(text)
        return self._placeholder(part)

    def _placeholder(self, part: Mapping[str, Any]) -> str:
        kind = str(part.get("type") or "file")
        held = part.get(kind)
        fields = held if isinstance(held, Mapping) else {"url": held} if isinstance(held, str) else part
        url = next(
            (u for name in ("url", "image_url", "file_data", "file_url") if isinstance(u := fields.get(name), str)), ""
        )
        named = next(
            (n for name in ("filename", "name", "file_id", "format") if isinstance(n := fields.get(name), str)), ""
        )
        label = (_base_name(named) if "://" in named else named) or _base_name(url) or kind
        if "image" in kind or url.startswith("data:image/"):
            self._images += 1
            if url.startswith(("data:image/", "https://", "http://")):
                self.images.append((self._images, Image(url)))
            return f"[Image #{self._images}: {_short(label)}]"
        self._files += 1
        return f"[File #{self._files}: {_short(label)}]"


def _base_name(url: str) -> str:
    """A file's name out of its address; the media type for bytes that stand in the address itself."""
    if data := _DATA.match(url):
        return data[1]
    try:
        path = urlsplit(url).path
    except ValueError:
        return ""
    return unquote(path.rpartition("/")[2])


def _short(label: str) -> str:
    """On one line, and without brackets that would end the placeholder."""
    return " ".join(label.translate({ord("["): "(", ord("]"): ")"}).split())[:NAME]


def _without_bytes(text: str) -> str:
    return (
        _INLINE.sub(lambda found: f"[{found[1]}, about {len(found[0]) * 3 // 4096} kB]", text)
        if "base64," in text
        else text
    )
