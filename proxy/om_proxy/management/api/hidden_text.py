"""Hide the text of conversations and notes in an answer (`server.admin_reads: false`).

An answer marks each field that holds such text with `HOLDS_TEXT`; the field can then be null.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.inspect import Metadata, type_info
from msgspec.structs import replace

HOLDS_TEXT = Meta(extra={"holds_text": True})
HiddenText = Annotated[str | None, HOLDS_TEXT]
HiddenJson = Annotated[msgspec.Raw | None, HOLDS_TEXT]
LISTED_TEXT_FIELDS = ("title",)
_T = TypeVar("_T")


def hide_text(value: _T) -> _T:
    """Return the value, a struct or a list of them, with null in every field that holds text."""
    if isinstance(value, list):
        return [hide_text(item) for item in value]  # type: ignore[return-value] # a list stays one
    if not isinstance(value, Struct):
        return value
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    hidden = list_text_fields(type(value))
    changes: dict[str, Any] = {
        name: None if name in hidden else hide_text(field) for name, field in fields.items()
    }
    return replace(value, **changes)


@cache
def list_text_fields(struct: type[Struct]) -> frozenset[str]:
    """Return the names of a struct's fields that hold text."""
    info = type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)  # of a struct, the library says no other
    return frozenset(field.encode_name for field in info.fields if _holds_text(field.type))


@cache
def can_show_text(struct: type[Struct]) -> bool:
    """Return whether an answer has a field for such text anywhere. A title, which is in every
    list, does not count."""
    return _has_text_field(type_info(struct), set())


def _has_text_field(info: Any, seen: set[type]) -> bool:
    match info:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return False
            seen.add(cls)
            return any(
                (_holds_text(field.type) and field.encode_name not in LISTED_TEXT_FIELDS)
                or _has_text_field(field.type, seen)
                for field in fields
            )
        case Metadata(type=inner):
            return _has_text_field(inner, seen)
        case msgspec.inspect.UnionType(types=types):
            return any(_has_text_field(inner, seen) for inner in types)
        case msgspec.inspect.CollectionType(item_type=inner):
            return _has_text_field(inner, seen)
        case _:
            return False


def _holds_text(field_type: Any) -> bool:
    return isinstance(field_type, Metadata) and bool((field_type.extra or {}).get("holds_text"))
