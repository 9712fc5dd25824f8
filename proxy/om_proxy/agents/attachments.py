"""Render a message's parts for a transcript: text as it is, images and files as numbered
placeholders."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from om_proxy.agents.model_access.llm import Image
from om_proxy.memory.message_view import Attachment, Part

MAX_NAME_CHARS = 80
# Tools return screenshots as such a text. The quantifiers are possessive: else the engine would
# keep a way back from each parameter, and never need it.
_INLINE_DATA = re.compile(
    r"data:([\w.+-]++/[\w.+-]++)(?:;(?!base64,)[\w=.+-]++)*+;base64,[A-Za-z0-9+/=_-]{256,}+"
)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)[;,]")


class Attachments:
    """The images and files of one transcript, numbered. `images` holds those that can be shown,
    each with its number."""

    def __init__(self) -> None:
        self.images: list[tuple[int, Image]] = []
        self._image_count = 0
        self._file_count = 0

    def render_part(self, part: str | Part) -> str:
        """Render a part. An empty part gives an empty text. A part of an unknown kind counts as a
        file, so that the reader sees that there was something."""
        rendered = part if isinstance(part, str) else part.render()
        if isinstance(rendered, str):
            return _replace_inline_data(rendered)
        return self._write_placeholder(rendered)

    def _write_placeholder(self, attached: Attachment) -> str:
        url = attached.url
        name = _read_file_name(attached.name) if "://" in attached.name else attached.name
        label = _clean_label(name or _read_file_name(url) or attached.type_name)
        if attached.is_image:
            self._image_count += 1
            if url.startswith(("data:image/", "https://", "http://")):
                self.images.append((self._image_count, Image(url)))
            return f"[Image #{self._image_count}: {label}]"
        self._file_count += 1
        return f"[File #{self._file_count}: {label}]"


def _read_file_name(url: str) -> str:
    """Read a file's name from its address. A `data:` URL gives its media type."""
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
    if "base64," not in text:
        return text
    return _INLINE_DATA.sub(
        lambda match: f"[{match[1]}, about {len(match[0]) * 3 // 4096} kB]", text
    )
