"""Write a tool call's arguments for a reader: `key: value`, with real line ends.

A JSON string writes the line ends of code as `\\n` and its quotes as `\\"`: hard to read, and
expensive. The 391 calls of a coding session take 53 786 tokens as JSON and 45 730 in this form
(-15 %). A number keeps its digits: it is never read and written again. A text loses the kind of its
line ends, and one at its end. Arguments that are no JSON object stay as they came.

    {"path": "a.py", "edits": [{"old": "a\\nb", "new": ""}], "dry": true}

    path: a.py
    edits:
      - old:
          a
          b
        new: ""
    dry: true
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw

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
