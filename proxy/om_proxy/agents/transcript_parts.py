"""Render the parts of a message for a transcript: text as it is, images and files as numbered
placeholders, and the arguments of tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Raw

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


# Write a tool call's arguments for a reader: `key: value`, with real line ends.
#
# A JSON string writes the line ends of code as `\n` and its quotes as `\"`: hard to read, and
# expensive. The 391 calls of a coding session take 53 786 tokens as JSON and 45 730 in this form
# (-15 %). A number keeps its digits: it is never read and written again. A text loses the kind of its
# line ends, and one at its end. Arguments that are no JSON object stay as they came.
#
#     {"path": "a.py", "edits": [{"old": "a\nb", "new": ""}], "dry": true}
#
#     path: a.py
#     edits:
#       - old:
#           a
#           b
#         new: ""
#     dry: true


MAX_NESTED_LEVELS = 6  # deeper values stay JSON

_object = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
_string = msgspec.json.Decoder(str)


def render_arguments(arguments: str) -> str:
    """Render the arguments. Return an empty text if there are none, and invalid JSON as it is."""
    try:
        fields = _object.decode(arguments)
        return "\n".join(_render_fields(fields, 0))
    # no object, no JSON at all, a lone surrogate, or too many levels
    except (ValueError, RecursionError):
        return arguments


def _render_fields(fields: dict[str, Raw], level: int) -> Iterator[str]:
    for key, value in fields.items():
        name = " ".join(key.split())
        lines = _render_value(bytes(value).strip(), level)
        if len(lines) == 1:
            yield f"{name}: {lines[0]}"
        else:
            yield f"{name}:"
            yield from (f"  {line}" for line in lines)


def _render_value(value: bytes, level: int) -> list[str]:
    """Return the value's lines, at least one. A text is written without its quotes; a list or an
    object is written out only if it has a text with a line end, because JSON is shorter."""
    if value.startswith(b'"'):
        text = _string.decode(value)
        return text.splitlines() if text.strip() else [value.decode()]
    if b"\\n" not in value or level == MAX_NESTED_LEVELS:
        return [" ".join(value.decode().splitlines())]
    if value.startswith(b"{"):
        return list(_render_fields(_object.decode(value), level + 1))
    return [
        line
        for item in _list.decode(value)
        for line in _render_item(bytes(item).strip(), level + 1)
    ]


def _render_item(item: bytes, level: int) -> Iterator[str]:
    first_line, *other_lines = _render_value(item, level)
    yield f"- {first_line}"
    yield from (f"  {line}" for line in other_lines)
