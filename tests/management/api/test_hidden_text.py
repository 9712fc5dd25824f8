"""Text that `server.admin_reads: false` hides: which fields hold text, and that none is missed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct
from msgspec.inspect import (
    AnyType,
    CustomType,
    DictType,
    ListType,
    Metadata,
    RawType,
    StrType,
    StructType,
    UnionType,
    type_info,
)

from om_proxy.management.api.hidden_text import (
    HiddenJson,
    HiddenText,
    can_show_text,
    hide_text,
    list_text_fields,
)
from om_proxy.management.api.route_table import ADMIN_ROUTES

# fields of strings that no conversation or note is read from: names, labels, words of ours
TEXT_FREE_FIELDS = {
    *("tenant", "resource", "thread", "label", "resource_label", "about"),  # names
    *("scope", "kind", "role", "model", "why", "status", "reason", "case", "state"),
    *("database", "log", "backups", "cursor", "day"),
    *("durable", "erases", "promises"),  # of the store
    *("settings", "name", "value", "origin", "warnings", "program_version"),
    *("by", "cycleId"),
    *("id", "signature", "who", "what", "counts", "om"),
    "failure_cause",  # our own words  # settings
    *("id", "type"),
    "unknown_fields",  # names of fields in what the caller sent
    "data",  # engine/event_feed/envelope.py takes the text out: tests/engine/event_feed/test_envelope.py
}


class Leaf(Struct, frozen=True):
    text: HiddenText
    tokens: int
    raw: Annotated[HiddenJson, Meta(description="As it was sent.")]


class Branch(Struct, frozen=True):
    title: Annotated[HiddenText, Meta(description="Its title.")]
    kind: str
    leaves: list[Leaf]
    only: Leaf | None


def test_every_field_that_holds_text_is_null() -> None:
    leaf = Leaf("secret", 7, msgspec.Raw(b'"secret"'))
    shown = hide_text(Branch("secret", "kept", [leaf, leaf], leaf))
    assert shown == Branch(None, "kept", [Leaf(None, 7, None)] * 2, Leaf(None, 7, None))
    assert b"secret" not in msgspec.json.encode(shown)


class Titles(Struct, frozen=True):
    items: list[Branch]
    title: HiddenText


class Titled(Struct, frozen=True):
    title: HiddenText
    counts: list[int]


def test_an_answer_with_text_anywhere_can_show_it() -> None:
    """A title stands in every list, and is no reading of a thread."""
    assert can_show_text(Leaf)
    assert can_show_text(Titles)
    assert not can_show_text(Titled)


def _list_parts(info: Any) -> list[Any]:
    """Return the types that a field's value may hold, without its marks."""
    match info:
        case Metadata(type=inner):
            return _list_parts(inner)
        case UnionType(types=types):
            return [part for inner in types for part in _list_parts(inner)]
        case ListType(item_type=inner):
            return _list_parts(inner)
        case _:
            return [info]


def _list_structs(struct: type[Struct], found: set[type[Struct]]) -> set[type[Struct]]:
    if struct not in found:
        found.add(struct)
        info = type_info(struct)
        assert isinstance(info, StructType)
        for field in info.fields:
            for part in _list_parts(field.type):
                if isinstance(part, StructType):
                    _list_structs(part.cls, found)
    return found


JSON_ROUTES = [route for route in ADMIN_ROUTES if not route.is_text]
ANSWERS = sorted(
    {struct for route in JSON_ROUTES for struct in _list_structs(route.answer, set())},
    key=lambda struct: struct.__name__,
)


@pytest.mark.parametrize("struct", ANSWERS, ids=lambda struct: struct.__name__)
def test_a_field_holds_text_or_is_known_to_hold_none(struct: type[Struct]) -> None:
    """A new field of strings is marked with `HiddenText`, or stands in `TEXT_FREE_FIELDS`."""
    info = type_info(struct)
    assert isinstance(info, StructType)
    free_form = (StrType, AnyType, RawType, DictType, CustomType)
    doubtful = {
        field.encode_name
        for field in info.fields
        if any(isinstance(part, free_form) for part in _list_parts(field.type))
    }
    assert doubtful - list_text_fields(struct) <= TEXT_FREE_FIELDS
