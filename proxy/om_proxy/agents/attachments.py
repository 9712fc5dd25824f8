"""Render a message's parts for a transcript: text as it is, images and files as numbered
placeholders."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from om_proxy.agents.llm import Image
from om_proxy.memory.message_view import Attachment, Part

MAX_NAME_CHARS = 80
# Tools return screenshots as such a text. Possessive: the engine would keep a way back from each
# parameter, and never needs one.
_INLINE_DATA = re.compile(
    r"data:([\w.+-]++/[\w.+-]++)(?:;(?!base64,)[\w=.+-]++)*+;base64,[A-Za-z0-9+/=_-]{256,}+"
)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)[;,]")


class Attachments:
    """Numbers images and files through one transcript, and keeps the images that can be shown, each
    with its number."""

    def __init__(self) -> None:
        self.images: list[tuple[int, Image]] = []
        self._images = 0
        self._files = 0

    def render_part(self, part: str | Part) -> str:
        """Render a part; an empty one is empty. A part of an unknown kind is a file: something was
        there."""
        shown = part if isinstance(part, str) else part.render()
        return (
            _replace_inline_data(shown)
            if isinstance(shown, str)
            else self._write_placeholder(shown)
        )

    def _write_placeholder(self, attached: Attachment) -> str:
        url, name = attached.url, attached.name
        label = (_read_file_name(name) if "://" in name else name) or _read_file_name(url)
        label = _clean_label(label or attached.type_name)
        if attached.is_image:
            self._images += 1
            if url.startswith(("data:image/", "https://", "http://")):
                self.images.append((self._images, Image(url)))
            return f"[Image #{self._images}: {label}]"
        self._files += 1
        return f"[File #{self._files}: {label}]"


def _read_file_name(url: str) -> str:
    """Read a file's name from its address; a `data:` URL gives its media type."""
    if data := _DATA_URL.match(url):
        return data[1]
    try:
        path = urlsplit(url).path
    except ValueError:
        return ""
    return unquote(path.rpartition("/")[2])


def _clean_label(label: str) -> str:
    """Put a label on one line, without brackets that would end the placeholder."""
    return " ".join(label.translate({ord("["): "(", ord("]"): ")"}).split())[:MAX_NAME_CHARS]


def _replace_inline_data(text: str) -> str:
    return (
        _INLINE_DATA.sub(lambda found: f"[{found[1]}, about {len(found[0]) * 3 // 4096} kB]", text)
        if "base64," in text
        else text
    )
